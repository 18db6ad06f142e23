"""Random requests about transactions, from a seed: by correct producers, by fenced ones, by unknown ones.

Work that a broker does after an answer (markers) is waited for: until then, answers depend on which broker is faster.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import admin_messages as a
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.api import ADVERTISED, ApiKey
from muster.protocol.primitives import ZERO_UUID, Request
from muster.protocol.records.control_records import read_marker
from muster.protocol.records.record_batch import iter_headers, read_records
from tests.support.brokers import RawClient
from tests.support.differential import Ask, Side
from tests.support.same_answers import ready_group
from tests.support.written import build_batch

STEPS = 100
CLIENT = "client"
MOST = 1 << 20
PARTITIONS = 2
LAST_EPOCH = 32_766
TIMEOUT_MS = 300_000
"""Longer than a seed is played: each broker times transactions out at its own time."""
LATEST_S = 20.0
RECORDS_AT_MS = 1_600_000_000_000
WEIGHTS = {
    "init": 12,
    "add_partitions": 12,
    "add_for_brokers": 6,
    "add_offsets": 6,
    "produce": 26,
    "commit_offsets": 10,
    "end": 16,
    "fetch": 8,
    "fetch_offsets": 6,
    "list_offsets": 5,
    "write_markers": 4,
    "describe": 5,
    "list": 3,
    "producers": 5,
    "plain_commit": 3,
}
STATES = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "CompleteAbort", "Dead", "Nonsense", ""]


_NOT_SERVED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

_MAY_END = {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
"""After these an answer may leave a transaction that is being finished."""
_THERE = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}

STRANGER = 7_000_000_000_077
"""A producer id that neither broker assigns: Kafka's begin at 0, muster's follow the time of day in microseconds."""


class RandomTransactions:
    """One seed: three transactional ids, a topic and a group."""

    steps = STEPS

    def __init__(self, seed: int, worn: Sequence[str] = ()) -> None:
        """`worn`: transactional ids that have few epochs left (`wear_out`), which are used together with others."""
        self._dice = random.Random(seed)
        self._prefix = f"txn-{seed}-{uuid.uuid4().hex[:8]}"
        self._names = [*worn, *(f"{self._prefix}-{letter}" for letter in "abc"[len(worn) :])]
        self._worn = worn
        self._ids: dict[str, list[tuple[str, int]]] = {}
        """The producer ids, by their names, and epochs of each transactional id, in order."""
        self._count = 0
        self._sequences: dict[tuple[str, int, int], int] = {}
        self._last: tuple[str, int, int, int, int] = ("", 0, 0, 0, 0)
        """The producer, epoch, partition, first sequence and number of records of the last Produce."""
        self._sides: Sequence[Side] = ()
        self._segments: dict[int, list[int]] = {}
        """Where Kafka may have rolled a segment, by partition (`_note_refused`)."""

    def begin(self, sides: Sequence[Side]) -> None:
        """Create a topic of two partitions, and wait for coordinators."""
        self._sides = sides
        topic = m.CreatableTopic(self._prefix, PARTITIONS, 1, [], [m.CreatableTopicConfig("retention.ms", "-1")])
        for side in sides:
            until_ids_are_given(side.ask)
            while side.ask(m.CreateTopicsRequest([topic], 20_000), 7).topics[0].error_code not in _THERE:
                time.sleep(0.1)  # Kafka's broker lagged behind its own controller
            side.call(ready_group(side.ask, self._prefix, self._prefix), "id of the topic")
            for partition in range(PARTITIONS):
                asked = m.ListOffsetsTopic(self._prefix, [m.ListOffsetsPartition(partition, -1, -1)])
                while side.ask(m.ListOffsetsRequest(-1, 0, [asked]), 4).topics[0].partitions[0].error_code:
                    time.sleep(0.01)
            for name in self._names:
                find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
                while side.ask(find, 4).coordinators[0].error_code:
                    time.sleep(0.01)
        for name in self._worn:
            self._given(name, [(side, side.ask(m.InitProducerIdRequest(name, TIMEOUT_MS), 4)) for side in sides])

    def end(self, sides: Sequence[Side]) -> None:
        """Nothing stays open; the topic is deleted."""
        for side in sides:
            for name in self._names:
                if name in self._ids:
                    _until_settled(side, [name])
                    side.ask(m.InitProducerIdRequest(name, TIMEOUT_MS), 4)
                    _until_settled(side, [name])
            side.ask(m.DeleteTopicsRequest([m.DeleteTopicState(self._prefix)]), 6)

    # --------------------------------------------------------------------------------------------------------- requests

    def next(self, waiting: Collection[str]) -> Ask | None:
        """A request, usually of a transactional id's current producer."""
        kind = self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return getattr(self, f"_{kind}")(self._dice.choice([*self._worn, *self._worn, *self._names]))  # type: ignore[no-any-return]

    def _version(self, key: ApiKey, oldest: int = 0, newest: int = 99) -> int:
        first, last = ADVERTISED[key]
        first, last = max(first, oldest), min(last, newest)
        return last if self._dice.random() < 0.3 else self._dice.randint(first, last)

    def _producer(self, name: str) -> tuple[str, int]:
        """A producer's id, by its name, and epoch: the transactional id's own, or others."""
        dice, known = self._dice, self._ids.get(name, [])
        if not known:
            return "stranger", dice.choice([0, 1, -1])
        producer, epoch = known[-1]
        if dice.random() < 0.72:
            return producer, epoch
        others = [each for ids in self._ids.values() for each in ids]
        return dice.choice(
            [
                (producer, max(epoch - 1, 0)),
                (producer, max(epoch - 2, 0)),
                (producer, epoch + 1),
                (producer, LAST_EPOCH),
                (producer, -1),
                ("stranger", epoch),
                ("none", -1),
                dice.choice(known),
                dice.choice(others),
            ]
        )

    def _transactional_id(self, name: str) -> str:
        return name if self._dice.random() < 0.95 else self._dice.choice(["", f"{self._prefix}-nobody", self._names[0]])

    def _init(self, name: str) -> Ask | None:
        dice = self._dice
        if self._is_fenced_with_its_last_epoch(name):
            return None
        timeout_ms = TIMEOUT_MS if dice.random() < 0.85 else dice.choice([0, -1, 2**31 - 1, 900_000, 900_001])
        known = ("none", -1) if dice.random() < 0.6 else self._producer(name)
        version = self._version(ApiKey.INIT_PRODUCER_ID, oldest=0 if known == ("none", -1) else 3)
        name = self._transactional_id(name)

        def build(side: Side) -> Request[Any]:
            return m.InitProducerIdRequest(name, timeout_ms, _id(side, known[0]), known[1])

        return Ask(CLIENT, version, build)

    def _is_fenced_with_its_last_epoch(self, name: str) -> bool:
        """Whether it would be fenced with its last epoch. Kafka 4.2 then leaves the producer id in place, which was
        fixed later (KAFKA-20090)."""
        if self._ids.get(name, [("", 0)])[-1][1] < LAST_EPOCH:
            return False
        (found,) = self._sides[0].ask(t.DescribeTransactionsRequest([name]), 0).transaction_states
        return bool(found.transaction_state == "Ongoing")

    def _places(self) -> list[t.AddPartitionsToTxnTopic]:
        dice = self._dice
        partitions = dice.choice([[0], [1], [0, 1], [0]])
        if dice.random() < 0.85:
            return [t.AddPartitionsToTxnTopic(self._prefix, partitions)]
        odd = [("no.such.topic", [0]), (self._prefix, [7]), (self._prefix, []), (GROUP_METADATA_TOPIC, [0])]
        some = [t.AddPartitionsToTxnTopic(*dice.choice(odd))]
        return some + [t.AddPartitionsToTxnTopic(self._prefix, [0])] * dice.choice([0, 1])

    def _add_partitions(self, name: str) -> Ask:
        version, producer, places = (
            self._version(ApiKey.ADD_PARTITIONS_TO_TXN, newest=3),
            self._producer(name),
            self._places(),
        )
        name = self._transactional_id(name)

        def build(side: Side) -> Request[Any]:
            return t.AddPartitionsToTxnRequest([], name, _id(side, producer[0]), producer[1], places)

        return Ask(CLIENT, version, build, _without_order)

    def _add_for_brokers(self, name: str) -> Ask:
        """A request as from another broker, about one or two transactional ids."""
        dice = self._dice
        asked = []
        for each in dict.fromkeys([name, *dice.sample(self._names, dice.choice([0, 0, 1]))]):
            producer, partitions = self._producer(each), dice.choice([[0], [1], [0, 1]])
            asked.append((each, producer, dice.random() < 0.6, [t.AddPartitionsToTxnTopic(self._prefix, partitions)]))
        version = self._version(ApiKey.ADD_PARTITIONS_TO_TXN, oldest=4)

        def build(side: Side) -> Request[Any]:
            return t.AddPartitionsToTxnRequest(
                [
                    t.AddPartitionsToTxnTransaction(each, _id(side, producer[0]), producer[1], only_verify, places)
                    for each, producer, only_verify, places in asked
                ]
            )

        return Ask(CLIENT, version, build, _without_order)

    def _add_offsets(self, name: str) -> Ask:
        version, producer = self._version(ApiKey.ADD_OFFSETS_TO_TXN), self._producer(name)
        name, group = self._transactional_id(name), self._group()

        def build(side: Side) -> Request[Any]:
            return t.AddOffsetsToTxnRequest(name, _id(side, producer[0]), producer[1], group)

        return Ask(CLIENT, version, build)

    def _group(self) -> str:
        return self._prefix if self._dice.random() < 0.95 else f"{self._prefix}-other"

    def _produce(self, name: str) -> Ask:
        dice, version = self._dice, self._version(ApiKey.PRODUCE, oldest=3)
        producer, epoch = self._producer(name)
        partition, count = dice.choice([0, 0, 1, 1, 1, 5] if dice.random() < 0.1 else [0, 1]), dice.choice([1, 1, 2, 5])
        first = self._sequences.get((producer, epoch, partition), 0)
        if dice.random() < 0.12:
            first = dice.choice([first + 1, max(first - 1, 0), 0, 7])
        newest = max((each for called, each in self._ids.get(name, []) if called == producer), default=epoch)
        # Without a transaction a newer epoch is accepted, and then refuses the markers: in Kafka the id stays blocked.
        transactional, acks = dice.random() < 0.92 or epoch > newest, dice.choice([-1, -1, -1, 1])
        by = name if dice.random() < 0.95 else dice.choice([None, f"{self._prefix}-nobody", ""])
        records: list[Any] = [(RECORDS_AT_MS, b"k", b"%d" % (first + i), []) for i in range(count)]
        self._last = (producer, epoch, partition, first, count)

        def build(side: Side) -> Request[Any]:
            batch = build_batch(
                records,
                producer_id=_id(side, producer),
                producer_epoch=epoch,
                base_sequence=first if producer != "none" else -1,
                transactional=transactional,
            )
            where = (self._prefix, ZERO_UUID) if version < 13 else ("", side.given["id of the topic"])
            data = m.TopicProduceData(where[0], where[1], [m.PartitionProduceData(partition, bytes(batch))])
            return m.ProduceRequest(by, acks, 10_000, [data])

        return Ask(CLIENT, version, build, _without_times_of_appends, alone=True)

    def _commit_offsets(self, name: str) -> Ask:
        dice, version, producer = self._dice, self._version(ApiKey.TXN_OFFSET_COMMIT), self._producer(name)
        where = t.TxnOffsetCommitRequestPartition(
            dice.choice([0, 0, 1, 9]), dice.randrange(50), -1, dice.choice(["", "m", None])
        )
        topics = [t.TxnOffsetCommitRequestTopic(self._prefix if dice.random() < 0.95 else "no.such.topic", [where])]
        member: dict[str, Any] = {}
        if version >= 3 and dice.random() < 0.15:
            member = dice.choice(
                [
                    {"generation_id": 3, "member_id": "m"},
                    {"generation_id": -1, "member_id": "m"},
                    {"generation_id": 0},
                    {"group_instance_id": "i"},
                ]
            )
        name, group = self._transactional_id(name), self._group()

        def build(side: Side) -> Request[Any]:
            return t.TxnOffsetCommitRequest(name, group, _id(side, producer[0]), producer[1], topics=topics, **member)

        return Ask(CLIENT, version, build, alone=True)

    def _end(self, name: str) -> Ask:
        dice, version, producer = self._dice, self._version(ApiKey.END_TXN), self._producer(name)
        commit, name = dice.random() < 0.6, self._transactional_id(name)

        def build(side: Side) -> Request[Any]:
            return t.EndTxnRequest(name, _id(side, producer[0]), producer[1], commit)

        return Ask(CLIENT, version, build)

    def _fetch(self, name: str) -> Ask:
        dice, version = self._dice, self._version(ApiKey.FETCH)
        asked = m.FetchPartition(dice.choice([0, 1]), -1, dice.choice([0, 0, 0, 1, 2, 5, 9]))
        asked.partition_max_bytes = dice.choice([MOST, MOST, 1, 100, 300])
        isolation = dice.choice([0, 1, 1, 1])

        def build(side: Side) -> Request[Any]:
            where = (self._prefix, ZERO_UUID) if version < 13 else ("", side.given["id of the topic"])
            return m.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=MOST,
                isolation_level=isolation,
                session_id=0,
                session_epoch=-1,
                topics=[m.FetchTopic(where[0], where[1], [asked])],
            )

        later = [end for end in self._segments.get(asked.partition, ()) if end > asked.fetch_offset]
        return Ask(CLIENT, version, build, partial(_only_what_batches_say, until=min(later, default=MOST)))

    def _fetch_offsets(self, name: str) -> Ask:
        version, stable = self._version(ApiKey.OFFSET_FETCH, oldest=7, newest=9), self._dice.random() < 0.6
        if version < 8:
            topics = [m.OffsetFetchRequestTopic(self._prefix, [0, 1])]
            before = m.OffsetFetchRequest(self._prefix, topics, require_stable=stable)
            return Ask(CLIENT, version, lambda side: before)
        some = self._dice.choice([None, [m.OffsetFetchRequestTopics(self._prefix, partition_indexes=[0, 1])]])
        request = m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequestGroup(self._prefix, topics=some)], require_stable=stable
        )
        return Ask(CLIENT, version, lambda side: request)

    def _list_offsets(self, name: str) -> Ask:
        dice, version = self._dice, self._version(ApiKey.LIST_OFFSETS, oldest=2)
        at = dice.choice([-1, -1, -2, -3, RECORDS_AT_MS, RECORDS_AT_MS + 1])
        asked = m.ListOffsetsTopic(self._prefix, [m.ListOffsetsPartition(dice.choice([0, 1]), -1, at)])
        request = m.ListOffsetsRequest(-1, dice.choice([0, 1, 1]), [asked])
        return Ask(CLIENT, version, lambda side: request, _without_times_of_markers)

    def _write_markers(self, name: str) -> Ask:
        """Ends a transaction as an operator does. Epochs above the current one would block a transactional id in
        Kafka."""
        dice, version = self._dice, self._version(ApiKey.WRITE_TXN_MARKERS)
        known = self._ids.get(name, [("stranger", 0)])
        producer, epoch = known[-1] if dice.random() < 0.7 else dice.choice(known)
        partitions, commit = dice.choice([[0], [1], [0, 1], [9]]), dice.random() < 0.3
        topic = self._prefix if dice.random() < 0.95 else "no.such.topic"
        coordinator_epoch, of_version = dice.choice([0, 0, 0, -1]), dice.choice([0, 2]) if version >= 2 else 0

        def build(side: Side) -> Request[Any]:
            places = [t.WritableTxnMarkerTopic(topic, partitions)]
            marker = t.WritableTxnMarker(_id(side, producer), epoch, commit, places, coordinator_epoch, of_version)
            return t.WriteTxnMarkersRequest([marker])

        return Ask(CLIENT, version, build, _without_order)

    def _describe(self, name: str) -> Ask:
        names = self._dice.choice([[name], self._names, [name, "", f"{self._prefix}-nobody"], [name, name], []])
        request = t.DescribeTransactionsRequest(names)
        return Ask(CLIENT, 0, lambda side: request, _without_begin)

    def _list(self, name: str) -> Ask:
        dice, version = self._dice, self._version(ApiKey.LIST_TRANSACTIONS)
        states = dice.sample(STATES, dice.choice([0, 0, 1, 2, 3]))
        producer = self._producer(name)[0] if dice.random() < 0.3 else None
        # With 0, a transaction that began in this millisecond is not listed, and the brokers' clocks differ.
        duration = dice.choice([-1, -1, -2, 10**9]) if version >= 1 else -1
        pattern = dice.choice([None, f"{self._prefix}.*", f"{self._prefix}-a", "", "(", "a"]) if version >= 2 else None

        def build(side: Side) -> Request[Any]:
            ids = [] if producer is None else [_id(side, producer)]
            return t.ListTransactionsRequest(states, ids, duration, pattern)

        return Ask(CLIENT, version, build, self._only_ours)

    def _only_ours(self, answer: Any) -> None:
        """Other seeds are played at the same time, and whether a transaction that begins now is listed depends on
        luck."""
        found = [each for each in answer["transaction_states"] if each["transactional_id"] in self._names]
        answer["transaction_states"] = sorted(found, key=repr)
        answer["unknown_state_filters"] = sorted(answer["unknown_state_filters"])

    def _producers(self, name: str) -> Ask:
        partitions = self._dice.choice([[0], [1], [0, 1], [9]])
        request = a.DescribeProducersRequest([a.TopicRequest(self._prefix, partitions)])
        return Ask(CLIENT, 0, lambda side: request, _without_last_times)

    def _plain_commit(self, name: str) -> Ask:
        where = m.OffsetCommitRequestPartition(self._dice.choice([0, 1]), self._dice.randrange(50), -1, "plain")
        request = m.OffsetCommitRequest(
            self._prefix, topics=[m.OffsetCommitRequestTopic(self._prefix, partitions=[where])]
        )
        return Ask(CLIENT, self._version(ApiKey.OFFSET_COMMIT, oldest=5, newest=9), lambda side: request)

    # ---------------------------------------------------------------------------------------------------------- answers

    def learn(self, ask: Ask, answers: Sequence[tuple[Side, Any]]) -> None:
        """Record which ids were assigned, and which batches were accepted. Both brokers finish what they have begun."""
        if any(answer == "closed" for _, answer in answers):
            return
        ours, request = answers[0][1], ask.build(answers[0][0])
        match ours:
            case m.InitProducerIdResponse() | t.EndTxnResponse():
                name = request.transactional_id  # type: ignore[attr-defined]
                if all(not answer.error_code and answer.producer_id >= 0 for _, answer in answers):
                    self._given(name, answers)
                ends = any(answer.error_code in _MAY_END for _, answer in answers)
                for side, _ in answers if ends else ():
                    _until_settled(side, [each for each in self._names if each == name])
            case t.WriteTxnMarkersResponse():
                self._note_refused(ours)
            case m.ProduceResponse() if not ours.responses[0].partition_responses[0].error_code:
                producer, epoch, partition, first, count = self._last
                self._sequences[producer, epoch, partition] = first + count

    def _note_refused(self, answer: t.WriteTxnMarkersResponse) -> None:
        """For a marker that comes long after the segment's records Kafka rolls a segment before checking the marker,
        which it may refuse. A Fetch ends with a segment."""
        for topic in answer.markers[0].topics:
            for partition in topic.partitions:
                if partition.error_code and topic.name == self._prefix and partition.partition_index < PARTITIONS:
                    asked = m.ListOffsetsTopic(
                        self._prefix, [m.ListOffsetsPartition(partition.partition_index, -1, -1)]
                    )
                    (found,) = self._sides[0].ask(m.ListOffsetsRequest(-1, 0, [asked]), 4).topics[0].partitions
                    self._segments.setdefault(partition.partition_index, []).append(found.offset)

    def _given(self, name: str, answers: Sequence[tuple[Side, Any]]) -> None:
        side, ours = answers[0]
        called = side.names.get(("producer_id", ours.producer_id))
        if called is None:
            called = f"producer {self._count}"
            self._count += 1
            for each, answer in answers:
                each.call(answer.producer_id, called, "producer_id")
        self._ids.setdefault(name, []).append((called, ours.producer_epoch))


