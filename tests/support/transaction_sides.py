"""One transactional id on one broker, used by raw requests; the answers of two brokers can be compared."""

from __future__ import annotations

import time
from typing import Any

from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC, TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.primitives import ZERO_UUID, Request, Struct
from tests.support.brokers import RawClient
from tests.support.written import build_batch

LATEST_S = 30.0
"""Only in case of a hang."""

_HIDDEN = {"throttle_time_ms", "transaction_start_time_ms", "log_append_time_ms"}
_STILL = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class TransactionSide:
    """`reported` has the names of the requests, and their answers; producer ids are named in the order in which they
    appear."""

    def __init__(self, client: RawClient, topic: str, name: str, group: str = "") -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.group = group
        self.producer_id, self.epoch = -1, -1
        self.reported: list[tuple[str, Any]] = []
        self._ids: list[int] = []
        self._sequences: dict[tuple[int, int, int], int] = {}

    def plain(self, value: Any, field: str = "") -> Any:
        """The answer in a form that can be compared."""
        if isinstance(value, t.TopicData) and value.topic == GROUP_METADATA_TOPIC:
            return f"{len(value.partitions)} group(s)"  # the numbers of partitions differ
        if isinstance(value, Struct):
            found = {name: self.plain(getattr(value, name), name) for name in value.__slots__ if name not in _HIDDEN}
            if "transaction_start_time_ms" in value.__slots__:
                found["has begun"] = getattr(value, "transaction_start_time_ms", -1) > 0
            return found
        if isinstance(value, list):
            return sorted([self.plain(each) for each in value], key=repr)
        if field == "producer_id" and value >= 0:
            if value not in self._ids:
                self._ids.append(value)
            return f"id {self._ids.index(value)}"
        if field.endswith("error_code"):
            return ErrorCode(value).name
        if field.endswith("error_message"):
            return bool(value)
        return (
            {self.name: "the id", self.topic: "the topic", self.group: "the group"}.get(value, value)
            if isinstance(value, str)
            else value
        )

    def tell(self, label: str, answer: Any) -> Any:
        """Record an answer."""
        self.reported.append((label, self.plain(answer)))
        return answer

    def ask(self, label: str, request: Request[Any], version: int) -> Any:
        """Send a request, and record the answer."""
        return self.tell(f"{label} v{version}", self.client.ask(request, version))

    # ------------------------------------------------------------------------------------------------------- requests

    def init(self, version: int = 4, ids: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> Any:
        return self.ask("InitProducerId", m.InitProducerIdRequest(self.name, timeout_ms, *ids), version)

    def add(
        self, version: int = 3, ids: tuple[int, int] | None = None, *partitions: TopicPartition, verify: bool = False
    ) -> Any:
        ids = ids or (self.producer_id, self.epoch)
        topics = [
            t.AddPartitionsToTxnTopic(each.topic, [each.partition])
            for each in partitions or (TopicPartition(self.topic, 0),)
        ]
        if version < 4:
            request = t.AddPartitionsToTxnRequest([], self.name, *ids, topics)
        else:
            request = t.AddPartitionsToTxnRequest([t.AddPartitionsToTxnTransaction(self.name, *ids, verify, topics)])
        return self.ask("AddPartitionsToTxn", request, version)

    def add_offsets(self, version: int = 3, ids: tuple[int, int] | None = None) -> Any:
        request = t.AddOffsetsToTxnRequest(self.name, *(ids or (self.producer_id, self.epoch)), self.group)
        return self.ask("AddOffsetsToTxn", request, version)

    def end(self, commit: bool, version: int = 3, ids: tuple[int, int] | None = None) -> Any:
        request = t.EndTxnRequest(self.name, *(ids or (self.producer_id, self.epoch)), commit)
        return self.ask(f"EndTxn, {'commit' if commit else 'abort'}", request, version)

    def produce(
        self,
        version: int = 9,
        ids: tuple[int, int] | None = None,
        *,
        transactional: bool = True,
        partition: int = 0,
        name: str | None = "",
        sequence: int | None = None,
        at_ms: int = 1000,
    ) -> Any:
        producer_id, epoch = ids or (self.producer_id, self.epoch)
        key = (producer_id, epoch, partition)
        at = self._sequences.get(key, 0) if sequence is None else sequence
        batch = build_batch(
            [(at_ms, b"k", b"v", [])],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=at,
            transactional=transactional,
        )
        data = m.TopicProduceData(self.topic, self.topic_id, [m.PartitionProduceData(partition, bytes(batch))])
        request = m.ProduceRequest(self.name if name == "" else name, -1, 10_000, [data])
        answer = self.client.ask(request, version)
        (found,) = answer.responses[0].partition_responses
        if not found.error_code:
            self._sequences[key] = at + 1
        self.reported.append(
            (
                f"Produce v{version}",
                (ErrorCode(found.error_code).name, bool(found.error_message), found.log_start_offset),
            )
        )
        return found

    topic_id = ZERO_UUID
    timeout_ms = 60_000

    def commit_offsets(
        self, version: int = 3, ids: tuple[int, int] | None = None, *, offset: int = 5, **member: Any
    ) -> Any:
        where = t.TxnOffsetCommitRequestPartition(0, offset, -1, "m")
        topics = [t.TxnOffsetCommitRequestTopic(self.topic, [where])]
        request = t.TxnOffsetCommitRequest(
            self.name, self.group, *(ids or (self.producer_id, self.epoch)), topics=topics, **member
        )
        return self.ask("TxnOffsetCommit", request, version)

    def offsets(self, stable: bool) -> Any:
        """The group's committed offset."""
        asked = m.OffsetFetchRequestGroup(
            self.group, topics=[m.OffsetFetchRequestTopics(self.topic, partition_indexes=[0])]
        )
        request = m.OffsetFetchRequest(groups=[asked], require_stable=stable)
        return self.ask(f"OffsetFetch {stable}", request, 8)

    def describe(self) -> Any:
        return self.ask("DescribeTransactions", t.DescribeTransactionsRequest([self.name]), 0).transaction_states[0]

    # --------------------------------------------------------------------------------------------------------- states

    def begin(self) -> TransactionSide:
        """Ids for the producer."""
        answer = self.settled(lambda: self.client.ask(m.InitProducerIdRequest(self.name, self.timeout_ms), 4))
        self.take(answer)
        return self

    def take(self, answer: Any) -> None:
        """The producer has received these ids."""
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.plain(answer)

    @staticmethod
    def settled(ask: Any) -> Any:
        """Repeat the request until its answer does not say that something is still in progress."""
        until = time.monotonic() + LATEST_S
        while True:
            answer = ask()
            if answer.error_code not in _STILL or time.monotonic() > until:
                return answer
            time.sleep(0.005)

    def until_complete(self) -> None:
        """Wait until every marker is written."""
        until = time.monotonic() + LATEST_S
        request = t.DescribeTransactionsRequest([self.name])
        while time.monotonic() < until:
            (found,) = self.client.ask(request, 0).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                return
            time.sleep(0.005)

    def to(self, state: str, tv2: bool) -> TransactionSide:
        """Bring the id to a state."""
        if state == "unknown":
            return self
        self.begin()
        if state == "Empty":
            return self
        self.produce(12) if tv2 else self.add(3)
        if state == "Ongoing":
            return self
        answer = self.end(state == "CompleteCommit", 5 if tv2 else 3)
        self.until_complete()
        if tv2:
            self.take(answer)
        return self
