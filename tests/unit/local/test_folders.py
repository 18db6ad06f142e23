"""A folder that a command uses exclusively, and what it may delete there."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.local.folders import workplace


def test_what_an_earlier_run_left_is_thrown_away_and_what_is_elsewhere_stays(tmp_path: Path):
    outside, folder = tmp_path / "outside", tmp_path / "a" / "results"
    outside.mkdir()
    (outside / "precious").touch()
    with workplace(folder, "muster compare"):
        (folder / "deep" / "deeper").mkdir(parents=True)
        (folder / "deep" / "file").touch()
        (folder / "link").symlink_to(outside)
        (folder / "page.html").touch()
    assert (folder / "page.html").exists(), "the results stay"
    with workplace(folder, "muster compare"):
        assert [entry.name for entry in folder.iterdir()] == [".muster-compare"]
    assert (outside / "precious").exists()


@pytest.mark.parametrize("names", [["precious"], ["precious", ".muster-demo"]])
def test_a_folder_with_other_files_is_refused(tmp_path: Path, names: list[str]):
    for name in names:
        (tmp_path / name).touch()
    with (
        pytest.raises(ConfigError, match="files that `muster compare` did not write: name another folder"),
        workplace(tmp_path, "muster compare"),
    ):
        pass
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(names)


def test_two_at_once_do_not_take_each_others_files_away(tmp_path: Path):
    with workplace(tmp_path, "muster compare"):
        (tmp_path / "log").touch()
        refused = f"another `muster compare` is running in {tmp_path}"
        with pytest.raises(ConfigError, match=refused), workplace(tmp_path, "muster compare"):
            pass
        assert (tmp_path / "log").exists()
    with workplace(tmp_path, "muster compare"):
        assert not (tmp_path / "log").exists()
