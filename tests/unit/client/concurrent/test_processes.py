"""A thread's call that runs in a process: what ends it, what does not, and which calls are affected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.concurrent.outcomes import WorkerDiedError
from muster.client.concurrent.processes import ProcessCall
from muster.client.core.concurrent.rules import HandlerFailure
from muster.model import ConsumerRecord

pytestmark = pytest.mark.slow


def record(what: bytes = b"") -> ConsumerRecord:
    return ConsumerRecord("flights", 0, 0, 0, 0, what, b"")


SLEEPER = (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)")


def handle(record: ConsumerRecord) -> None:
    """Reports the process's id by raising."""
    if record.key == b"stuck":
        time.sleep(600)
    if record.key == b"signals":
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    if record.key == b"another program":
        with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as sleeper:
            assert sleeper.stdout is not None
            sleeper.stdout.readline()
            sleeper.terminate()
    if record.key == b"fork":
        child = os.fork()
        if not child:
            time.sleep(600)
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    if record.key == b"segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise ValueError(os.getpid())


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCall]:
    call = ProcessCall(handle)
    yield call
    call.close()


def pid_of(call: ProcessCall, what: bytes = b"") -> int:
    failure = call(record(what))
    assert isinstance(failure, HandlerFailure)
    return int(failure.message)


def test_a_signal_that_all_processes_of_a_program_get_is_for_the_first(shared: ProcessCall) -> None:
    """The program waits for its handlers: so neither the terminal's Ctrl-C nor a service manager may end them."""
    before = pid_of(shared)
    assert pid_of(shared, b"signals") == before


@pytest.mark.parametrize("what", [b"another program", b"fork"])
def test_what_a_handler_starts_can_be_ended_by_a_signal(shared: ProcessCall, what: bytes) -> None:
    before = pid_of(shared)
    assert pid_of(shared, what) == before


def test_a_kill_ends_the_record_that_it_is_for_and_no_other(shared: ProcessCall) -> None:
    before, earlier, stuck = pid_of(shared), record(), record(b"stuck")
    shared(earlier)
    shared.kill(earlier)  # it has ended meanwhile
    assert pid_of(shared) == before

    def kill() -> None:
        while shared._record is not stuck:
            time.sleep(0.001)
        shared.kill(stuck)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerDiedError):
        shared(stuck)
    killer.join()
    assert pid_of(shared) != before


def test_a_record_that_was_given_up_before_it_began_is_not_begun(shared: ProcessCall) -> None:
    before, late = pid_of(shared), record(b"stuck")
    shared.kill(late)
    with pytest.raises(WorkerDiedError, match="before its handler started"):
        shared(late)
    assert pid_of(shared) != 0
    assert before


def test_a_process_that_crashes_fails_one_record(shared: ProcessCall) -> None:
    before = pid_of(shared)
    with pytest.raises(WorkerDiedError):
        shared(record(b"segfault"))
    assert pid_of(shared) != before


TOLD_WHILE_IT_STARTS = """
import os, signal
from muster.client.concurrent.processes import ProcessCall
from muster.model import ConsumerRecord

def handle(record):
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)

if __name__ == "__main__":
    call = ProcessCall(handle)
    print(call(ConsumerRecord("flights", 0, 0, 0, 0, None, None)), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    call.close()
else:  # the process imports this file as it starts
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
"""


def test_so_are_signals_in_the_moment_in_which_a_process_starts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOLD_WHILE_IT_STARTS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("set()\nNone set()\n", "", 0)
