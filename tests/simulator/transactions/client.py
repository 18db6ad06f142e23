"""A process whose producer is muster's own: the whole `AsyncProducer` in the world's time, over the world's network.

It has the interface of `producers.Producer`, so a life can use either. In addition to the checks of the life, it checks
what the client guarantees: a call is over within its timeout; one that timed out may only be repeated, and then reports
the outcome; a commit that succeeds has acknowledged every record, at the offset where it is; every record is settled,
once and in time; a fatal error has a reason, and every call raises it; nothing of an ended transaction is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest import mock

from muster.client.producer import producer_loop
from muster.client.producer.async_producer import AsyncProducer
from muster.errors import ErrorCode, IllegalStateError, KafkaTimeoutError, MusterError
from muster.model import GroupMetadata, OffsetAndMetadata, RecordMetadata, TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.transaction_messages import EndTxnRequest
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.producers import MOST_TRIES, Abortable, Fatal
from tests.simulator.transactions.wire import ClientDriver
from tests.simulator.transactions.world import Attempt, World

NEVER_MS = 1 << 40
LATE_MS = 50
"""How long after its timeout a call may end, and after its own a record may be settled."""


class ClientProducer:
    """One process. From `v2_from_ms` on, brokers report `transaction.version` 2."""

    def __init__(self, world: World, transactional_id: str, process: str, *, v2_from_ms: int, timeout_ms: int) -> None:
        rng = world.rng
        self.world = world
        self.process = process
        self.attempt: Attempt | None = None
        self.position: int | None = None
        self.group = GroupMetadata("")
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._begun_at = 0
        self._since = NEVER_MS
        """When it first requested its ids."""
        self.is_hasty = True
        """Whether calls occasionally have short timeouts."""
        self._count = 0
        self._is_dead = False
        self._done: dict[int, int] = {}
        """In the transaction: the records that were acknowledged, by number, and their offsets."""
        self._refused_commits = 0
        self._open: dict[tuple[str, int], int] = {}
        """The records that are not settled, and when they were sent."""
        self._waiting_offsets: list[tuple[str, TopicPartition, int]] = []
        """Commits of offsets that are still in flight although their call has timed out."""
        request_timeout_ms = rng.choice((1_000, 3_000))
        with mock.patch.object(producer_loop, "random", rng):
            self._client = AsyncProducer(
                transactional_id=transactional_id,
                client_id=process,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=request_timeout_ms,
                delivery_timeout_ms=request_timeout_ms + rng.choice((20, 2_000, 20_000)),
                max_block_ms=rng.choice((1_000, 5_000)),
                retry_backoff_ms=20,
                retry_backoff_max_ms=100,
                reconnect_backoff_ms=5,
                reconnect_backoff_max_ms=50,
                linger_ms=rng.choice((0, 0, 5, 20)),
                batch_size=rng.choice((100, 16_384)),
                max_in_flight_requests_per_connection=rng.choice((1, 5)),
            )
        engine: Any = self._client._engine
        self._engine = engine
        self._driver: Any = ClientDriver(
            world, process, engine.config, engine.metadata, lambda: world.now >= v2_from_ms
        )
        self._driver.on_sent, self._driver.on_answer = self._sent, self._answered
        engine.driver = engine.loop.driver = self._driver
        self._driver.loop.on_end.append(self.kill)

    # --- requests and answers -------------------------------------------------------------------------------------

    def _sent(self, request: Any) -> None:
        if isinstance(request, EndTxnRequest):
            self.world.takes_id(self._transactional_id, self.process)
            self._attempt().asked.append(request.committed)
        elif isinstance(request, InitProducerIdRequest):
            self.world.takes_id(self._transactional_id, self.process)
            self._since = min(self._since, self.world.now)

    def _answered(self, request: Any, answer: Any) -> None:
        if isinstance(answer, InitProducerIdResponse):
            self.world.takes_id(self._transactional_id, self.process)
        if isinstance(answer, InitProducerIdResponse) and not answer.error_code:
            self.world.fenced(answer.producer_id, answer.producer_epoch)
            self.world.tell(f"{self.process} is producer {answer.producer_id}, epoch {answer.producer_epoch}")
        if isinstance(request, EndTxnRequest):
            self.world.tell(f"{self._attempt().name} EndTxn {request.committed}: {ErrorCode(answer.error_code).name}")
            self._refused_commits += bool(request.committed and answer.error_code)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _call(self, name: str, call: Callable[..., Awaitable[Any]], *arguments: Any) -> bool:
        """Make a call. Returns False if it timed out. Raises Abortable, Fatal."""
        limit = self.world.rng.choice((20, 200, 2_000, None)) if self.is_hasty else None
        began, until = self.world.now, self._engine.config.max_block_ms if limit is None else limit
        try:
            await call(*arguments, timeout_ms=limit)
        except MusterError as error:
            if isinstance(error, KafkaTimeoutError) and not (error.abortable or error.fatal):
                if self.world.now < began + until:
                    raise InvariantError(f"{self.process}: {name} raised too early: {error}") from error
                self.world.tell(f"{self.process}: {name} is not over after {until} ms")
                return False
            self._raise(error, name)
        finally:
            if self.is_late(began, until):
                raise InvariantError(f"{self.process}: {name} took {self.world.now - began} ms, not {until}")
        return True

    def is_late(self, began: int, limit: int) -> bool:
        """Whether something takes longer than allowed. A process that was suspended may only just have begun it."""
        is_late = self.world.now > max(began, self._driver.loop.thawed_at) + limit + LATE_MS
        return bool(is_late and not self._is_dead)

    def _raise(self, error: MusterError, name: str) -> None:
        self.world.tell(f"{self.process}: {name}: {error!r}")
        if error.abortable == error.fatal:
            raise InvariantError(f"{self.process}: {name} raised {error!r}, neither abortable nor fatal") from error
        if error.abortable:
            raise Abortable(str(error)) from error
        self._check_fatal(error)
        self._check_reason(error)
        raise Fatal(str(error)) from error

    def _check_fatal(self, error: MusterError) -> None:
        """Every call raises the fatal error."""
        current = self._engine.transactions
        for call in (current.initialize, current.begin, current.commit, current.abort, current.check_send):
            try:
                call()
            except MusterError as again:
                if type(again) is type(error) and again.fatal and str(again) == str(error):
                    continue
                raise InvariantError(f"{self.process} ended with {error!r}, {call} raises {again!r}") from again
            raise InvariantError(f"{self.process} ended with {error!r}, and takes {call}")

    def _check_reason(self, error: MusterError) -> None:
        """Another process has taken the transactional id, or the transaction took too long."""
        taken = self.world.taken[self._transactional_id]
        is_alone = all(process == self.process or at < self._since for process, at in taken.items())
        is_young = self.world.now < self._begun_at + self._timeout_ms
        if is_alone and is_young and self.world.is_lasting:
            raise InvariantError(f"{self.process} has ended without a reason: {error!r}") from error

    async def begin(self) -> None:
        """init_transactions, until it is complete."""
        for _ in range(MOST_TRIES):
            if await self._call("init_transactions", self._client.init_transactions):
                return
        raise Fatal("nobody answers")

    def begin_transaction(self) -> Attempt:
        """Begin a transaction."""
        attempt = self.note_attempt()
        self._engine.transactions.begin()
        return attempt

    def note_attempt(self) -> Attempt:
        """A new transaction is begun."""
        self._count += 1
        self._begun_at = self.world.now
        name, current = f"{self.process}#{self._count}", self._engine.transactions
        book = current.sequences
        self.attempt = Attempt(name, current.is_v2, book.producer_id, book.producer_epoch, by_client=True)
        self.world.attempts[name] = self.attempt
        self._done.clear()
        self._refused_commits = 0
        self._waiting_offsets.clear()
        return self.attempt

    async def append(self, partition: TopicPartition, value: str) -> None:
        """Pass a record to the producer. Raises MusterError."""
        attempt = self._attempt()
        key = (attempt.name, len(attempt.sent))
        attempt.sent.append((partition, value))
        self._open[key] = self.world.now
        try:
            await self._client.send(
                partition.topic,
                f"{attempt.name} {value}".encode(),
                partition=partition.partition,
                timestamp_ms=1_600_000_000_000,
                on_delivery=partial(self._delivered, attempt, key),
            )
        except MusterError:
            del self._open[key]
            attempt.sent.pop()
            raise

    async def send(self, partition: TopicPartition, *values: str) -> None:
        """Write records; occasionally wait until they are acknowledged."""
        for value in values:
            try:
                await self.append(partition, value)
            except MusterError as error:
                self._raise(error, "send")
        if self.world.rng.random() < 0.3:
            await self.flush()

    async def flush(self) -> None:
        """Wait a while until all records are acknowledged."""
        try:
            await self._client.flush(self.world.rng.choice((5, 1_000)) if self.is_hasty else 1_000)
        except KafkaTimeoutError:
            return

    def _delivered(
        self, attempt: Attempt, key: tuple[str, int], place: RecordMetadata | None, error: MusterError | None
    ) -> None:
        if self._is_dead:
            return
        began = self._open.pop(key, None)
        if began is None:
            raise InvariantError(f"record {key} was settled twice")
        config = self._engine.config
        if self.is_late(began, config.delivery_timeout_ms + config.max_block_ms):
            raise InvariantError(f"record {key} was settled {self.world.now - began} ms after it was sent")
        if place is not None:
            self._done[key[1]] = place.offset
            attempt.acked = [attempt.sent[number] for number in sorted(self._done)]
            if place.offset >= 0:
                attempt.places[key[1]] = place.offset
        else:
            self.world.tell(f"{key} was not written: {error}")

    async def commit_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Commit an offset in the transaction. If it takes too long, the transaction is aborted, or continues."""
        attempt = self._attempt()
        offsets = {partition: OffsetAndMetadata(offset, metadata=attempt.name)}
        metadata = self.group if self.group.group_id == group else GroupMetadata(group)
        if await self._call("send_offsets", self._client.send_offsets_to_transaction, offsets, metadata):
            attempt.offsets.append((group, partition, offset))
        elif self.world.rng.random() < 0.5:
            raise Abortable("the offsets take too long")
        else:
            self._waiting_offsets.append((group, partition, offset))

    async def end(self, *, commit: bool) -> None:
        """Commit or abort, until it is complete."""
        attempt = self._attempt()
        try:
            await self._end(commit)
        except (Abortable, Fatal):
            attempt.reported_no_commit |= attempt.asked.count(True) == 1 and self._refused_commits == 1
            raise
        attempt.reported = commit
        self.world.tell(f"{attempt.name} is {'committed' if commit else 'aborted'}")
        if commit:
            attempt.offsets += self._waiting_offsets
            if len(attempt.acked) < len(attempt.sent):
                raise InvariantError(f"{attempt.name} is committed without {attempt.sent}: {attempt.acked}")
        self._check_forgotten()

    async def _end(self, commit: bool) -> None:
        name = "commit_transaction" if commit else "abort_transaction"
        call = self._client.commit_transaction if commit else self._client.abort_transaction
        for _ in range(MOST_TRIES):
            if await self._call(name, call):
                return
            self._check_nothing_else(commit)
        raise Fatal("nobody answers")

    def _check_nothing_else(self, commit: bool) -> None:
        """Check, when the outcome is unknown, that only the same call is allowed."""
        current = self._engine.transactions
        if current.error is not None:
            return
        other = current.abort if commit else current.commit
        for call in (other, current.begin, current.initialize, current.check_send):
            try:
                call()
            except IllegalStateError:
                continue
            raise InvariantError(f"{self.process} takes {call} though it is not known how {self._attempt().name} ended")

    def _check_forgotten(self) -> None:
        core, current = self._engine.core, self._engine.transactions
        kept = {
            "bytes": core.buffered_bytes,
            "partitions": current.partitions | current.to_add,
            "offsets": list(current.offsets),
            "batches": [queue for queue in core._accumulator.queues.values() if queue],
            "requests": [
                batches for requests in core._under_way.values() for batches in requests if not _done(batches)
            ],
            "begun": current.is_begun or current.may_be_begun,
            "records": self._open,
        }
        if any(kept.values()):
            raise InvariantError(f"{self._attempt().name} has ended, and {self.process} keeps {kept}")

    async def abort(self) -> None:
        """Abort."""
        await self.end(commit=False)

    # --- the end of the process --------------------------------------------------------------------------------------

    async def commit_and_die(self) -> None:
        """The process is killed in the middle of a commit."""
        try:
            self._engine.transactions.commit()
        except MusterError as error:
            self._raise(error, "commit_transaction")
        self._engine.loop.wakeup()
        await self.world.sleep(self.world.rng.randint(0, 15))
        self.kill()

    def kill(self) -> None:
        """The process is killed at once."""
        if self._is_dead:
            return
        self._is_dead = True
        self.world.takes_id(self._transactional_id, self.process)  # its request may be in flight
        self._driver.kill()
        loop = self._engine.loop
        loop._closed = self._client._closed = True
        if loop._timer is not None:
            loop._timer.cancel()
        if self._engine._watching is not None:
            self._engine._watching.cancel()

    async def leave(self) -> None:
        """The process ends: already dead, killed now, or closed properly."""
        if self._is_dead or self.world.rng.random() < 0.5:
            self.kill()
            return
        limit = self.world.rng.choice((0, 100, 2_000))
        began = self.world.now
        await self._client.close(limit)
        if self.is_late(began, limit):
            raise InvariantError(f"the close of {self.process} took {self.world.now - began} ms, not {limit}")
        if self._open:
            raise InvariantError(f"{self.process} is closed and has not settled {self._open}")
        self.kill()

    def _attempt(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt


def _done(batches: list[Any]) -> bool:
    return all(batch.done for batch in batches)
