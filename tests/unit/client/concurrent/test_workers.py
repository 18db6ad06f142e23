"""The workers that handle records: tasks, threads and processes; each job ends once, and says how."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from muster.client.concurrent.outcomes import Outcome, PoisonRecordError, RetryLaterError, failure_of
from muster.client.concurrent.processes import ProcessCall
from muster.client.concurrent.workers import DirectCall, TaskWorkers, ThreadWorkers, Workers, with_deserializers
from muster.client.core.concurrent.progress import PartitionProgress
from muster.client.core.concurrent.rules import HandlerFailure
from muster.client.core.concurrent.work import Job
from muster.client.serde import Deserializers
from muster.errors import ConfigError, RecordDeserializationError
from muster.model import ConsumerRecord, TopicPartition

P0 = TopicPartition("flights", 0)


def job(offset: int = 0, value: bytes | None = b"{}", key: bytes | None = None) -> Job:
    return Job(ConsumerRecord("flights", 0, offset, 0, 0, key, value), PartitionProgress(P0), None)


class Ends:
    """Records how jobs have ended."""

    def __init__(self) -> None:
        self.found: list[tuple[Job, Outcome]] = []
        self._news = asyncio.Event()

    def __call__(self, ended: Job, outcome: Outcome) -> None:
        self.found.append((ended, outcome))
        self._news.set()

    async def wait(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(60):
            while len(self.found) < count:
                self._news.clear()
                await self._news.wait()
        return [outcome for _, outcome in self.found]


def outcome_of(make: Callable[[Ends], Workers], one: Job) -> Outcome:
    async def scene() -> Outcome:
        ends = Ends()
        workers = make(ends)
        workers.start(one)
        assert not ends.found, "a job ends after it was started, not meanwhile"
        [outcome] = await ends.wait(1)
        workers.close()
        assert ends.found[0][0] is one
        return outcome

    return asyncio.run(scene())


async def fine(_record: ConsumerRecord) -> None: ...


async def bad(_record: ConsumerRecord) -> None:
    raise ValueError("bad")


def bad_at_once(_record: ConsumerRecord) -> Any:
    raise ValueError("bad")


def awaitable(record: ConsumerRecord) -> Any:
    """What some decorators turn an async function into."""
    return asyncio.ensure_future(bad(record))


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(fine, None), (bad, ValueError), (bad_at_once, ValueError), (awaitable, ValueError), (print, ConfigError)],
    ids=["returns", "raises", "raises at once", "another awaitable", "no async function"],
)
def test_how_tasks_end(handler: Any, kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(lambda ends: TaskWorkers(handler, ends), job())
    assert outcome is None if kind is None else isinstance(outcome, kind)


async def test_a_task_that_is_cancelled_says_so_and_the_others_go_on() -> None:
    ends, gate = Ends(), asyncio.Event()

    async def handle(_record: ConsumerRecord) -> None:
        await gate.wait()

    workers = TaskWorkers(handle, ends)
    jobs = [job(offset) for offset in range(3)]
    for one in jobs:
        workers.start(one)
    await asyncio.sleep(0)
    workers.cancel([jobs[1]])
    [outcome] = await ends.wait(1)
    assert ends.found[0][0] is jobs[1]
    assert isinstance(outcome, asyncio.CancelledError)
    gate.set()
    assert (await ends.wait(3))[1:] == [None, None]


async def test_each_record_has_a_task_and_context_variables_of_its_own() -> None:
    var: ContextVar[int] = ContextVar("var", default=-1)
    seen: list[int] = []
    tasks: set[Any] = set()

    async def handle(record: ConsumerRecord) -> None:
        seen.append(var.get())
        var.set(record.offset)
        await asyncio.sleep(0)
        assert var.get() == record.offset
        tasks.add(asyncio.current_task())

    ends = Ends()
    workers = TaskWorkers(handle, ends)
    for offset in range(3):
        workers.start(job(offset))
        assert await ends.wait(offset + 1) == [None] * (offset + 1)
    assert var.get() == -1
    assert (seen, len(tasks)) == ([-1, -1, -1], 3)


class Emptied(deque[Any]):
    """The first time it is found empty, something happens at once, as a thread could do at that moment."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __len__(self) -> int:
        if not super().__len__() and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
            return 0
        return super().__len__()


