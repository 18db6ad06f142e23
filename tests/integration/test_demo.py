"""The main job as a user runs it, on the first 30,000 flights: exit code, last line, files, the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.demo.show.picture import STAGES
from tests.support.alive import wait_until_none_of
from tests.support.peers import Chromium, find_java, require

LIMIT_S = 1800  # only in case of a hang: it takes about a minute

DEMO = [sys.executable, "-m", "muster", "demo", "--quick"]


@pytest.mark.slow(130)
@pytest.mark.timeout(LIMIT_S)
def test_the_demo_handles_everything_and_says_so(tmp_path: Path, chromium: Chromium) -> None:
    require("Java 17 or newer", find_java(), "Spark runs on it")
    done = subprocess.run(
        [*DEMO, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["flights"] == figures["sent"]["count"] == figures["shared_group"]["distinct"] == 30_000
    assert figures["table"] == figures["topic"] == {"count": 1_104, "wrong": 0, "repeated": 0}
    assert figures["joined"] == {"count": 29_837, "wrong": 0, "repeated": 0}
    assert (figures["dead"]["count"], figures["dead"]["wrong"]) == (104, 0)
    shared = figures["shared_group"]
    assert shared["lost"] == shared["out_of_order"] == shared["duplicates_outside_windows"] == 0
    assert figures["outages"] == [
        "the pipeline's driver killed and started again",
        "broker killed and started again",
    ]
    causes = " ".join(rebalance["cause"] for rebalance in figures["rebalances"])
    # The machine's load decides whether Spark joins alone or in the first rebalance with the Python members.
    for cause in ("(spark)", "member joined (python-4)", "session expired (python-2)", "member left (python-1)"):
        assert cause in causes
    assert figures["causes_found"] == [
        {"step": "join", "cause": "joined", "found": True},
        {"step": "driver", "cause": "session_expired", "found": True},
        {"step": "kill", "cause": "session_expired", "found": True},
        {"step": "leave", "cause": "left", "found": True},
    ]
    assert figures["batches"].keys() == {"feed", "shared", "windows", "join", "check"}
    members = {path.name for path in (tmp_path / "out").glob("*.jsonl")}
    assert members == {*(f"python-{number}.jsonl" for number in range(1, 5)), "reader.jsonl"}
    page = chromium.dom(tmp_path / "out" / "report.html")
    assert "30,000" in page
    assert page.count('class="stage ') == len(STAGES)
    diagnosis = chromium.dom(tmp_path / "out" / "doctor.html")
    assert "written by the broker" in diagnosis
    assert all(f"{cause}</b>" in diagnosis for cause in ("joined", "session_expired", "left"))
    assert "flights-windows" in diagnosis
    wait_until_none_of(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_stops_everything_that_was_started(tmp_path: Path) -> None:
    require("Java 17 or newer", find_java(), "Spark runs on it")
    process = subprocess.Popen([*DEMO, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    log = tmp_path / "out" / "python-3.jsonl"
    give_up = time.monotonic() + LIMIT_S / 2
    while not log.exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S / 3)
    assert process.returncode == 130, output
    assert "has been stopped" in output
    wait_until_none_of(tmp_path)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("not the demo's")
    done = subprocess.run([*DEMO, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "has files that `muster demo` did not write" in done.stderr
    assert (tmp_path / "precious").read_text() == "not the demo's"
