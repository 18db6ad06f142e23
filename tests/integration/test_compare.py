"""`muster compare` as a user runs it, with five members: exit code, last line, page; and its end when interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.compare.rules.checks import judge
from muster.compare.rules.results import from_json
from tests.support.alive import processes_of, wait_until_none_of
from tests.support.peers import Chromium, find_java, require

LIMIT_S = 1800  # only in case of a hang: it takes about two minutes

COMPARE = [sys.executable, "-m", "muster", "compare", "--quick"]


def why(done: subprocess.CompletedProcess[str], out: Path) -> str:
    """What failed the checks, with the observed values; then the end of the output."""
    found = [out / "results.json"] if (out / "results.json").exists() else []
    checks = [check for each in found for check in judge(from_json(json.loads(each.read_text())))]
    lines = [f"wrong: {check.title}: {check.seen}" for check in checks if check.ok is False]
    lines += [f"not judged: {check.title}: {check.seen}" for check in checks if check.ok is None]
    return "\n".join([*lines, done.stdout[-6000:], done.stderr[-3000:]])


def total(run: dict[str, Any], figure: str, steps: slice = slice(None)) -> int:
    return sum(step[figure] for step in run["steps"][steps])


@pytest.mark.slow(135)
@pytest.mark.timeout(LIMIT_S)
def test_the_schemes_are_compared_and_judged(tmp_path: Path, chromium: Chromium) -> None:
    require("Java 17 or newer", find_java(), "ZooKeeper runs on it")
    out = tmp_path / "out"
    done = subprocess.run([*COMPARE, "--out", str(out)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, why(done, out)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["wrong"] == []
    runs = {run["scheme"]: run for run in figures["runs"]}
    assert list(runs) == ["1", "2", "3"]
    for run in runs.values():
        assert run["members"] == 5
        assert run["lost"] == 0
        assert run["produced"] == run["handled"] > 0
        assert [step["step"] for step in run["steps"]][4:] == [
            "m5 joins",
            "m1 leaves",
            "m2 crashes",
            "m3 is frozen past its session, and resumes",
            "a broker stops and restarts",
            "ZooKeeper stops and restarts",
        ]
    assert runs["1"]["steps"][7]["stale_commits"] == {"refused": 1, "accepted from its next session": 1}
    assert [runs[scheme]["steps"][7]["stale_commits"] for scheme in "23"] == [{"refused": 1}] * 2
    if total(figures["differing"], "sessions_lost") == 0:
        late, broker, lag = figures["differing"]["steps"][2:]
        assert late["failed_tries"] > 0
        assert broker["rebalances"] >= 6
        assert lag["two_owners_ms"] > 0
    start = slice(0, 5)
    if total(runs["1"], "sessions_lost", start) == 0:  # the machine was not suspended
        assert total(runs["1"], "rebalances", start) == 15
        assert total(runs["1"], "notifications", start) == 10
    if total(runs["2"], "sessions_lost", start) == 0:
        assert total(runs["2"], "reads", start) == total(runs["2"], "notifications", start) == 0
        assert 5 <= total(runs["2"], "writes", start) < total(runs["1"], "writes", start)
    if total(runs["3"], "sessions_lost", start) == 0:
        assert total(runs["3"], "reads", start) == total(runs["3"], "writes", start) == 0
    assert total(runs["1"], "reads", start) > 100
    page = chromium.dom(out / "compare.html")
    assert "✓ All checks passed." in page
    assert page.count("<svg") == len(runs) + 1 + 5
    wait_until_none_of(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_stops_everything_that_was_started(tmp_path: Path) -> None:
    require("Java 17 or newer", find_java(), "ZooKeeper runs on it")
    process = subprocess.Popen([*COMPARE, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "m1 joins" not in process.stdout.readline():
        assert process.poll() is None
    assert processes_of(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S / 3)
    assert process.returncode == 130, output
    assert "has been stopped" in output
    wait_until_none_of(tmp_path)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("not of a comparison")
    done = subprocess.run([*COMPARE, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "has files that `muster compare` did not write" in done.stderr
    assert (tmp_path / "precious").read_text() == "not of a comparison"
