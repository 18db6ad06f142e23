"""The loop of both concurrent consumers: polls, starts handlers, commits finished records.

All rules are in `core/concurrent`. Everything here runs in one event loop, except handlers in threads and
processes. Only a rebalance and the end of the run wait for handlers, both up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

from muster.client.concurrent.outcomes import (
    HandlerFailedError,
    Outcome,
    UnreadableRecordError,
    WorkerStartError,
    failure_of,
)
from muster.client.concurrent.signals import Signals
from muster.client.concurrent.workers import OnEnd, Workers
from muster.client.config import ClientConfig, ConsumerConfig
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.listener import RebalanceListener
from muster.client.core.concurrent import dead_letters
from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.rules import Rules
from muster.client.core.concurrent.work import Job, State
from muster.client.producer.async_producer import AsyncProducer
from muster.errors import (
    CommitFailedError,
    ConfigError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    MusterError,
    WakeupError,
)
from muster.model import OffsetAndMetadata, TopicPartition

log = logging.getLogger("muster.client.concurrent")

T = TypeVar("T")

_POLL_MS = 1_000
_CANCEL_S = 1.0
"""How long cancelled handlers may take to clean up."""
_COMMIT_MS = 10_000
"""How long the last commit of a partition is retried."""
_CLOSE_MS = 10_000
_DEAD_LETTER_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The user's options in addition to the consumer's settings."""

    topics: tuple[str, ...] = ()
    pattern: Any = None
    rules: Rules = field(default_factory=Rules)
    dead_letter_topic: str | None = None
    commit_interval_ms: int = 1_000
    drain_timeout_ms: int = 30_000
    handle_signals: bool = True