async def test_a_thread_that_ends_while_the_loop_has_just_looked_is_not_forgotten() -> None:
    """The loop finds nothing more; a thread's job ends; the loop turns to other things."""
    gate = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        if record.offset:
            assert gate.wait(60)

    ends = Ends()
    workers = ThreadWorkers(2, lambda: DirectCall(handle), ends)

    def meanwhile() -> None:
        gate.set()
        while workers._running:
            time.sleep(0.001)
        time.sleep(0.05)  # by now it has notified the loop, or found that it need not

    workers._ended = Emptied(meanwhile)
    for offset in range(2):
        workers.start(job(offset))
    assert await ends.wait(2) == [None, None]
    workers.close()


async def test_jobs_one_after_another_share_a_thread_which_ends_with_them() -> None:
    ends = Ends()
    workers = ThreadWorkers(8, lambda: DirectCall(lambda _record: None), ends)
    for offset in range(5):
        workers.start(job(offset))
        await ends.wait(offset + 1)
    [thread] = workers._threads
    workers.close()
    assert not thread.is_alive()


# --- deserializers ---------------------------------------------------------------------------------------------------


def later(_data: bytes) -> None:
    raise RetryLaterError(5, "the registry does not answer")


def poison(_data: bytes) -> None:
    raise PoisonRecordError("of another kind")


def keep(record: ConsumerRecord) -> None:
    KEPT.append(record)


async def keep_async(record: ConsumerRecord) -> None:
    KEPT.append(record)


KEPT: list[ConsumerRecord] = []

FACES: dict[str, Callable[[Deserializers], Callable[[Ends], Workers]]] = {
    "tasks": lambda given: lambda ends: TaskWorkers(with_deserializers(keep_async, given), ends),
    "threads": lambda given: lambda ends: ThreadWorkers(1, lambda: DirectCall(with_deserializers(keep, given)), ends),
}


@pytest.mark.parametrize("face", FACES)
def test_handlers_get_what_deserializers_make_and_the_job_keeps_its_bytes(face: str) -> None:
    KEPT.clear()
    one = job(7, b'{"a": 1}', b"k")
    assert outcome_of(FACES[face](Deserializers(bytes.decode, json.loads)), one) is None
    [found] = KEPT
    assert (found.key, found.value, found.offset) == ("k", {"a": 1}, 7)
    assert (one.record.key, one.record.value) == (b"k", b'{"a": 1}')


@pytest.mark.parametrize("face", FACES)
def test_a_record_that_cannot_be_deserialized_is_given_up_at_once(face: str) -> None:
    KEPT.clear()
    outcome = outcome_of(FACES[face](Deserializers(None, json.loads)), job(7, b"no json"))
    assert isinstance(outcome, BaseException)
    failure = failure_of(outcome)
    assert (failure.exception, failure.permanent) == ("muster.errors.RecordDeserializationError", True)
    assert failure.message.startswith("the value cannot be deserialized: JSONDecodeError: Expecting value")
    assert "json.decoder.JSONDecodeError: Expecting value" in failure.stacktrace
    assert KEPT == []


@pytest.mark.parametrize(("raised", "permanent", "delay_ms"), [(later, False, 5), (poison, True, None)])
def test_a_deserializer_may_say_that_another_attempt_helps(raised: Any, permanent: bool, delay_ms: int | None) -> None:
    outcome = outcome_of(FACES["tasks"](Deserializers(raised, None)), job(key=b"k"))
    assert isinstance(outcome, BaseException)
    failure = failure_of(outcome)
    assert (failure.permanent, failure.delay_ms) == (permanent, delay_ms)


def test_the_same_error_of_a_handler_is_a_failure_like_others() -> None:
    """It may read from another topic."""
    error = RecordDeserializationError("value", job().record, "ValueError")

    async def handle(_record: ConsumerRecord) -> None:
        raise error

    outcome = outcome_of(
        lambda ends: TaskWorkers(with_deserializers(handle, Deserializers(None, json.loads)), ends), job()
    )
    assert outcome is error
    assert not failure_of(error).permanent


def check_in_process(record: ConsumerRecord) -> None:
    assert record.value == {"a": 1}


@pytest.mark.slow
def test_a_process_deserializes_by_itself() -> None:
    call = ProcessCall(check_in_process, None, json.loads)
    try:
        assert call(job(value=b'{"a": 1}').record) is None
        other = call(job(value=b'{"a": 2}').record)
        assert isinstance(other, HandlerFailure)
        assert other.exception == "AssertionError"
        failure = call(job(value=b"no json").record)
    finally:
        call.close()
    assert isinstance(failure, HandlerFailure)
    assert (failure.exception, failure.permanent) == ("muster.errors.RecordDeserializationError", True)