def _id(side: Side, producer: str) -> int:
    found: int = {"none": -1, "stranger": STRANGER}.get(producer, side.given.get(producer, -1))
    return found


def _until_settled(side: Side, names: list[str]) -> None:
    """Wait until every marker is written."""
    until = time.monotonic() + LATEST_S
    while names and time.monotonic() < until:
        found = side.ask(t.DescribeTransactionsRequest(names), 0).transaction_states
        if not any(
            each.transaction_state.startswith("Prepare") or each.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            for each in found
        ):
            return
        time.sleep(0.002)


def _without_order(answer: Any) -> None:
    """Kafka's results are in the order of its hash tables."""
    for value in answer.values():
        if isinstance(value, list):
            value[:] = sorted((_sorted(each) for each in value), key=repr)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    return sorted((_sorted(each) for each in value), key=repr) if isinstance(value, list) else value


def _without_begin(answer: Any) -> None:
    """Whether a transaction has begun."""
    for state in answer["transaction_states"]:
        state["transaction_start_time_ms"] = state["transaction_start_time_ms"] > 0
    _without_order(answer)


def _without_times_of_appends(answer: Any) -> None:
    for topic in answer["responses"]:
        for partition in topic["partition_responses"]:
            partition["record_errors"] = [each["batch_index"] for each in partition["record_errors"]]