class ConcurrentEngine(RebalanceListener):
    """One run of one consumer."""

    def __init__(
        self, config: ConsumerConfig, options: EngineOptions, make_workers: Callable[[OnEnd], Workers]
    ) -> None:
        self.core = ConcurrentCore(options.rules)
        self._config = config
        self._options = options
        self._consumer = AsyncConsumer({setting.name: getattr(config, setting.name) for setting in fields(config)})
        self._workers = make_workers(self._ended)
        self._producer: AsyncProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        """Set when a job has ended or the run must end."""
        self._running: dict[Job, None] = {}
        self._pumping = False
        """Whether `_pump` is about to be called."""
        self._burials: set[asyncio.Task[None]] = set()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_at: int | None = None
        self._begun = False
        self._reading = False
        self._stopping = False
        self._abandoning = False
        self._interrupted = False
        """Whether reading ended with an exception, which may have been raised at any point."""
        self._error: BaseException | None = None
        self._cause: BaseException | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle records until `stop`, or until something fails for good."""
        if self._begun:
            raise IllegalStateError("run() was called before: create a new one")
        self._begun = True
        self._loop = asyncio.get_running_loop()
        with Signals(self._loop, self._on_signal, wanted=self._options.handle_signals):
            commits: asyncio.Task[None] | None = None
            try:
                self._consumer.subscribe(self._options.topics or None, pattern=self._options.pattern, listener=self)
                commits = self._loop.create_task(self._commit_regularly())
                self._reading = True
                await self._read()
            except Exception as error:
                self._interrupted = True
                self._error = self._error or error
            except BaseException:  # cancelled, or a signal handler of the program has raised
                self._abandoning = self._interrupted = True
                raise
            finally:
                self._stopping, self._reading = True, False
                await self._wind_up(commits)
        if self._error is not None:
            raise self._error

    def stop(self, *, drain: bool = True) -> None:
        """End the run, in the event loop's thread."""
        self._stopping = True
        self._abandoning = self._abandoning or not drain
        self._news.set()
        self._consumer.wakeup()

    def stop_soon(self, *, drain: bool = True) -> None:
        """End the run; from any thread, before the run, or after it."""
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                self._loop.call_soon_threadsafe(partial(self.stop, drain=drain))

    def _on_signal(self) -> None:
        if self._stopping:
            log.warning("a second signal: running handlers are abandoned")
        self.stop(drain=not self._stopping)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    async def _read(self) -> None:
        while not self._stopping:
            limit = min(self._config.max_poll_records, self.core.poll_limit)
            try:
                records = await self._consumer.poll(_POLL_MS, max_records=limit)
            except WakeupError:
                continue
            if records:
                self.core.add(records)
                self._pump()
                self._flow()

    async def _wind_up(self, commits: asyncio.Task[None] | None) -> None:
        if commits is not None:
            commits.cancel()
        try:
            await self._hand_over(self.core.partitions)
            self._pump()  # the last jobs may have failed for good
        finally:
            try:
                await self._consumer.close(_CLOSE_MS)
            except MusterError as error:
                log.warning("the consumer could not be closed cleanly: %s", error)
            for burial in list(self._burials):
                burial.cancel()
            if self._producer is not None:
                await self._producer.close(0)
            if self._retry_timer is not None:
                self._retry_timer.cancel()
            self._workers.close()

    # --- handling ----------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        assert self._loop is not None
        return int(self._loop.time() * 1000)

    def _pump(self) -> None:
        """Start the jobs that may start. An internal error ends the run: asyncio would only log it."""
        self._pumping = False
        try:
            self._start()
        except Exception as error:
            self._fail(error)

    def _start(self) -> None:
        core, now = self.core, self._now()
        while (job := core.start(now)) is not None:
            self._running[job] = None
            self._workers.start(job)
        for job in core.take_dead_letters():
            burial = asyncio.ensure_future(self._write_to_dead_letters(job))
            self._burials.add(burial)
            burial.add_done_callback(self._burials.discard)
        if core.fatal is not None and self._error is None:
            self._fail(self._handler_failed(core.fatal))
        if core.may_resume:
            self._flow()
        if core.next_retry() != self._retry_at:
            self._arm()

    def _arm(self) -> None:
        assert self._loop is not None
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        due = self._retry_at = self.core.next_retry()
        self._retry_timer = None if due is None else self._loop.call_at((due + 1) / 1000, self._pump)

    def _flow(self) -> None:
        pause, resume = self.core.flow()
        if pause or resume:
            assigned = self._consumer.assignment()
            self._consumer.pause([partition for partition in pause if partition in assigned])
            self._consumer.resume([partition for partition in resume if partition in assigned])

    def _ended(self, job: Job, outcome: Outcome) -> None:
        """A job has ended. Many jobs end in one turn of the event loop: their successors start together."""
        self._running.pop(job, None)
        try:
            if outcome is None:
                self.core.succeeded(job)
            elif isinstance(outcome, asyncio.CancelledError) and (job.is_void or job.progress.closing):
                self.core.cancelled(job)
            else:
                self._failed(job, outcome)
        except Exception as error:
            self._fail(error)  # asyncio would only log it, and the run would wait for this job forever
        self._news.set()
        if not self._pumping:
            self._pumping = True
            assert self._loop is not None
            self._loop.call_soon(self._pump)

    def _failed(self, job: Job, outcome: Any) -> None:
        if isinstance(outcome, ConfigError | WorkerStartError | KeyboardInterrupt | SystemExit):
            # Not the record's fault: the next one would fail too, or the program wants to end.
            self._error = self._error or outcome
            self.core.halt(job)
            self.stop()
            return
        failure = failure_of(outcome)
        self.core.failed(job, failure, self._now())
        if self.core.fatal is job:
            cause = outcome.error if isinstance(outcome, UnreadableRecordError) else outcome
            self._cause = cause if isinstance(cause, BaseException) else None
        record, most = job.record, self._options.rules.retry.max_attempts
        after = f"; it goes to {self._options.dead_letter_topic}" if job.state is State.DEAD_LETTER else ""
        log.warning(
            "%s-%d, offset %d: attempt %d of %d failed: %s: %s%s",
            *(record.topic, record.partition, record.offset, job.attempts, most),
            *(failure.exception, failure.message, after),
        )

    def _handler_failed(self, job: Job) -> HandlerFailedError:
        record, failure = job.record, job.failure
        why = f"{failure.exception}: {failure.message}" if failure is not None else "unknown"
        text = f"offset {record.offset} of {record.topic}-{record.partition} could not be handled: {why}"
        if self._options.dead_letter_topic is None:
            text += " (set dead_letter_topic to write it there and continue with the others)"
        error = HandlerFailedError(text, record)
        error.__cause__ = self._cause
        return error

    # --- dead letters ------------------------------------------------------------------------------------------------

    async def _write_to_dead_letters(self, job: Job) -> None:
        """Write a record to the dead letter topic, retrying as long as that may help."""
        brief = False
        while not job.is_void:
            try:
                await self._write_dead_letter(job, brief=brief)
            except Exception as error:
                code = error.code if isinstance(error, KafkaError) else None
                too_large = code is ErrorCode.MESSAGE_TOO_LARGE and not brief
                brief = brief or too_large
                if not too_large and not (isinstance(error, KafkaError) and error.retriable):
                    self._cause = error
                    log.error("a dead letter cannot be written to %s: %s", self._options.dead_letter_topic, error)
                    self.core.not_buried(job)
                    break
                log.warning("a dead letter could not yet be written to %s: %s", self._options.dead_letter_topic, error)
                await asyncio.sleep(0 if too_large else _DEAD_LETTER_RETRY_S)
            else:
                self.core.buried(job)
                break
        else:
            self.core.not_buried(job)
        self._news.set()
        self._pump()

    async def _write_dead_letter(self, job: Job, *, brief: bool) -> None:
        record, topic = job.record, self._options.dead_letter_topic
        assert topic is not None
        if self._producer is None:
            common = {setting.name: getattr(self._config, setting.name) for setting in fields(ClientConfig)}
            self._producer = AsyncProducer(common | {"client_id": ""})
        headers = dead_letters.headers(job, self._config.group_id or "", brief=brief)
        await self._producer.send_and_wait(topic, record.value, record.key, headers=headers)

    # --- committing --------------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_ms / 1000)
            await self._commit(None, max(_COMMIT_MS, self._options.commit_interval_ms))

    async def _commit(self, partitions: Iterable[TopicPartition] | None, timeout_ms: int) -> None:
        if not self._interrupted:  # otherwise records before the position may not have been handed out
            self.core.move_to(self._consumer.handled())
        offsets = self.core.to_commit(partitions)
        if not offsets:
            return
        try:
            await self._awake(partial(self._consumer.commit, offsets, timeout_ms))
        except CommitFailedError as error:
            log.info("offsets were not committed: %s", error)
        except MusterError as error:
            if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_METADATA_TOO_LARGE:
                self.core.limit_metadata(0)
                text = "the broker's offset.metadata.max.bytes is below Kafka's default"
                log.warning("%s: commits continue without metadata, so a restart repeats more records", text)
                if any(what.metadata for what in offsets.values()):
                    await self._commit(partitions, timeout_ms)  # now, because it may be the last one
            else:
                log.warning("offsets were not committed: %s", error)
        else:
            self.core.committed(offsets)

    async def _awake(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the consumer. `stop` wakes it up to end a poll, not other calls."""
        woken = False
        try:
            while True:
                try:
                    return await ask()
                except WakeupError:
                    woken = True
        finally:
            if woken and self._reading:
                self._consumer.wakeup()

    # --- rebalances, and the end -------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Read from the commit's metadata what the previous owner had finished."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        if partitions:
            try:
                found = await self._awake(partial(self._consumer.committed, partitions))
            except MusterError as error:
                log.warning("progress metadata is unreadable; records will be processed again: %s", error)
        for partition in partitions:
            self.core.assign(partition, found.get(partition))

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Let running jobs end, and commit their records."""
        await self._hand_over(partitions)
        self._pump()

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Other members own the partitions now: what is finished here no longer counts."""
        self.core.give_up(partitions)
        self._workers.cancel(self._jobs_of(partitions))

    async def _hand_over(self, partitions: list[TopicPartition]) -> None:
        """Wait for running jobs, up to the limit; cancel the rest; commit what is finished."""
        self.core.close(partitions)
        await self._until_ended(partitions, self._options.drain_timeout_ms / 1000, abandon=True)
        if late := self._jobs_of(partitions):
            log.warning("%d handlers were still running when their partitions had to be given up", len(late))
            self._workers.cancel(late)
            await self._until_ended(partitions, _CANCEL_S, abandon=False)
        await self._commit(partitions, _COMMIT_MS)
        self.core.give_up(partitions)

    async def _until_ended(self, partitions: list[TopicPartition], seconds: float, *, abandon: bool) -> None:
        """Wait for the jobs of some partitions; with `abandon`, only until the run must end immediately."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.core.is_waited_for(partitions) and not (abandon and self._abandoning):
                    self._news.clear()
                    await self._news.wait()

    def _jobs_of(self, partitions: Iterable[TopicPartition]) -> list[Job]:
        gone = set(partitions)
        return [job for job in self._running if job.progress.partition in gone]
