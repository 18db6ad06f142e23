"""Tests of tests/support/limits.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import QUICK_S


def test_a_test_that_says_nothing_of_its_time_has_the_limit_of_quick_ones(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("timeout")
    assert marker is not None
    assert marker.args == (QUICK_S,)


@pytest.mark.timeout(17)
def test_a_limit_of_its_own_stays(request: pytest.FixtureRequest) -> None:
    assert [marker.args for marker in request.node.iter_markers("timeout")] == [(17,)]


@pytest.mark.slow
def test_a_slow_test_has_that_of_all(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout") is None


@pytest.mark.slow
def test_where_a_test_hangs_is_shown_for_every_thread(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(
        "import threading\n"
        "def waits_in_a_thread(): threading.Event().wait()\n"
        "def test_hanging():\n"
        "    threading.Thread(target=waits_in_a_thread, daemon=True).start()\n"
        "    threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=1", "--timeout-method=thread"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    reported = done.stdout + done.stderr
    assert "in waits_in_a_thread" in reported
    assert "in test_hanging" in reported