def _without_times_of_markers(answer: Any) -> None:
    """A marker has the time at which the broker wrote it."""
    for topic in answer["topics"]:
        for partition in topic["partitions"]:
            if partition["timestamp"] > RECORDS_AT_MS:
                partition["timestamp"] = "a marker's"


def _without_last_times(answer: Any) -> None:
    """Like `_without_times_of_markers`; each broker has its own coordinator epochs."""
    for topic in answer["topics"]:
        for partition in topic["partitions"]:
            for producer in partition["active_producers"]:
                if producer["last_timestamp"] > RECORDS_AT_MS:
                    producer["last_timestamp"] = "a marker's"
                producer["coordinator_epoch"] = producer["coordinator_epoch"] >= 0
            partition["active_producers"].sort(key=repr)
    _without_order(answer)


def _only_what_batches_say(answer: Any, until: int) -> None:
    """Each broker has its own producer ids, and times of its markers. Kafka looks up aborted transactions to the next
    entry of a sparse index, so it may list some that begin after the batches in the answer.

    `until`: batches from this offset onwards do not count.
    """
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            records = bytes(partition["records"] or b"")
            headers = [(at, header) for at, header in iter_headers(records) if header.base_offset < until]
            end = max((header.last_offset for _, header in headers), default=-1)
            aborted = partition["aborted_transactions"]
            if aborted is not None:
                partition["aborted_transactions"] = [each for each in aborted if each["first_offset"] <= end]
            partition["records"] = [
                (
                    header.base_offset,
                    header.attributes,
                    header.producer_epoch,
                    header.base_sequence,
                    header.partition_leader_epoch,
                    read_marker(records, at, header).committed  # type: ignore[union-attr]
                    if header.is_control
                    else [(one.key, one.value, one.timestamp) for one in read_records(records, at, header)],
                )
                for at, header in headers
            ]


