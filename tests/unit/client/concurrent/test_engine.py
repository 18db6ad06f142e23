"""The loop behind both faces, with a scripted consumer and producer: what it does when things go wrong."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest

from muster.client.concurrent import engine as module
from muster.client.concurrent.engine import ConcurrentEngine, EngineOptions
from muster.client.concurrent.options import UserOptions, consumer_config
from muster.client.concurrent.outcomes import HandlerFailedError, PoisonRecordError, RetryLaterError, WorkerStartError
from muster.client.concurrent.signals import Signals
from muster.client.concurrent.workers import TaskWorkers
from muster.client.core.concurrent.encoding import Done, encode
from muster.client.core.concurrent.rules import Retry
from muster.errors import ConfigError, ErrorCode, KafkaError, WakeupError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

P0 = TopicPartition("flights", 0)
FOREVER_S = 300.0

pytestmark = pytest.mark.timeout(60)  # only in case of a hang

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Handler = Callable[[ConsumerRecord], Awaitable[None]]


def records(*keys: bytes | None, start: int = 0) -> dict[TopicPartition, list[ConsumerRecord]]:
    return {P0: [ConsumerRecord("flights", 0, offset, 0, 0, key, b"", [], 0) for offset, key in enumerate(keys, start)]}


class Script:
    """Replaces a consumer: hands out the records of the test, and records its calls."""

    def __init__(self, left: OffsetAndMetadata | None = None) -> None:
        self.steps: asyncio.Queue[Any] = asyncio.Queue()
        self.left = left
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.refusals: list[Exception] = []
        self.paused: set[TopicPartition] = set()
        self.limits: list[int] = []
        self.listener: Any = None
        self.began = False
        self._woken = False

    def subscribe(self, topics: Any, *, pattern: Any, listener: Any) -> None:
        self.listener = listener

    async def poll(self, timeout_ms: int, *, max_records: int) -> Any:
        self.limits.append(max_records)
        if not self.began:
            self.began = True
            await self.listener.on_partitions_assigned([P0])
        while True:
            if self._woken:
                self._woken = False
                raise WakeupError("wakeup() was called")
            step = await self.steps.get()
            if callable(step):
                await step()
            elif step:
                return step

    async def commit(self, offsets: Offsets, timeout_ms: int) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup() was called")
        if self.refusals:
            raise self.refusals.pop(0)
        self.commits.append(dict(offsets))

    async def committed(self, partitions: Any) -> Any:
        return {P0: self.left}

    def is_committed(self, offset: int) -> bool:
        return bool(self.commits) and self.commits[-1][P0].offset == offset

    def handled(self) -> dict[TopicPartition, int]:
        return {}

    def assignment(self) -> set[TopicPartition]:
        return {P0}

    def pause(self, partitions: Any) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Any) -> None:
        self.paused -= set(partitions)

    def wakeup(self) -> None:
        self._woken = True
        self.steps.put_nowait(None)

    async def close(self, timeout_ms: int) -> None: ...


class Letters:
    """Replaces the producer of dead letters."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = list(refusals)
        self.sent: list[dict[str, bytes | None]] = []
        self.is_closed = False

    async def send_and_wait(self, topic: str, value: Any, key: Any, *, headers: Any) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(dict(headers))

    async def close(self, timeout_ms: int) -> None:
        self.is_closed = True


def engine(handler: Handler, script: Script, letters: Letters | None = None, **choices: Any) -> ConcurrentEngine:
    config = consumer_config({"bootstrap.servers": "127.0.0.1:1", "group.id": "delays"}, {})
    dead = None if letters is None else "flights-dead"
    chosen: dict[str, Any] = {"topics": "flights", "handle_signals": False, "dead_letter_topic": dead} | choices
    options: EngineOptions = UserOptions(**chosen).options(config)
    made = ConcurrentEngine(config, options, lambda on_end: TaskWorkers(handler, on_end))
    made._consumer = cast(Any, script)
    made._producer = cast(Any, letters)
    return made


def running(
    handler: Handler, script: Script, given: Any, letters: Letters | None = None, **choices: Any
) -> tuple[ConcurrentEngine, asyncio.Future[None]]:
    """A running engine that has been given records."""
    made = engine(handler, script, letters, **choices)
    run = asyncio.ensure_future(made.run())
    script.steps.put_nowait(given)
    return made, run


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def fine(_record: ConsumerRecord) -> None: ...


