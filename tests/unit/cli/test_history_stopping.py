"""Ctrl-C and SIGTERM stop `muster history` cleanly, even while Spark starts, and even if they reach Java as well."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from typing import Any

import pytest

from muster.cli.main import main
from muster.cli.observe import history
from muster.clock import wall_clock_ms
from muster.errors import MusterError

NUMBERS = [signal.SIGINT, signal.SIGTERM]


class Session:
    """A Spark session that installs its own Ctrl-C handler as it starts, as Spark's does. If it fails, its Java is
    gone."""

    def __init__(self, numbers: list[signal.Signals], *, fails: bool) -> None:
        self.stopped = False
        self._fails = fails
        for number in numbers:
            os.kill(os.getpid(), number)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self) -> None:
        self.stopped = True
        if self._fails:
            raise MusterError("Java is gone")


class Query:
    """A query that runs until it is stopped; a signal arrives while the job waits for it, and may end it with an
    error."""

    def __init__(self, number: signal.Signals | None, *, fails: bool) -> None:
        self.stopped = False
        self._number, self._fails = number, fails

    def awaitTermination(self, _timeout_s: float) -> bool:
        if self._number is not None:
            os.kill(os.getpid(), self._number)
        if self._fails:
            raise MusterError("the source's process was interrupted")
        return False

    def stop(self) -> None:
        self.stopped = True
        if self._fails:
            raise MusterError("Java is gone")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """Runs the command with such a session, and such a query if it gets that far; the test sends the signals."""

    def run(
        early: list[signal.Signals], late: signal.Signals | None = signal.SIGINT, *, fails: bool = False, code: int = 0
    ) -> tuple[list[Session], list[Query]]:
        sessions: list[Session] = []
        queries: list[Query] = []

        class History:
            def check(self, *_given: Any, **_named: Any) -> None:
                pass

            def alone(self, *_given: Any) -> Any:
                return nullcontext()

            def follow(self, *_given: Any, **_named: Any) -> Query:
                queries.append(Query(late, fails=fails))
                return queries[-1]

        def session(*_given: Any, **_named: Any) -> Session:
            sessions.append(Session(early, fails=fails))
            return sessions[-1]

        monkeypatch.setattr(history, "spark_tools", lambda: (History(), session, lambda call: call()))
        before = [signal.getsignal(number) for number in NUMBERS]
        assert main(["history", "--bootstrap", "a:1", "--out", "x", "--follow"]) == code
        assert [signal.getsignal(number) for number in NUMBERS] == before
        return sessions, queries

    return run


@pytest.mark.interpreted
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_session_begins(asked, number):
    sessions, queries = asked([signal.SIGINT, number])  # SIGTERM alone would end the tests if it were not handled
    assert [session.stopped for session in sessions] == [True]
    assert queries == []


class Begun:
    """The job's arguments; a signal arrives while the cluster is being asked, if the test wants one."""

    def __init__(self, number: signal.Signals | None = None) -> None:
        self.reported: dict[str, Any] = {}
        self.done: list[str] = []
        self._number = number

    def check(self, *_given: Any, **_named: Any) -> str:
        if self._number is not None:
            os.kill(os.getpid(), self._number)
            pytest.fail("it waits for the cluster")
        return "limits"

    def alone(self, _spark: Any, out: str) -> Any:
        self.done.append(f"hold {out}")
        return nullcontext()

    def follow(self, _spark: Any, *where: str, **how: Any) -> Begun:
        self.reported = {"where": where} | how
        return self

    def awaitTermination(self, _timeout_s: float) -> bool:
        self.done.append("wait")
        return True

    def read(self, _spark: Any, out: str) -> Begun:
        self.done.append(f"read {out}")
        return self

    def __getattr__(self, name: str) -> Begun:  # a table
        return self

    def count(self) -> int:
        return 7

    def stop(self) -> None:
        self.done.append("stop")

    def run(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
        monkeypatch.setattr(history, "spark_tools", lambda: (self, lambda *_, **__: self, lambda call: call()))
        return main(["history", "--bootstrap", "a:1", "--out", "x", *arguments])


@pytest.mark.interpreted
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_cluster_is_asked_does_not_wait_for_it(monkeypatch, number):
    begun = Begun(number)
    assert begun.run(monkeypatch) == 0
    assert begun.done == []


@pytest.mark.interpreted
def test_the_arguments_of_the_job(monkeypatch, capsys):
    begun = Begun()
    assert begun.run(monkeypatch, "--group", "b", "--group", "a") == 0
    assert begun.reported == {
        "where": ("a:1", "x"),
        "limits": "limits",
        "groups": ["b", "a"],
        "every_s": 60.0,
        "once": True,
        "since_ms": 0,
    }
    assert begun.done == ["hold x", "wait", "read x", "stop"]
    names = ("generations", "rebalances", "notes", "lag", "findings")
    assert capsys.readouterr().out == "".join(f"{name}: 7\n" for name in names)
    before_ms = wall_clock_ms()
    assert begun.run(monkeypatch, "--follow", "--every", "1m30s", "--since", "1d12h") == 0
    ago_ms = 36 * 3_600_000
    assert before_ms - ago_ms <= begun.reported["since_ms"] <= wall_clock_ms() - ago_ms
    assert (begun.reported["every_s"], begun.reported["once"]) == (90.0, False)


@pytest.mark.interpreted
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_it_follows(asked, number, fails):
    sessions, queries = asked([], number, fails=fails)
    assert [each.stopped for each in [*sessions, *queries]] == [True, True]


@pytest.mark.interpreted
def test_an_error_without_a_signal_is_reported(asked, capsys):
    asked([], None, fails=True, code=1)
    assert "muster: " in capsys.readouterr().err