def until_ids_are_given(ask: Callable[[Request[Any], int], Any]) -> None:
    """Wait until a broker has producer ids; Kafka's first one, 0, is also the value in answers without one."""
    while True:
        given = ask(m.InitProducerIdRequest(None, TIMEOUT_MS), 4)
        if given.producer_id > 0:
            return
        time.sleep(0.01)


def until_transactions_are_served(bootstrap: str) -> None:
    """Wait until a broker serves every partition of `__transaction_state` and of `__consumer_offsets`."""
    names = [f"ready-{number}" for number in range(1000)]
    states = t.DescribeTransactionsRequest(names)
    groups = [m.OffsetFetchRequestGroup(name, topics=None) for name in names]
    with RawClient(bootstrap) as client:
        until_ids_are_given(client.ask)
        for kind in (0, 1):
            while (
                client.ask(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=names[:1]), 4)
                .coordinators[0]
                .error_code
            ):
                time.sleep(0.01)
        while any(each.error_code in _NOT_SERVED for each in client.ask(states, 0).transaction_states):
            time.sleep(0.01)
        while any(each.error_code for each in client.ask(m.OffsetFetchRequest(groups=groups), 8).groups):
            time.sleep(0.01)


def wear_out(bootstrap: str, transactional_id: str, epochs: int = 32_762) -> None:
    """Make a broker give this many epochs to a transactional id: one request, repeated without waiting for answers."""
    frame = b"".join(framing.encode_request(m.InitProducerIdRequest(transactional_id, TIMEOUT_MS), 4, 1, "wear"))
    at_once = 500
    with RawClient(bootstrap) as client:
        until_ids_are_given(client.ask)
        find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        while client.ask(find, 4).coordinators[0].error_code:
            time.sleep(0.01)
        while client.ask(m.InitProducerIdRequest(transactional_id, TIMEOUT_MS), 4).error_code:
            time.sleep(0.01)
        with client.socket.makefile("rb") as answers:
            for first in range(0, epochs, at_once):
                count = min(at_once, epochs - first)
                client.socket.sendall(frame * count)
                for _ in range(count):
                    answers.read(int.from_bytes(answers.read(4)))
