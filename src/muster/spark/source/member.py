"""The query's member, in a Python process on the driver: a thread that keeps it alive, and Spark's calls into it.

The thread runs an event loop with `QueryCore` and the client's driver: heartbeats are sent while Spark runs batches,
and while it makes no calls at all. Every call from Spark's thread runs in that loop and is waited for, always with a
timeout: without a broker a query is idle, but does not hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from muster.client.config import ClientConfig, ConsumerConfig
from muster.client.core.events import WARNING
from muster.client.net.driver import CoreLoop, Driver
from muster.client.net.loop import LoopThread
from muster.client.plain.cluster import connect
from muster.errors import ConfigError, KafkaConnectionError, KafkaTimeoutError, MusterError
from muster.model import TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark.offsets import Claim, Claims, from_json
from muster.spark.progress.batch_done import BatchDoneSocket, digest
from muster.spark.source.batch import find_partitions
from muster.spark.source.checkpoint import Checkpoint
from muster.spark.source.claims import BatchState, QueryClaims
from muster.spark.source.options import SourceOptions
from muster.spark.source.query_core import QueryCore

log = logging.getLogger("muster.spark")

T = TypeVar("T")

FRESH_MS = 100
"""Ends looked up less than this long ago are fresh enough: Spark may ask every 10 ms."""

COMMIT_WAIT_MS = 5_000
"""How long the next batch waits for the last one's commit, unless commits are failing."""

DOUBTS_WAIT_MS = 10_000
"""How long an answer to Spark waits until it is known whether a position is still valid."""

LAST_BATCH_MS = 2_000
"""How long an ending query waits for the message that its last batch was finished."""

LAST_COMMIT_MS = 6_000
"""How long it then waits for the commit of finished batches. A rebalance may have to end first."""

LEAVE_MS = 2_500
"""How long it then waits for the LeaveGroup response."""

GOODBYE_MS = LAST_BATCH_MS + LAST_COMMIT_MS + LEAVE_MS

CHECKPOINT_EVERY_MS = 200
"""How often a drain checks whether the batch that it waits for is in Spark's commit log."""


class BatchPacing:
    """Holds batches back until there are enough records (`minOffsetsPerTrigger`), or the last batch was long enough ago
    (`maxTriggerDelay`).

    The first trigger is never held back, and starts the clock even if it finds nothing, as with Spark's own source.
    """

    def __init__(self, min_rows: int | None, max_delay_ms: int) -> None:
        self._min_rows = min_rows
        self._max_delay_ms = max_delay_ms
        self._last: int | None = None

    def holds_back(self, rows: int, now: int) -> bool:
        """Whether a trigger now, with this many records to read, should make no batch."""
        if self._min_rows is None:
            return False
        due = self._last is None or now - self._last >= self._max_delay_ms
        if not due and rows < self._min_rows:
            return True
        self._last = now
        return False


