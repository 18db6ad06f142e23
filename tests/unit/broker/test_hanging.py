"""Which transactions hang: those that no coordinator knows, and only if that is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from muster.broker.links.links import Links
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions import hanging, service
from muster.broker.transactions.hanging import HangingTransactions, ids_of_slots
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.coordinator.transaction_runtime import TransactionRuntime
from muster.errors import ErrorCode
from muster.log import OngoingTransaction
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Node, TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.group_partitions import group_partition
from muster.protocol.records.control_records import TxnMarker
from tests.support.brokers import RawClient, in_thread, running
from tests.support.transaction_sides import TransactionSide

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HERE, THERE = Node(1, "here", 1), Node(2, "there", 2)


def test_there_is_an_id_for_each_slot() -> None:
    slots = [3, 17, 49]
    assert [group_partition(name, 50) for name in ids_of_slots(slots, 50)] == slots


class World:
    """Two brokers with two slots each; `entries` are the ids that coordinators have, `failing` which requests fail
    how."""

    def __init__(self) -> None:
        self.open: dict[TopicPartition, list[OngoingTransaction]] = {}
        self.in_slots: list[tuple[int, OngoingTransaction]] | None = []
        self.entries: dict[str, tuple[int, list[TopicPartition]]] = {}
        self.leaders: dict[Node, list[int]] | None = {HERE: [0, 2], THERE: [1, 3]}
        self.epochs = [0, 0, 0, 0]
        self.epoch = 0
        """The epoch of these entries."""
        self.aborted: list[tuple[int, TopicPartition]] = []
        self.asked: list[str] = []
        self.before: dict[int, Callable[[], Any]] = {}
        """What happens before the n-th request."""
        self.answers: dict[int, Any] = {}
        """The answer to the n-th request."""
        self.looks = HangingTransactions(
            cast(Partitions, self),
            self,
            cast(PartitionLocator, self),
            cast(Links, self),
            cast(TransactionRuntime, self),
            self._abort,
        )

    # what the class calls
    def led(self) -> list[Any]:
        class Log:
            def __init__(self, where: TopicPartition, found: list[OngoingTransaction]) -> None:
                self.topic_partition = where
                self.open_transactions = lambda: found

        return [Log(where, found) for where, found in self.open.items()]

    def open_in_slots(self) -> Any:
        return self.in_slots

    def coordinators(self) -> Any:
        return self.leaders

    def coordinator_epochs(self) -> list[int]:
        return list(self.epochs)

    def is_here(self, node: Node) -> bool:
        return node == HERE

    def ask(self, node: Node, purpose: object, request: Any, oldest: int, done: Any) -> None:
        self._answer([1, 3], request, done)

    def describe(self, request: Any, done: Any) -> None:
        self._answer([0, 2], request, done)

    def list_transactions(self, request: Any, done: Any) -> Generator[None, None, None]:
        self.describe(request, done)
        yield

    def _answer(self, slots: list[int], request: Any, done: Any) -> None:
        number = len(self.asked)
        self.asked.append(type(request).__name__)
        self.before.get(number, lambda: None)()
        mine = {name: found for name, found in self.entries.items() if group_partition(name, 4) in slots}
        if number in self.answers:
            done(self.answers[number])
        elif isinstance(request, t.ListTransactionsRequest):
            states = [
                t.ListTransactionsResponseTransactionState(name, producer_id, "Ongoing")
                for name, (producer_id, _) in mine.items()
                if producer_id in request.producer_id_filters
            ]
            done(t.ListTransactionsResponse(transaction_states=states))
        else:
            done(
                t.DescribeTransactionsResponse(
                    transaction_states=[self._state(slots, n) for n in request.transactional_ids]
                )
            )

    def _state(self, slots: list[int], name: str) -> t.DescribeTransactionsResponseTransactionState:
        found = t.DescribeTransactionsResponseTransactionState(0, name)
        if group_partition(name, 4) not in slots:
            found.error_code = ErrorCode.NOT_COORDINATOR
        elif name not in self.entries:
            found.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        else:
            found.producer_epoch = self.epoch
            found.topics = [t.TopicData(where.topic, [where.partition]) for where in self.entries[name][1]]
        return found

    def _abort(self, each: OngoingTransaction, where: TopicPartition) -> None:
        self.aborted.append((each.producer_id, where))

    def opens(self, where: TopicPartition, producer_id: int, first_offset: int = 5, epoch: int = 0) -> None:
        self.open.setdefault(where, []).append(OngoingTransaction(producer_id, epoch, -1, first_offset, 0))

    async def look(self, looks: int = 1) -> None:
        """Check, at most this many times."""
        self.looks.check_soon()
        for _ in range(looks):
            await asyncio.sleep(0.02)
        self.looks.stop()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(hanging, "CHECK_AFTER_S", 0.01)
    return World


async def test_what_no_coordinator_has_is_aborted(world: Callable[[], World]) -> None:
    it = world()
    it.opens(T0, 1)
    it.opens(T1, 1)
    it.opens(T1, 2, 6)
    it.in_slots = [(7, OngoingTransaction(3, 0, -1, 1, 0))]
    it.entries = {"x": (1, [T1]), "y": (2, [T1]), "z": (9, [T0])}
    await it.look()
    assert it.aborted == [(1, T0), (3, TopicPartition(GROUP_METADATA_TOPIC, 7))]


async def test_one_of_a_later_epoch_than_its_coordinators_is_aborted(world: Callable[[], World]) -> None:
    """The coordinator has lost that epoch: the partition would refuse its marker, and readers would wait forever."""
    it = world()
    it.opens(T0, 1, epoch=3)
    it.opens(T1, 1, epoch=4)
    it.entries, it.epoch = {"x": (1, [T0, T1])}, 3
    await it.look()
    assert it.aborted == [(1, T1)]


async def test_without_open_transactions_nobody_is_asked(world: Callable[[], World]) -> None:
    it = world()
    await it.look()
    assert it.asked == []


async def test_without_a_topic_no_coordinator_has_any(world: Callable[[], World]) -> None:
    it = world()
    it.opens(T0, 1)
    it.leaders = {}
    await it.look()
    assert it.aborted == [(1, T0)]


@pytest.mark.parametrize("what", ["leaders", "in_slots"])
async def test_it_waits_for_coordinators_and_for_groups_that_are_read(world: Callable[[], World], what: str) -> None:
    it = world()
    it.opens(T0, 1)
    kept = getattr(it, what)
    setattr(it, what, None)
    it.looks.check_soon()
    await asyncio.sleep(0.03)
    assert it.asked == []
    assert it.aborted == []
    setattr(it, what, kept)
    await it.look(3)
    assert it.aborted == [(1, T0)]


REFUSED = [
    (0, None),
    (1, None),
    (2, None),
    (1, t.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)),
    (0, t.DescribeTransactionsResponse(transaction_states=[])),
    (2, t.DescribeTransactionsResponse(transaction_states=[])),
]


@pytest.mark.parametrize(("number", "answer"), REFUSED)
async def test_what_a_coordinator_does_not_say_is_not_mistaken_for_a_no(
    world: Callable[[], World], number: int, answer: Any
) -> None:
    it = world()
    it.opens(T0, 1)
    it.answers = {number: answer}
    it.looks._check()  # now, so that there is no other check before its outcome is seen
    assert it.aborted == []
    it.answers = {}
    await it.look(3)
    assert it.aborted == [(1, T0)]


async def test_a_coordinator_that_comes_again_meanwhile_is_asked_again(world: Callable[[], World]) -> None:
    it = world()
    it.opens(T0, 1)

    def change() -> None:
        it.epochs[1] += 1
        it.entries["x"] = (1, [T0])

    it.before = {5: change}
    await it.look(4)
    assert it.aborted == []
    assert len(it.asked) == 12


@pytest.mark.parametrize("ends", [True, False])
async def test_what_ended_while_the_coordinators_were_asked_is_left_alone(
    world: Callable[[], World], ends: bool
) -> None:
    """The sequence: the transaction is open; its marker is written, and the coordinator forgets it; the producer may
    begin its next transaction; the coordinators are asked."""
    it = world()
    it.opens(T0, 1, 5)

    def end() -> None:
        it.open.clear()
        if not ends:
            it.opens(T0, 1, 8)

    it.before = {4: end}
    await it.look()
    assert it.aborted == []


@pytest.mark.parametrize(("known", "sent"), [(4, 4), (-1, 0)])
async def test_an_abort_is_repeated_while_the_partitions_groups_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int, sent: int
) -> None:
    """The marker has the coordinator epoch that the partition knows: it would refuse an older one."""
    monkeypatch.setattr(service, "ABORT_AGAIN_S", 0.01)
    where, written = TopicPartition(GROUP_METADATA_TOPIC, 7), asyncio.Event()
    markers: list[TxnMarker] = []

    def write(marker: TxnMarker, places: list[TopicPartition], done: Callable[[list[ErrorCode]], None]) -> None:
        assert places == [where]
        markers.append(marker)
        done([ErrorCode.NOT_LEADER_OR_FOLLOWER if len(markers) == 1 else ErrorCode.NONE])
        if len(markers) == 2:
            written.set()

    async with running(tmp_path) as broker, asyncio.timeout(120):
        monkeypatch.setattr(broker.transactions.writer, "write_all", write)
        broker.transactions._abort_hanging(OngoingTransaction(9, 2, known, 5, 0), where)
        await written.wait()
    assert markers == [TxnMarker(9, 2, False, sent, 0)] * 2


async def test_a_broker_checks_when_it_begins_to_lead_and_when_coordinators_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "CHECK_AFTER_S", 0.01)
    async with running(tmp_path) as broker, asyncio.timeout(120):
        broker.changes.create_topic("t", 1, {})
        topic = broker.topics.get("t")
        assert topic is not None

        def is_due() -> bool:
            return broker.transactions._hanging._is_due

        async def checked() -> None:
            while is_due():
                await asyncio.sleep(0.01)

        await checked()
        broker.transactions.leads(topic, 0, 1)
        assert is_due()
        await checked()
        assert broker.transactions.ensure()
        assert not is_due()
        broker.transactions.followed([])
        assert is_due()
        await checked()
        broker.transactions.followed([])
        assert not is_due(), "nothing has changed"


async def test_a_transaction_whose_coordinators_topic_is_deleted_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "CHECK_AFTER_S", 0.01)

    def write(bootstrap: str) -> None:
        with RawClient(bootstrap) as client:
            TransactionSide(client, "t", "x", "g").begin().produce(12)

    def delete(bootstrap: str) -> None:
        with RawClient(bootstrap) as client:
            request = m.DeleteTopicsRequest(topic_names=[TRANSACTION_STATE_TOPIC], timeout_ms=20_000)
            assert client.ask(request, 5).responses[0].error_code == ErrorCode.NONE

    async with running(tmp_path) as broker, asyncio.timeout(120):
        broker.changes.create_topic("t", 1, {})
        await in_thread(write, broker.bootstrap)
        while broker.transactions._hanging._is_due:  # the check at startup
            await asyncio.sleep(0.01)
        log = broker.partitions.get("t", 0)
        assert log is not None
        assert (log.last_stable_offset, log.high_watermark) == (0, 1)
        await in_thread(delete, broker.bootstrap)
        while log.last_stable_offset < 2:
            await asyncio.sleep(0.01)
        assert log.high_watermark == 2