# --- committing ------------------------------------------------------------------------------------------------------


async def test_it_commits_again_and_again() -> None:
    script = Script()
    it = engine(fine, script, commit_interval_ms=1)
    run = asyncio.ensure_future(it.run())
    for offset in range(3):
        script.steps.put_nowait(records(b"k", start=offset))
        await until(partial(script.is_committed, offset + 1))
    it.stop()
    await run


async def test_a_broker_that_takes_less_metadata_is_sent_less(caplog: pytest.LogCaptureFixture) -> None:
    script, gate = Script(), asyncio.Event()
    script.refusals.append(KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE))

    async def handle(record: ConsumerRecord) -> None:
        if not record.offset:
            await gate.wait()

    it, run = running(handle, script, records(b"a", b"b"), commit_interval_ms=1)
    await until(lambda: script.commits)
    assert script.commits[0][P0] == OffsetAndMetadata(0, 0, "")
    gate.set()
    it.stop()
    await run
    assert script.commits[-1][P0].offset == 2
    assert "commits continue without" in caplog.text


async def test_the_last_commit_goes_without_metadata_if_the_broker_takes_less() -> None:
    """No later commit could store it."""
    script, gate = Script(), asyncio.Event()
    script.refusals.append(KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE))

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 1:
            await gate.wait()

    it, run = running(handle, script, records(b"a", b"b", b"c"), commit_interval_ms=600_000, drain_timeout_ms=20)
    await until(lambda: it.core.counters()["handled"] == 2)
    it.stop()
    await run
    assert [commit[P0] for commit in script.commits] == [OffsetAndMetadata(1, 0, "")]


async def test_a_run_that_is_ended_from_outside_does_not_trust_the_position() -> None:
    """A signal handler of the program may have raised after the position moved, but before its records were there."""
    script = Script()
    it, run = running(fine, script, records(b"a"), commit_interval_ms=600_000)
    await until(lambda: it.core.counters()["handled"] == 1)
    cast(Any, script).handled = lambda: {P0: 100}
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [commit[P0].offset for commit in script.commits] == [1]


async def test_what_a_former_owner_has_done_is_asked_and_skipped() -> None:
    script, seen = Script(OffsetAndMetadata(0, 0, encode(P0, 0, Done(3, (0,), 0)))), list[int]()

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        if record.offset == 3:
            it.stop()

    it = engine(handle, script)
    script.steps.put_nowait(records(None, None, None, None))
    await it.run()
    assert seen == [0, 3]


async def test_a_wakeup_is_for_the_poll_and_not_for_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    """The run is stopped while partitions are handed over: they are committed, and the run ends."""
    script = Script()
    it = engine(fine, script, commit_interval_ms=600_000)

    async def revoke() -> None:
        it.stop()
        await it.on_partitions_revoked([P0])

    script.steps.put_nowait(records(b"k"))
    script.steps.put_nowait(revoke)
    await it.run()
    assert [commit[P0].offset for commit in script.commits] == [1]
    assert caplog.text == ""


# --- back-pressure ---------------------------------------------------------------------------------------------------


async def test_a_partition_that_is_full_is_paused_and_resumed() -> None:
    script, gate = Script(), asyncio.Event()

    async def handle(_record: ConsumerRecord) -> None:
        await gate.wait()

    it, run = running(handle, script, records(*[None] * 20), concurrency=1, max_buffered=16)
    await until(lambda: script.paused)
    gate.set()
    await until(lambda: not script.paused)
    it.stop()
    await run
    assert script.limits[-1] == 16


# --- giving partitions up --------------------------------------------------------------------------------------------


def stuck_but_for(first: int, ends: list[str]) -> Handler:
    """A handler that ends for offsets below `first`; the others run until they are cancelled."""

    async def handle(record: ConsumerRecord) -> None:
        if record.offset >= first:
            try:
                await asyncio.sleep(FOREVER_S)
            except asyncio.CancelledError:
                ends.append(f"{record.offset} was cancelled")
                raise
        ends.append(str(record.offset))

    return handle