class QueryMember:
    """One query's member. Nothing happens before the first call; Spark calls from one thread."""

    def __init__(self, options: SourceOptions, name: str = "") -> None:
        self._options = options
        self._checkpoint = Checkpoint(options.checkpoint)
        self._config = _named(options, self._checkpoint)
        self._pace = BatchPacing(options.min_rows, options.max_trigger_delay_ms)
        self._claims = QueryClaims(
            options.resume,
            options.replay,
            name or query_name(options),
            keeps_all=not options.commits,
            notes_first=options.grouped,
            fails_on_loss=options.fail_on_data_loss,
            records_first=options.starting.moves,
            share=options.share,
        )
        self._claims.state.known = self._checkpoint.has_state()
        self._core = QueryCore(options, self._config, self._claims)
        self._driver = Driver(self._config, self._core.consumer.metadata)
        self._loop = CoreLoop(self._driver, [self._core.consumer.metadata, self._core], self._on_turn)
        self._thread = LoopThread("muster-spark-member")
        self._targets: dict[TopicPartition, int] | None = None
        self._started = False
        self._first = True
        self._committed_batch: int | None = None
        self._batch_done: BatchDoneSocket | None = None
        self._next_checkpoint_check = 0
        self._closed = False
        self._closing = threading.Lock()

    @property
    def group_id(self) -> str | None:
        """The group that offsets are committed to."""
        return self._options.group_id if self._options.commits else None

    # --- Spark's calls -----------------------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Read no further than the current ends of the logs."""
        options = self._options
        cluster = connect(self._config.narrowed(ClientConfig))
        times = dict.fromkeys(options.share.of(find_partitions(cluster, options)), LATEST_TIMESTAMP)
        self._targets = cluster.list_offsets(times, 1 if options.read_committed else 0)

    def latest(self, start: dict[str, Any], max_rows: int | None) -> dict[str, Any]:
        """The next batch's end; `start` itself if there is nothing to read now."""
        return self._run(self._latest(start, max_rows))

    def planned(self, end: dict[str, Any]) -> Claims:
        """What the batch with this end reads."""
        return self._run(self._planned(end))

    def finished(self, end: dict[str, Any]) -> None:
        """Spark has committed the batch with this end."""
        self._run(self._finished(end))

    def unread(self) -> Claims:
        """The unread ranges of this member's partitions, as far as their ends are known. A log may
        end before the position while that is in doubt."""
        return self._run(self._unread())

    def group_progress(self) -> dict[str, Any]:
        """The group as this member knows it, and the last committed batch, for the query's progress report."""
        options, core = self._options, self._core
        found: dict[str, Any] = {} if options.group_id is None else {"group": options.group_id}
        if options.grouped:
            found |= {"generation": core.generation, "rebalances": core.rebalances}
        if options.commits and self._committed_batch is not None:
            found["committedBatch"] = self._committed_batch
        return found

    def close(self) -> None:
        """Commit batches that are known to be done, and leave the group (rule 11). Safe to call twice, and from any
        thread."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._started:
                with contextlib.suppress(MusterError):
                    self._thread.run(self._say_goodbye(), GOODBYE_MS + 1_000)
                self._thread.close(1_000)

    # --- in the loop -------------------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._started:
            self._started = True
            self._thread.run(self._loop.start())
        return self._thread.run(work)

    def _now(self) -> int:
        return self._driver.now()

    async def _wait(self, predicate: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until the predicate holds. Returns False on timeout. Raises an error that is not
        retriable."""
        held = await self._loop.wait_for(lambda: predicate() or self._core.fatal is not None, timeout_ms)
        if self._core.fatal is not None:
            raise self._core.fatal
        return held

    async def _begin(self) -> None:
        if self._batch_done is None and self._claims.started:
            self._batch_done = BatchDoneSocket(self._claims.name, self._on_batch_done)
        self._core.begin(self._now())
        # Comparing the checkpoint with what is already known of the cluster may reveal a loss.
        self._core.take_losses()
        if self._core.fatal is not None:
            raise self._core.fatal
        self._loop.wakeup()

    async def _latest(self, start: dict[str, Any], max_rows: int | None) -> dict[str, Any]:
        # Spark asks what follows a batch only once that batch is in its commit log: this is the signal to commit.
        self._claims.begin_from(start)
        await self._begin()
        # With Trigger.AvailableNow and Trigger.Once, answering `start` would end the query although there may be more
        # to read.
        last = self._targets is not None or max_rows is None
        await self._commit_what_is_done()
        while True:
            await self._wait_for_partitions(last)
            await self._refresh_ends(last)
            if not last or self._core.settled:
                break
        ends = self._core.bounds.offsets()
        if self._targets is not None:
            ends = {p: min(end, self._targets[p]) for p, end in ends.items() if p in self._targets}
        if self._claims.all_acknowledged:
            self._committed_batch = from_json(start).seq or None
        # No await from here on: ownership must not change until the claim is made.
        if not last and self._pace.holds_back(self._claims.waiting(ends), self._now()):
            max_rows = 0
        return self._claims.latest(start, ends, max_rows, self._core.generation)

    async def _commit_what_is_done(self) -> None:
        if not self._core.commits_fail:
            await self._wait(lambda: self._core.all_committed or self._core.commits_fail, COMMIT_WAIT_MS)

    async def _wait_for_partitions(self, last: bool) -> None:
        """Wait until the group is stable: every time if this may be the last answer, otherwise only the first time."""
        core, timeout_ms = self._core, self._options.join_timeout_ms
        if not last and not self._first:
            return
        held = await self._wait(lambda: core.settled if last else core.ready(self._now()), timeout_ms)
        if not held:
            if not core.broker_answered:
                raise KafkaConnectionError(f"{core.no_broker()}; join.timeout ({timeout_ms} ms) has passed")
            where = f"group {self._options.group_id}" if self._options.grouped else "the partitions' positions"
            rest = f"{where} did not settle within join.timeout ({timeout_ms} ms)"
            if last:
                raise KafkaTimeoutError(rest)
            log.log(WARNING, "%s; reading starts when it does", rest)
        self._first = False
        core.has_begun()

    async def _refresh_ends(self, last: bool) -> None:
        """Look up where the logs end, and wait until each position is known to be valid, or was lost and reset."""
        bounds = self._core.bounds
        since = self._now() - FRESH_MS

        def is_fresh() -> bool:
            if self._claims.draining:
                return True
            waits = bounds.missing(since) if last else not bounds.fresh(since, self._now())
            return not waits and not bounds.in_doubt and not (last and self._claims.without_own_commit())

        if not is_fresh():
            bounds.want(self._now())
            self._loop.wakeup()
            timeout_ms = self._options.join_timeout_ms if last else DOUBTS_WAIT_MS
            if not await self._wait(is_fresh, timeout_ms) and last:
                waiting = sorted({*bounds.missing(since), *bounds.in_doubt, *self._claims.without_own_commit()})
                raise KafkaTimeoutError(
                    f"{', '.join(map(str, waiting))} could not be looked up within join.timeout ({timeout_ms} ms)"
                )

    async def _unread(self) -> Claims:
        positions = self._claims.positions()
        ends = self._core.bounds.offsets()
        return {p: Claim(at, ends[p]) for p, at in sorted(positions.items()) if p in ends}

    async def _planned(self, end: dict[str, Any]) -> Claims:
        claims = self._claims.planned(end)
        await self._begin()
        if self._claims.to_trim():
            # If the group does not settle in time, unowned partitions are left to their next owner, which starts at the
            # group's committed offset.
            await self._wait(lambda: self._core.settled, self._options.join_timeout_ms)
            self._claims.trim()
            claims = self._claims.planned(end)
        return claims

    async def _finished(self, end: dict[str, Any]) -> None:
        self._claims.finished(end)
        self._loop.wakeup()
        await self._commit_what_is_done()

    def _on_batch_done(self, offset_digest: str, keeps_state: bool) -> None:
        """Spark's driver reports that a batch is in the commit log: commit it without waiting for the next trigger."""
        if keeps_state:
            self._claims.state.known = True
        end = self._claims.batch_in_flight
        if end is not None and digest(end) == offset_digest:
            self._claims.finished(end)
            self._loop.wakeup()

    async def _say_goodbye(self) -> None:
        self._check_checkpoint()
        if self._batch_done is not None and self._claims.batch_state is BatchState.PLANNED:
            # It may have finished just now, with the message still on its way, as with Trigger.Once.
            with contextlib.suppress(MusterError):
                await self._loop.wait_for(lambda: self._claims.batch_in_flight is None, LAST_BATCH_MS)
        if self._batch_done is not None:
            self._batch_done.close()
        self._loop.wakeup()
        with contextlib.suppress(MusterError):
            # During a rebalance a commit is refused, and made again after it. The sequence: another member joins
            # and gets its share; the batch finishes here while this member's SyncGroup response is still on its way.
            # Leaving now would make the partition's next owner read the batch again.
            await self._loop.wait_for(lambda: self._core.all_committed or self._core.commits_are_futile, LAST_COMMIT_MS)
        left: list[bool] = []
        if self._options.grouped and self._loop.error is None:
            self._core.consumer.listening = False
            self._core.consumer.unsubscribe(self._now(), lambda: left.append(True), "the query has ended")
            with contextlib.suppress(MusterError):
                await self._loop.wait_for(lambda: bool(left), LEAVE_MS)
        await self._loop.close()

    # --- in every iteration ------------------------------------------------------------------------------------------

    def _on_turn(self, now: int) -> None:
        for event in self._core.take_events():
            self._loop.attend(event, log)
        if self._claims.draining and self._claims.batch_in_flight is not None and now >= self._next_checkpoint_check:
            self._next_checkpoint_check = now + CHECKPOINT_EVERY_MS
            asyncio.get_running_loop().call_later(CHECKPOINT_EVERY_MS / 1000, self._loop.wakeup)
            if self._check_checkpoint():
                self._loop.wakeup()

    def _check_checkpoint(self) -> bool:
        """Whether Spark's commit log says that the current batch is done, although Spark has not called yet."""
        end = self._claims.batch_in_flight
        if end is None or not self._checkpoint.is_done(end):
            return False
        self._claims.finished(end)
        return True


def query_name(options: SourceOptions) -> str:
    """A name for a new query; always the same if its checkpoint is known."""
    return Checkpoint(options.checkpoint).query_id() or uuid.uuid4().hex[:16]


def _named(options: SourceOptions, checkpoint: Checkpoint) -> ConsumerConfig:
    """The member's settings; `group.instance.id=query` becomes a name that survives restarts of the query."""
    config = options.consumer_config()
    if config.group_instance_id == "query":
        if options.checkpoint is None:
            raise ConfigError(
                "group.instance.id is query, which needs the option checkpointLocation: it identifies the query"
            )
        name = checkpoint.query_id() or hashlib.sha1(options.checkpoint.encode()).hexdigest()[:16]
        config = dataclasses.replace(config, group_instance_id=f"spark-{name}")
    return config
