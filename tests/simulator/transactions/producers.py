"""Transactional producers that are scripts of raw requests, as clients before and since `transaction.version` 2 send
them: ids, partitions, batches with sequences, offsets, the end; repeated until they are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.records.record_batch import BatchBuilder
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.world import Attempt, Disconnected, World

Code = ErrorCode

REPEATED = frozenset(
    {
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.NOT_COORDINATOR,
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.KAFKA_STORAGE_ERROR,
        Code.REQUEST_TIMED_OUT,
        Code.UNSTABLE_OFFSET_COMMIT,
    }
)
FATAL = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_TXN_STATE})
"""Errors of the coordinator."""
MOST_TRIES = 200
BACKOFF_MS = 20


class Fatal(Exception):  # noqa: N818
    """This producer cannot continue; another one may."""


class Abortable(Exception):  # noqa: N818
    """The transaction must be aborted."""


class Producer:
    """One process with a transactional id. `work` is its program: it calls the methods below."""

    def __init__(self, world: World, transactional_id: str, process: str, *, tv2: bool, timeout_ms: int) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.process = process
        self.tv2 = tv2
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.attempt: Attempt | None = None
        self.position: int | None = None
        """The offset from which it continues reading, if it knows it already."""
        self._count = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[Any] = set()

    async def _settled(
        self, request: Callable[[], Any], version: int, code_in: Callable[[Any], int], *, again: bool
    ) -> tuple[Any, Code, int]:
        """Ask until the answer is not retriable; returns it with the number of requests."""
        for tries in range(1, MOST_TRIES):
            try:
                answer = await self.world.ask(self.process, request(), version, again=again)
            except Disconnected:
                await self.world.sleep(self.world.rng.randint(1, BACKOFF_MS))
                continue
            code = Code(code_in(answer))
            if code not in REPEATED:
                return answer, code, tries
            await self.world.sleep(BACKOFF_MS)
        raise Fatal("nobody answers")

    # -------------------------------------------------------------------------------------------------------------- ids

    async def begin(self, known: bool = False) -> None:
        """InitProducerId; `known` if it sends the ids that it has (KIP-360)."""
        ids = (self.producer_id, self.epoch) if known else (-1, -1)
        request = m.InitProducerIdRequest(self.transactional_id, self.timeout_ms, *ids)

        def asked() -> Any:
            self.world.takes_id(self.transactional_id, self.process)
            return request

        answer, code, _ = await self._settled(asked, 5, lambda found: found.error_code, again=False)
        self.world.takes_id(self.transactional_id, self.process)
        if code:
            raise Fatal(code.name)
        self._take(answer)
        self.world.fenced(self.producer_id, self.epoch)
        self.world.tell(f"{self.process} is producer {self.producer_id}, epoch {self.epoch}")

    def _take(self, answer: Any) -> None:
        if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    # ----------------------------------------------------------------------------------------------------- transactions

    def begin_transaction(self) -> Attempt:
        """Begin a transaction; nothing is sent."""
        self._count += 1
        self._added.clear()
        name = f"{self.process}#{self._count}"
        self.attempt = Attempt(name, self.tv2, self.producer_id, self.epoch)
        self.world.attempts[name] = self.attempt
        return self.attempt

    def _of_transaction(self, code: Code) -> None:
        if code in FATAL or code is Code.INVALID_PRODUCER_EPOCH:
            raise Fatal(code.name)
        if code:
            raise Abortable(code.name)

    async def _add(self, partition: TopicPartition) -> None:
        if self.tv2 or partition in self._added:
            return
        topics = [t.AddPartitionsToTxnTopic(partition.topic, [partition.partition])]
        request = t.AddPartitionsToTxnRequest(
            [], self.transactional_id, self.producer_id, self.epoch, v3_and_below_topics=topics
        )

        def code_in(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        _, code, _ = await self._settled(lambda: request, 3, code_in, again=False)
        self._of_transaction(code)
        self._added.add(partition)

    async def send(self, partition: TopicPartition, *values: str) -> None:
        """Write records, in one batch."""
        attempt = self._attempt()
        await self._add(partition)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        batch = BatchBuilder()
        for value in values:
            batch.append(1_600_000_000_000, None, f"{attempt.name} {value}".encode())
            attempt.sent.append((partition, value))
        built = bytes(
            batch.build(
                producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True
            )
        )
        version = 12 if self.tv2 else 9

        def request() -> Any:
            data = m.PartitionProduceData(partition.partition, bytearray(built))
            return m.ProduceRequest(
                self.transactional_id, -1, 10_000, [m.TopicProduceData(partition.topic, b"", [data])]
            )

        _, code, _ = await self._settled(
            request, version, lambda found: found.responses[0].partition_responses[0].error_code, again=self.tv2
        )
        if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
            attempt.acked += [(partition, value) for value in values]
        elif code is Code.INVALID_PRODUCER_ID_MAPPING:
            raise Fatal(code.name)
        else:
            raise Abortable(code.name)

    async def commit_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Commit an offset in the transaction."""
        attempt = self._attempt()
        if not self.tv2 and group not in self._added:
            added = t.AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
            _, code, _ = await self._settled(lambda: added, 3, lambda found: found.error_code, again=False)
            self._of_transaction(code)
            self._added.add(group)
        where = t.TxnOffsetCommitRequestPartition(partition.partition, offset, -1, attempt.name)
        topics = [t.TxnOffsetCommitRequestTopic(partition.topic, [where])]
        request = t.TxnOffsetCommitRequest(self.transactional_id, group, self.producer_id, self.epoch, topics=topics)
        _, code, _ = await self._settled(
            lambda: request,
            5 if self.tv2 else 3,
            lambda found: found.topics[0].partitions[0].error_code,
            again=self.tv2,
        )
        self._of_transaction(code)
        attempt.offsets.append((group, partition, offset))

    async def end(self, *, commit: bool) -> None:
        """EndTxn."""
        attempt = self._attempt()
        if not attempt.sent and not attempt.offsets and not self._added and commit:
            return
        request = t.EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)

        def asked() -> Any:
            self.world.takes_id(self.transactional_id, self.process)
            attempt.asked.append(commit)
            return request

        version = 5 if self.tv2 else 3
        answer, code, tries = await self._settled(asked, version, lambda found: found.error_code, again=self.tv2)
        self.world.tell(f"{attempt.name} {'commit' if commit else 'abort'}: {code.name}")
        if not code:
            if attempt.reported is not None:
                raise InvariantError(f"{attempt.name} got two reports of how it ended")
            attempt.reported = commit
            if self.tv2:
                self._take(answer)
            return
        attempt.reported_no_commit = commit and tries == 1
        raise Fatal(code.name)

    async def commit_and_die(self) -> None:
        """EndTxn, and nobody waits for the answer."""
        self._attempt().asked.append(True)
        request = t.EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, True)
        self.world.send_once(request, 5 if self.tv2 else 3)

    async def abort(self) -> None:
        """Abort, and get another epoch if the client has to request it."""
        attempt = self._attempt()
        if self.tv2 or attempt.sent or attempt.offsets or self._added:
            await self.end(commit=False)
        if not self.tv2:
            await self.begin(known=True)

    def kill(self) -> None:
        """The process is dead."""

    async def leave(self) -> None:
        """The process ends."""

    def _attempt(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt
