"""A server with a keeper runs as long as its users do, and no longer. The servers are small programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.local import server
from muster.local.server import LocalServer, ServerFailedError
from tests.support.alive import PATIENCE_S, wait_until_gone

READY = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"


class Program(LocalServer):
    """Python with a line of code, which must print `ready`."""

    def __init__(self, folder: Path, code: str = READY, users: Path | None = None) -> None:
        super().__init__("the program", folder, users=users)
        self.code = code

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]

    def is_ready(self) -> bool:
        return "ready" in self.log


def keeper_of(program: LocalServer) -> int:
    assert program._process is not None
    return program._process.pid


def test_it_runs_in_the_block_and_not_after_it(tmp_path: Path):
    with Program(tmp_path / "a") as program:
        pid = program.pid
        assert pid is not None
        endings = [program.ending]
        os.kill(pid, 0)
    assert program.pid is None
    assert [*endings, program.ending] == [None, "signal SIGTERM"]
    wait_until_gone(pid)


def test_one_that_runs_is_not_started_again(tmp_path: Path):
    with Program(tmp_path / "a") as program:
        pid = program.pid
        with pytest.raises(ServerFailedError, match=rf"the program runs already, as process {pid}: stop or kill it"):
            program.start()
        program.freeze()
        with pytest.raises(ServerFailedError, match=r"the program runs already, as process \d+: thaw it"):
            program.start()
        program.thaw()
        assert (program.pid, program.log.count("ready")) == (pid, 1)
        program.kill()
        program.start()
        assert program.pid != pid


class Quick(Program):
    """It ends at once when it is asked to: before the signal that resumes it if it is frozen."""

    def _signal(self, how: signal.Signals) -> None:
        if how == signal.SIGCONT:
            raise ProcessLookupError
        super()._signal(how)

    def _end_by_keeper(self) -> None:
        raise AssertionError("its keeper ends by itself, as it did")


def test_one_that_ends_at_once_is_not_asked_twice(tmp_path: Path):
    with Quick(tmp_path / "a") as program:
        pass
    assert program.ending == "signal SIGTERM"


def test_it_is_killed_and_started_again_and_its_log_continues(tmp_path: Path):
    with Program(tmp_path / "a") as program:
        first = program.pid
        program.kill()
        assert (program.pid, program.ending) == (None, "signal SIGKILL")
        program.start()
        assert program.pid not in (None, first)
        assert program.log == "ready\n"
        assert program.log_file.read_text() == "ready\nready\n"


def test_what_a_terminal_sends_does_not_reach_it(tmp_path: Path):
    """Ctrl-C is for its starter, which stops it properly."""
    with Program(tmp_path / "a") as program:
        assert program.pid is not None
        assert len({os.getsid(0), os.getsid(keeper_of(program))}) == 2
        assert os.getsid(program.pid) == os.getsid(keeper_of(program))


def test_it_does_not_outlive_an_error_in_the_block(tmp_path: Path):
    program = Program(tmp_path / "a", DEAF)
    with pytest.raises(ValueError, match="of the block"), program:
        raise ValueError("of the block")
    program.wait_for_its_end()
    assert program.pid is None
    assert program.ending == "signal SIGKILL"


class Slow(Program):
    """Its keeper is suspended before it has written down the server's process id."""

    looks = 0

    @property
    def pid(self) -> int | None:
        self.looks += 1
        return None if self.looks < 5 and "ready" in self.log else super().pid


def test_it_is_not_ready_before_its_process_id_is_known(tmp_path: Path):
    """Otherwise it could not be killed right after its start, and its end would be waited for in vain."""
    with Slow(tmp_path / "a") as program:
        assert program.looks >= 5
        program.kill()


def test_a_frozen_one_does_nothing_and_is_stopped_properly(tmp_path: Path):
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('ready', flush=True)"
    with Program(tmp_path / "a", f"{code}\nwhile True: time.sleep(0.01)") as program:
        program.freeze()
        assert program.is_frozen
        program.thaw()
        program.freeze()
        assert program.stop(PATIENCE_S)
        assert program.ending == "exit code 7"


def test_one_that_does_not_end_when_asked_is_killed(tmp_path: Path):
    with Program(tmp_path / "a", DEAF) as program:
        assert not program.stop(patience_s=0.2)
        assert program.ending == "signal SIGKILL"


def test_one_that_ends_at_once_tells_its_last_words(tmp_path: Path):
    program = Program(tmp_path / "a", "print('this is wrong'); exit(3)")
    with pytest.raises(
        ServerFailedError, match=r"the program ended with exit code 3; its last output:\n  this is wrong"
    ):
        program.__enter__()
    assert program.pid is None


def test_one_that_does_not_come_to_serve_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "START_TIMEOUT_S", 0.3)
    program = Program(tmp_path / "a", "import time; time.sleep(600)")
    with pytest.raises(ServerFailedError, match=r"the program is not ready after 0 s; see .*server\.log"):
        program.__enter__()
    deadline = time.monotonic() + PATIENCE_S
    while program.pid is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert program.pid is None


def test_a_number_that_is_left_in_the_file_is_not_a_process(tmp_path: Path):
    """After a power cut the file has a number that another process may have by then."""
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert server.pid_in(tmp_path) is None


STARTER = """
import signal, sys
from pathlib import Path
from tests.unit.local.test_kept import DEAF, Program, keeper_of

with Program(Path(sys.argv[1]), DEAF) as program:
    print(program.pid, keeper_of(program), flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_nothing_is_left_when_its_starter_dies(tmp_path: Path, how: signal.Signals):
    """The program ignores SIGTERM, and nothing of the starter's code runs after SIGKILL."""
    command = [sys.executable, "-c", STARTER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starter:
        assert starter.stdout is not None
        pid, keeper = map(int, starter.stdout.readline().split())
        starter.send_signal(how)
        assert starter.wait() == -how
    wait_until_gone(pid, keeper)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_it_does_not_outlive_its_keeper(tmp_path: Path):
    with Program(tmp_path / "a", DEAF) as program:
        assert program.pid is not None
        pid = program.pid
        os.kill(keeper_of(program), signal.SIGKILL)
        wait_until_gone(pid)


def test_a_keeper_that_is_asked_to_end_ends_its_server(tmp_path: Path):
    with Program(tmp_path / "a", DEAF) as program:
        assert program.pid is not None
        pid = program.pid
        os.kill(keeper_of(program), signal.SIGTERM)
        wait_until_gone(pid)


@pytest.mark.parametrize("asked", [True, False])
def test_it_is_ended_though_its_folder_was_removed(tmp_path: Path, asked: bool):
    """A user may remove a cluster's data before Ctrl-C."""
    with Program(tmp_path / "a", DEAF) as program:
        assert program.pid is not None
        pid = program.pid
        shutil.rmtree(tmp_path / "a")
        if asked:
            assert program.stop(PATIENCE_S)
        else:
            program.kill()
        wait_until_gone(pid)


def test_several_users_share_one_until_the_last_is_gone(tmp_path: Path):
    users = tmp_path / "users"
    with server.held(users):
        with server.held(users):
            program = Program(tmp_path / "a", users=users)
            program.start()
            pid = program.pid
            assert pid is not None
        beside = Program(tmp_path / "a", users=users)
        assert beside.pid == pid
        program.kill()
        beside.start()
        assert beside.pid == program.pid != pid
    beside.wait_for_its_end()
    assert program.pid is None