@pytest.mark.parametrize("how", ["revoked", "the end"])
async def test_handlers_that_take_too_long_are_cancelled_and_the_rest_is_committed(how: str) -> None:
    script, ends = Script(), list[str]()
    it, run = running(
        stuck_but_for(1, ends), script, records(None, None, None), drain_timeout_ms=100, commit_interval_ms=600_000
    )
    await until(lambda: ends == ["0"])
    if how == "revoked":
        await it.on_partitions_revoked([P0])
    else:
        it.stop()
        await run
    assert sorted(ends) == ["0", "1 was cancelled", "2 was cancelled"]
    assert [commit[P0].offset for commit in script.commits] == [1]
    assert it.core.counters()["dropped"] == 2
    it.stop()
    await run


async def test_partitions_that_are_lost_cancel_at_once_and_commit_nothing() -> None:
    script, ends = Script(), list[str]()
    it, run = running(stuck_but_for(1, ends), script, records(None, None), commit_interval_ms=600_000)
    await until(lambda: ends == ["0"])
    await it.on_partitions_lost([P0])
    await until(lambda: ends == ["0", "1 was cancelled"])
    it.stop()
    await run
    assert script.commits == []


# --- failures --------------------------------------------------------------------------------------------------------


async def test_an_earlier_attempt_does_not_wait_for_a_later_one() -> None:
    script, failed, done = Script(), list[int](), list[int]()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset not in failed:
            failed.append(record.offset)
            raise RetryLaterError([600_000, 30][record.offset])
        done.append(record.offset)

    it, run = running(handle, script, records(b"a"))
    await until(lambda: failed == [0])
    script.steps.put_nowait(records(b"b", start=1))
    await until(lambda: done == [1])
    it.stop()
    await run


async def test_a_dead_letter_that_is_too_large_goes_without_its_stack_trace() -> None:
    script = Script()
    letters = Letters(KafkaError(ErrorCode.MESSAGE_TOO_LARGE))

    async def handle(_record: ConsumerRecord) -> None:
        raise ValueError("never")

    it, run = running(handle, script, records(b"a"), letters, retry=Retry(max_attempts=1))
    await until(lambda: letters.sent)
    it.stop()
    await run
    [headers] = letters.sent
    assert headers["__muster.errors.stacktrace"] == b""
    assert headers["__muster.errors.message"] == b"never"
    assert [commit[P0].offset for commit in script.commits] == [1]
    assert letters.is_closed


