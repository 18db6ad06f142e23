"""Ctrl-C and SIGTERM end `muster history` in good order, also while Spark starts, and where they reach Java as well."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from muster.cli import history
from muster.cli.main import main
from muster.errors import MusterError

NUMBERS = [signal.SIGINT, signal.SIGTERM]


class Session:
    """A Spark session that takes Ctrl-C for itself as it begins, as Spark's does. If it fails, its Java is gone."""

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
    """One that goes on until it is stopped; a signal comes while it is waited for, and may end it by an error."""

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
    """Runs the command with such a session, and such a query if it gets that far; the signals come from the test."""

    def run(
        early: list[signal.Signals], late: signal.Signals | None = signal.SIGINT, *, fails: bool = False, code: int = 0
    ) -> tuple[list[Session], list[Query]]:
        sessions: list[Session] = []
        queries: list[Query] = []

        class History:
            def check(self, *_given: Any, **_named: Any) -> None:
                pass

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
    sessions, queries = asked([signal.SIGINT, number])  # SIGTERM alone would end the tests, were it not taken
    assert [session.stopped for session in sessions] == [True]
    assert queries == []


@pytest.mark.interpreted
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_it_follows(asked, number, fails):
    sessions, queries = asked([], number, fails=fails)
    assert [each.stopped for each in [*sessions, *queries]] == [True, True]


@pytest.mark.interpreted
def test_an_error_without_a_signal_is_told(asked, capsys):
    asked([], None, fails=True, code=1)
    assert "muster: " in capsys.readouterr().err
