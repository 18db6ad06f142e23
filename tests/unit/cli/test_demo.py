"""The one-sentence errors of `muster demo` before it starts anything."""

from __future__ import annotations

import pytest

from muster.cli.main import main
from muster.local.ports import LOOPBACK, free_ports


def test_a_wrong_master_is_refused_before_anything_is_started(capsys, tmp_path):
    nobody = f"spark://{LOOPBACK}:{free_ports(1)[0]}"
    for master, says in (
        ("nonsense", "--master 'nonsense': expected a master such as local[*], spark://HOST:7077"),
        ("sc://localhost", "this job does not run over Spark Connect"),
        (nobody, f"--master {nobody}: cannot connect to a Spark master there (Connection refused)"),
        ("spark://nowhere", "--master spark://nowhere: cannot connect to a Spark master there"),
    ):
        assert main(["demo", "--out", str(tmp_path / "out"), "--master", master]) == 1
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("group", "says"), [("", "--group is empty"), ("\udcff", "the name is not valid UTF-8")])
def test_a_group_that_can_be_none_is_refused_before_anything_is_started(capsys, tmp_path, group, says):
    assert main(["demo", "--out", str(tmp_path / "out"), "--group", group]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_java_is_said_before_anything_is_started(capsys, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("muster.local.java.installed_java", lambda: None)
    monkeypatch.setattr("muster.local.java.packaged_java", lambda: None)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    reported = capsys.readouterr()
    assert reported.err.startswith("muster: Spark needs Java 17 or newer")
    assert reported.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