@pytest.mark.parametrize("letters", [Letters(), None], ids=["dead letters", "none"])
async def test_the_log_says_at_which_attempt_and_where_a_record_goes(
    letters: Letters | None, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()

    async def handle(_record: ConsumerRecord) -> None:
        raise ValueError("never")

    it, run = running(handle, script, records(b"a"), letters, retry=Retry(max_attempts=2, delay_ms=1))
    await until(lambda: it.core.metrics.failed_attempts == 2)
    it.stop()
    with suppress(HandlerFailedError):
        await run
    said = [one for one in caplog.messages if "attempt" in one]
    goes = "" if letters is None else "; it goes to flights-dead"
    failed = "failed: ValueError: never"
    assert said == [
        f"flights-0, offset 0: attempt 1 of 2 {failed}",
        f"flights-0, offset 0: attempt 2 of 2 {failed}{goes}",
    ]


async def test_a_worker_that_cannot_start_ends_the_run_and_is_no_failure_of_its_record() -> None:
    script, letters = Script(), Letters()

    async def handle(_record: ConsumerRecord) -> None:
        raise WorkerStartError("a worker process ended while it started")

    it = engine(handle, script, letters)
    script.steps.put_nowait(records(b"a", b"a"))
    with pytest.raises(WorkerStartError):
        await it.run()
    assert letters.sent == []
    assert it.core.counters()["failed_attempts"] == 0
    assert [commit[P0].offset for commit in script.commits] in ([], [0])


async def test_a_record_that_fails_for_good_while_the_run_ends_is_reported() -> None:
    """It failed in the turn of the event loop in which the run was stopped: before its partition closes."""
    script = Script()

    async def handle(_record: ConsumerRecord) -> None:
        asyncio.get_running_loop().call_soon(it.stop)
        raise ValueError("never")

    it = engine(handle, script, retry=Retry(max_attempts=1))
    script.steps.put_nowait(records(b"a"))
    with pytest.raises(HandlerFailedError, match="offset 0 of flights-0 could not be handled: ValueError: never"):
        await it.run()


async def test_a_dead_letter_that_is_not_taken_now_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEAD_LETTER_RETRY_S", 0)
    script, letters = Script(), Letters(*[KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3)
    it, run = running(failing(PoisonRecordError("never")), script, records(b"a"), letters, commit_interval_ms=600_000)
    await until(lambda: letters.sent)
    await until(lambda: it.core.counters()["dead_lettered"] == 1)
    it.stop()
    await run
    assert [commit[P0].offset for commit in script.commits] == [1]


async def test_a_dead_letter_that_is_never_taken_ends_the_run() -> None:
    script, refused = Script(), KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    it = engine(failing(PoisonRecordError("never")), script, Letters(refused))
    script.steps.put_nowait(records(b"a"))
    with pytest.raises(HandlerFailedError) as raised:
        await it.run()
    assert raised.value.__cause__ is refused
    assert not script.is_committed(1)


def failing(error: Exception) -> Handler:
    async def handle(_record: ConsumerRecord) -> None:
        raise error

    return handle


async def test_an_invalid_handler_ends_the_run_before_the_next_of_its_key() -> None:
    script, begun = Script(), list[int]()

    async def handle(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        await asyncio.Event().wait()

    it, run = running(handle, script, records(b"a", b"a"), drain_timeout_ms=0)
    await until(lambda: begun)
    [job] = it._running
    it._ended(job, ConfigError("it has only begun its work"))
    it._pump()  # before the run has come to its end
    assert not it._running
    with pytest.raises(ConfigError):
        await run
    assert begun == [0]
    assert not script.is_committed(1)


async def test_a_handler_that_was_cancelled_by_itself_has_failed() -> None:
    """Something that it awaits was cancelled: the record is tried again, because the run itself was not cancelled."""
    script, attempts = Script(), list[int]()

    async def handle(record: ConsumerRecord) -> None:
        attempts.append(record.offset)
        if len(attempts) == 1:
            raise asyncio.CancelledError

    it, run = running(handle, script, records(b"a"), retry=Retry(max_attempts=2, delay_ms=0, max_delay_ms=0))
    await until(lambda: it.core.counters()["handled"] == 1)
    it.stop()
    await run
    assert attempts == [0, 0]


async def test_a_second_stop_does_not_wait_for_handlers() -> None:
    script, ends = Script(), list[str]()
    it, run = running(stuck_but_for(1, ends), script, records(None, None), drain_timeout_ms=200_000)
    await until(lambda: ends == ["0"])
    it.stop()
    await asyncio.sleep(0)
    it.stop(drain=False)
    await run
    assert ends == ["0", "1 was cancelled"]


async def test_the_position_after_the_last_record_is_committed() -> None:
    script = Script()
    it, run = running(fine, script, records(b"a"), commit_interval_ms=1)
    await until(partial(script.is_committed, 1))
    cast(Any, script).handled = lambda: {P0: 5}
    await until(partial(script.is_committed, 5))
    it.stop()
    await run


# --- signals ---------------------------------------------------------------------------------------------------------


async def test_signals_are_put_back_and_those_of_the_program_are_left_alone() -> None:
    loop, reported = asyncio.get_running_loop(), list[int]()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Signals(loop, lambda: reported.append(1), wanted=True):
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: reported)
    assert {number: signal.getsignal(number) for number in before} == before
    own = signal.signal(signal.SIGTERM, lambda *_: reported.append(2))
    try:
        with Signals(loop, lambda: reported.append(3), wanted=True):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, own)
    assert reported == [1, 2]


async def test_the_handler_of_a_spark_session_gives_way_to_a_run() -> None:
    """It raises KeyboardInterrupt in the middle of whatever the program does."""

    class SparkContext:
        def _do_init(self) -> Any:
            def signal_handler(signal: Any, frame: Any) -> None:
                raise KeyboardInterrupt

            return signal_handler

    handler = SparkContext()._do_init()
    handler.__module__, handler.__qualname__ = "pyspark.core.context", "SparkContext._do_init.<locals>.signal_handler"

    reported: list[int] = []
    before = signal.signal(signal.SIGINT, handler)
    try:
        with Signals(asyncio.get_running_loop(), lambda: reported.append(1), wanted=True):
            signal.raise_signal(signal.SIGINT)
            await until(lambda: reported)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_auto_commit_is_off() -> None:
    assert not consumer_config({"group.id": "delays"}, {}).enable_auto_commit


@pytest.fixture(autouse=True)
def reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "muster.client.concurrent")
