"""How handlers end: what they return and raise, in tasks, threads and processes; and who receives signals."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from muster.client.concurrent import ConcurrentConsumer, RetryLaterError
from muster.client.concurrent.outcomes import Outcome, WorkerStartError, failure_of
from muster.client.concurrent.processes import _handle
from muster.client.concurrent.signals import Signals
from muster.client.concurrent.workers import DirectCall, OnEnd, TaskWorkers, ThreadWorkers, Workers
from muster.errors import ConfigError, WakeupError


async def handle(_record: object) -> None: ...


class Reported:
    async def __call__(self, _record: object) -> None: ...


def generator(_record: object) -> Any:
    yield 1


async def not_awaited(_record: object) -> Any:
    return handle(_record)


class _Job:
    record = "record"


def a_job() -> Any:
    return _Job()


def in_threads(handler: Any, on_end: OnEnd) -> Workers:
    return ThreadWorkers(2, partial(DirectCall, handler), on_end)


def outcomes(make: Callable[[Any, OnEnd], Workers], handler: Any, count: int = 1) -> list[Outcome]:
    """How this many jobs of a handler end."""

    async def scene() -> list[Outcome]:
        found: list[Outcome] = []
        ended = asyncio.Event()

        def on_end(_job: Any, outcome: Outcome) -> None:
            found.append(outcome)
            if len(found) == count:
                ended.set()

        workers = make(handler, on_end)
        for _ in range(count):
            workers.start(a_job())
        await ended.wait()
        workers.close()
        return found

    return asyncio.run(scene())


@pytest.mark.parametrize("handler", [lambda record: handle(record), Reported(), generator])
def test_a_function_that_only_begins_its_work_is_no_handler_for_threads(handler: Any) -> None:
    """Its records would count as done, and be lost."""
    [outcome] = outcomes(in_threads, handler)
    assert isinstance(outcome, ConfigError)
    assert "nothing has run yet" in str(outcome)


def test_a_function_that_only_begins_its_work_is_no_handler_for_processes() -> None:
    record: Any = "record"
    with pytest.raises(ConfigError, match="returned a coroutine, so nothing has run yet"):
        _handle(Reported(), record)
    assert _handle(lambda _record: "anything", record) is None


def test_a_task_that_returns_what_it_did_not_await_is_reported() -> None:
    [outcome] = outcomes(TaskWorkers, not_awaited)
    assert isinstance(outcome, ConfigError)
    [outcome] = outcomes(TaskWorkers, generator)
    assert isinstance(outcome, ConfigError)
    assert outcomes(TaskWorkers, handle, count=3) == [None] * 3


def raises(error: BaseException) -> Callable[[object], None]:
    def handler(_record: object) -> None:
        raise error

    return handler


@pytest.mark.parametrize("make", [in_threads, TaskWorkers])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError("bad")])
def test_whatever_a_handler_raises_ends_its_job(make: Any, error: BaseException) -> None:
    assert outcomes(make, raises(error)) == [error]


def test_threads_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are fewer handlers than jobs, or the run ends; no job is forgotten."""
    start, started = threading.Thread.start, [0]

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("muster-handler"):
            started[0] += 1
            if started[0] > allowed:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    allowed = 1
    assert outcomes(in_threads, lambda _record: None, count=5) == [None] * 5
    started[0] = allowed = 0
    ended = outcomes(in_threads, lambda _record: None, count=3)
    assert all(isinstance(outcome, WorkerStartError) for outcome in ended), "also of jobs that come after the first"


def test_a_job_that_was_cancelled_before_it_began_is_not_begun() -> None:
    """Its partition may have been assigned to another member by then."""
    gate, begun = threading.Event(), list[object]()

    def handle(record: object) -> None:
        begun.append(record)
        assert gate.wait(60)

    async def scene() -> list[Outcome]:
        found: list[Outcome] = []
        both = asyncio.Event()

        def on_end(_job: Any, outcome: Outcome) -> None:
            found.append(outcome)
            if len(found) == 2:
                both.set()

        workers = ThreadWorkers(1, partial(DirectCall, handle), on_end)
        first, second = a_job(), a_job()
        workers.start(first)
        workers.start(second)
        workers.cancel([second])
        gate.set()
        await both.wait()
        workers.close()
        assert not workers._unwanted
        return found

    [fine, cancelled] = asyncio.run(scene())
    assert fine is None
    assert isinstance(cancelled, asyncio.CancelledError)
    assert len(begun) == 1


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


def test_an_exception_that_cannot_be_shown_is_a_failure_as_others() -> None:
    assert failure_of(SpeechlessError()).message == "<its text is not available: LookupError>"


@pytest.mark.parametrize("delay", [math.nan, math.inf, 10**400, "soon", None])
def test_another_attempt_at_an_invalid_time(delay: Any) -> None:
    """The error is raised where the delay was given, and so counts as a failed attempt."""
    with pytest.raises((ValueError, TypeError)):
        RetryLaterError(delay)
    assert failure_of(RetryLaterError(-5)).delay_ms == 0


def test_an_error_of_our_own_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio would only log it, and the run would wait forever for the job."""
    engine = ConcurrentConsumer({"group.id": "g"}, print, topics="t")._engine

    def fail(_job: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(engine, "core", SimpleNamespace(succeeded=fail))
    engine._pumping = True
    engine._ended(a_job(), None)
    assert isinstance(engine._error, LookupError)
    assert engine._stopping


async def test_what_waits_besides_the_poll_is_asked_again_when_the_poll_is_woken() -> None:
    engine = ConcurrentConsumer({"group.id": "g"}, print, topics="t")._engine
    answers: list[Any] = [WakeupError("woken"), WakeupError("woken"), "committed"]

    async def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await engine._awake(ask) == "committed"
    assert not engine._consumer._pump.woken
    engine._reading, answers[:] = True, [WakeupError("woken"), "committed"]
    assert await engine._awake(ask) == "committed"
    assert engine._consumer._pump.woken  # the poll has yet to be woken


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
def test_all_runs_of_a_loop_hear_a_signal() -> None:
    heard: list[str] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        with Signals(loop, lambda: heard.append("first"), wanted=True):
            with Signals(loop, lambda: heard.append("second"), wanted=True):
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0)
                await asyncio.sleep(0.01)
                assert heard == ["first", "second"]
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
            assert heard == ["first", "second", "first"]

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asyncio.run(scene())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
