"""The forks that `make quick` runs in: no failure gets lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    "-q",
    "-ra",
    "-c",
    os.devnull,
    "-p",
    "tests.support.forks",
    "--forks",
    "2",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
]
TESTS = """
import os, pytest

@pytest.fixture(scope="module")
def ended():
    yield
    with open(os.environ["ENDED"], "a") as file:
        print(os.getpid(), file=file)

@pytest.mark.parametrize("n", range(200))
def test_good(n, ended): print(n)

def test_bad(ended): print("printed"); os.write(1, b"written"); assert not "it is bad"

def test_at_teardown(request): request.addfinalizer(lambda: 1 / 0)

def test_skipped(): pytest.skip("a reason")

def test_known(request):
    request.applymarker(pytest.mark.xfail)
    assert 0

@pytest.mark.skipif("DIES" not in os.environ, reason="lives")
def test_that_dies(): os._exit(7)
"""


def run(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(TESTS)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={folder}", str(folder), *options],
        cwd=ROOT,
        env=os.environ | {"ENDED": str(folder / "ended"), "COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout


@pytest.mark.slow
def test_all_is_run_once_and_what_fails_is_shown_with_its_output(tmp_path: Path) -> None:
    code, shown = run(tmp_path)
    assert code == 1
    assert "1 failed, 201 passed, 2 skipped, 1 xfailed, 1 error in" in shown
    assert "test_it.py::test_bad - " in shown
    assert "test_it.py::test_at_teardown - ZeroDivisionError" in shown
    assert "printed\nwritten" in shown
    assert "a reason" in shown
    assert (tmp_path / "ended").exists()


def test_a_process_that_dies_is_a_failure_of_its_test(tmp_path: Path) -> None:
    code, shown = run(tmp_path, DIES="1")
    assert code == 1
    assert "test_that_dies - the process that ran it ended with 7" in shown


def test_a_run_stops_at_the_first_failure_and_fixtures_end(tmp_path: Path) -> None:
    code, shown = run(tmp_path, "-x", "-k", "bad or good")
    assert code == 1
    assert "test_it.py::test_bad - " in shown
    assert (tmp_path / "ended").exists()


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    code, shown = run(tmp_path)
    assert code == pytest.ExitCode.INTERRUPTED
    assert "No module named 'nothing_of_that_name'" in shown
    assert "1 error in" in shown
