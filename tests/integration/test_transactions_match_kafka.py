"""Requests of transactions to muster and to Apache Kafka 4.2: every cell of the coordinator's tables that requests can
reach, in the versions of clients before and after `transaction.version` 2, and the codes by version.

Each cell has a transactional id of its own. After the cell's request, both coordinators describe the id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.api import ADVERTISED, ApiKey
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import KafkaBroker
from tests.support.same_answers import differences, ready_group
from tests.support.transaction_sides import TransactionSide

pytestmark = pytest.mark.slow

STATES = ("unknown", "Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
Act = Callable[[TransactionSide], Any]


class Pair:
    """Both brokers, with a topic of their own and a group."""

    def __init__(self, bootstraps: tuple[str, str]) -> None:
        self.clients = tuple(RawClient(each) for each in bootstraps)
        self.prefix = f"tx-{uuid.uuid4().hex[:8]}"
        self.ids = [ready(client, self.prefix) for client in self.clients]
        self._count = 0

    def sides(self) -> list[TransactionSide]:
        """A transactional id that neither broker has seen."""
        self._count += 1
        found = []
        for client, topic_id in zip(self.clients, self.ids, strict=True):
            side = TransactionSide(client, self.prefix, f"{self.prefix}-{self._count}", f"{self.prefix}-g{self._count}")
            side.topic_id = topic_id
            found.append(side)
        return found

    def compare(
        self, label: str, act: Act, *, mask: Callable[[Any], None] = lambda reported: None, ends: bool = True
    ) -> list[str]:
        """The differences between both brokers' answers that occur twice: Kafka verifies the transactions of several
        clients in one request, with the error codes of the first one's version, and one of them may belong to another
        test. `ends`: whether the transaction can still be ended."""
        return self._compare(label, act, mask, ends) and self._compare(label, act, mask, ends)

    def _compare(self, label: str, act: Act, mask: Callable[[Any], None], ends: bool) -> list[str]:
        reported = []
        for side in self.sides():
            act(side)
            mask(side.reported)
            reported.append(side.reported)
            if ends:
                side.begin()  # leave nothing open
        ours, theirs = reported
        assert [name for name, _ in ours] == [name for name, _ in theirs], label
        return [
            f"{label}, {name}{line}"
            for (name, one), (_, other) in zip(ours, theirs, strict=True)
            for line in differences(one, other)
        ]


def ready(client: RawClient, topic: str) -> bytes:
    """A topic of two partitions with leaders, and coordinators."""
    settings = [m.CreatableTopicConfig("retention.ms", "-1")]
    client.ask(m.CreateTopicsRequest([m.CreatableTopic(topic, 2, 1, [], settings)], 20_000), 7)
    topic_id = ready_group(client.ask, topic, topic)
    for name in (topic, f"{topic}-1"):
        while client.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4).coordinators[0].error_code:
            pass
    TransactionSide(client, topic, f"{topic}-0").begin()
    return topic_id


@pytest.fixture(scope="module")
def pair(shared_muster: BrokerProcess, transactional_kafka: KafkaBroker) -> Iterator[Pair]:
    pair = Pair((shared_muster.bootstrap, transactional_kafka.bootstrap))
    yield pair
    for client in pair.clients:
        client.close()


def ids(side: TransactionSide, epoch: int = 0, other: bool = False) -> tuple[int, int]:
    """The producer's id and epoch, changed: by `epoch`, and to another producer's id if `other`."""
    if side.producer_id < 0:
        return 7 + other, max(3 + epoch, 0)
    return side.producer_id + 12_345 * other, side.epoch + epoch


OFF: dict[str, tuple[int, bool]] = {
    "the same": (0, False),
    "an older epoch": (-1, False),
    "a much older epoch": (-2, False),
    "a newer epoch": (1, False),
    "another producer id": (0, True),
}


@pytest.mark.parametrize("tv2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("state", STATES)
def test_init_producer_id(pair: Pair, state: str, tv2: bool) -> None:
    wrong = []
    for label, off in {"none": None, **OFF}.items():

        def act(side: TransactionSide, off: tuple[int, bool] | None = off) -> None:
            side.to(state, tv2)
            known = (-1, -1) if off is None else ids(side, *off)
            if off is not None and known[1] == -1:
                known = (known[0], 32_700)
            side.init(4, known, 30_000)
            side.until_complete()
            side.describe()
            side.take(side.settled(lambda: side.init(5)))
            side.describe()

        wrong += pair.compare(f"{state}: {label}", act, mask=without_repeats)
    assert not wrong, "\n".join(wrong)


def without_repeats(reported: list[Any]) -> None:
    """A broker may still have something to finish, so a request may be repeated more often for one of them."""
    for at in reversed(range(1, len(reported))):
        if reported[at] == reported[at - 1] or (
            reported[at - 1][0] == reported[at][0]
            and reported[at - 1][1].get("error_code") == "CONCURRENT_TRANSACTIONS"
        ):
            del reported[at - 1]


@pytest.mark.parametrize("tv2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("state", STATES)
def test_adding_and_verifying(pair: Pair, state: str, tv2: bool) -> None:
    wrong = []
    for label, off in OFF.items():
        for version, verify in (
            (0, False),
            (1, False),
            (2, False),
            (3, False),
            (4, False),
            (5, False),
            (4, True),
            (5, True),
        ):

            def act(side: TransactionSide, off: Any = off, version: int = version, verify: bool = verify) -> None:
                side.to(state, tv2)
                side.add(version, ids(side, *off), verify=verify)
                side.add(version, ids(side, *off), TopicPartition(side.topic, 1), verify=verify)
                side.describe()

            wrong += pair.compare(f"{state}: {label}, verify {verify}", act)
        for version in range(5):

            def offsets(side: TransactionSide, off: Any = off, version: int = version) -> None:
                side.to(state, tv2)
                side.add_offsets(version, ids(side, *off))

            wrong += pair.compare(f"{state}: {label}, offsets", offsets)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("tv2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("state", STATES)
def test_ending(pair: Pair, state: str, tv2: bool, commit: bool) -> None:
    wrong = []
    for label, off in OFF.items():
        for version in range(6):

            def act(side: TransactionSide, off: Any = off, version: int = version) -> None:
                side.to(state, tv2)
                side.end(commit, version, ids(side, *off))
                side.until_complete()
                side.describe()
                side.end(commit, version, ids(side, *off))
                side.until_complete()
                side.describe()

            wrong += pair.compare(f"{state}: {label}", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("tv2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("state", STATES)
def test_produce(pair: Pair, state: str, tv2: bool) -> None:
    """Versions that verify a transaction, and versions with which the broker adds the partition."""
    wrong = []
    for label, off in OFF.items():
        for version in range(3, 14):

            def act(side: TransactionSide, off: Any = off, version: int = version) -> None:
                side.to(state, tv2)
                side.produce(version, ids(side, *off))
                side.produce(version, ids(side, *off), partition=1)
                side.produce(version, ids(side, *off))
                side.describe()

            wrong += pair.compare(f"{state}: {label}", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", [9, 11, 12, 13])
def test_odd_produces(pair: Pair, version: int) -> None:
    def act(side: TransactionSide) -> None:
        side.to("Ongoing", version >= 12)
        side.produce(version, transactional=True, name=None)
        side.produce(version, transactional=False)
        side.produce(version, transactional=False, name=None)
        side.produce(version, (side.producer_id, side.epoch), sequence=7)
        side.produce(version, partition=1, sequence=3)
        side.describe()

    wrong = pair.compare(f"v{version}", act)
    assert not wrong, "\n".join(wrong)


def test_partitions_that_cannot_be_added(pair: Pair) -> None:
    def act(side: TransactionSide) -> None:
        side.to("Empty", False)
        good, bad = TopicPartition(side.topic, 0), TopicPartition(side.topic, 9)
        internal = TopicPartition("__consumer_offsets", 0)
        for version in range(6):
            side.add(version, None, good, bad)
            side.add(version, None, TopicPartition("no-such-topic", 0), good)
            side.describe()
        for version in range(4):
            side.add(version, None, good, internal)
        side.describe()

    wrong = pair.compare("adding", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("state", STATES)
def test_committing_offsets(pair: Pair, state: str) -> None:
    wrong = []
    for label, off in OFF.items():
        for version in range(6):

            def act(side: TransactionSide, off: Any = off, version: int = version) -> None:
                side.to(state, version == 5)
                side.commit_offsets(version, ids(side, *off))
                if state in ("Empty", "Ongoing") and version < 5:
                    side.add_offsets()
                    side.commit_offsets(version, ids(side, *off))
                side.offsets(True)
                side.offsets(False)
                side.describe()

            wrong += pair.compare(f"{state}: {label}, offsets", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", [3, 5])
def test_offsets_count_when_their_transaction_is_committed(pair: Pair, version: int, commit: bool) -> None:
    def act(side: TransactionSide) -> None:
        side.begin()
        end = 5 if version == 5 else 3
        for offset in (5, 7):
            if version < 5:
                side.add_offsets()
            side.commit_offsets(version, offset=offset)
            side.commit_offsets(version, offset=offset + 100)
            side.offsets(True)
            side.offsets(False)
            answer = side.end(commit if offset == 5 else not commit, end)
            side.until_complete()
            if version == 5:
                side.take(answer)
            side.offsets(True)

    wrong = pair.compare("offsets", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", [0, 3, 5])
def test_offsets_of_members_and_of_strangers(pair: Pair, version: int) -> None:
    def act(side: TransactionSide) -> None:
        side.begin()
        if version < 5:
            side.add_offsets()
        if version >= 3:
            side.commit_offsets(version, generation_id=1)
            side.commit_offsets(version, member_id="nobody")
            side.commit_offsets(version, generation_id=0, member_id="nobody")
            side.commit_offsets(version, group_instance_id="nobody")
        side.commit_offsets(version)
        if version >= 3:
            side.commit_offsets(version, generation_id=1)
            side.commit_offsets(version, member_id="nobody")
            side.commit_offsets(version, generation_id=0, member_id="nobody")
            side.commit_offsets(version, group_instance_id="nobody")
        side.offsets(True)

    wrong = pair.compare("members", act)
    assert not wrong, "\n".join(wrong)


def test_odd_requests(pair: Pair) -> None:
    """Empty names, timeouts, ids that do not match, lists of transactions."""

    def act(side: TransactionSide) -> None:
        name, side.name = side.name, ""
        for version in range(6):
            side.init(version)
            side.end(True, version, (1, 1))
            side.add(version, (1, 1))
        for version in range(5):
            side.add_offsets(version, (1, 1))
        side.describe()
        side.name = name
        for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
            side.init(4, timeout_ms=timeout_ms)
        for known in ((-1, 0), (5, -1), (-2, 0), (5, -2)):
            side.init(4, known)
        group, side.group = side.group, ""
        side.begin()
        side.commit_offsets(3)
        side.add_offsets(3)
        side.group = group
        side.end(True)
        side.until_complete()
        listed = ((), ["Empty"], ["Ongoing", "None such", "Dead"], ["PrepareEpochFence", "None such", "None such"])
        for states in listed:
            for ids_of in ([], [side.producer_id], [1]):
                request = t.ListTransactionsRequest(list(states), ids_of, transactional_id_pattern=side.name)
                side.ask(f"ListTransactions {states} {len(ids_of)}", request, 2)
        for pattern in (f"{side.name}.*", side.name[:-1], "", f"[{side.name}", f"{side.name[:-1]}."):
            request = t.ListTransactionsRequest([], [side.producer_id], 10**12, pattern)
            side.ask(f"ListTransactions {pattern == ''}", request, 2)
        side.ask("ListTransactions", t.ListTransactionsRequest([], [side.producer_id], 0), 1)
        side.ask("ListTransactions", t.ListTransactionsRequest([], [side.producer_id]), 0)

    wrong = pair.compare("odd", act)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", [1, 2])
def test_markers(pair: Pair, version: int) -> None:
    def act(side: TransactionSide) -> None:
        side.begin().to("Ongoing", True)

        def write(commit: bool, epoch: int = 0, coordinator: int = 0, tv: int = 0, *partitions: int) -> None:
            topics = [t.WritableTxnMarkerTopic(side.topic, list(partitions or (0,)))]
            marker = t.WritableTxnMarker(
                side.producer_id, side.epoch + epoch, commit, topics, coordinator, tv if version == 2 else 0
            )
            side.ask("WriteTxnMarkers", t.WriteTxnMarkersRequest([marker]), version)

        write(False, -1)
        write(False, 0, 0, 2)
        write(False, 0, 5, 0, 0, 1, 9)
        write(True, 0, 4)
        write(True, 0, 5)
        write(True, 3, 6, 2)
        write(True, 3, 6, 2)
        write(True, 2, 6, 0)
        side.produce(12)
        side.describe()

    # Kafka accepts no marker from an older coordinator epoch than these: the transaction stays in Kafka's PrepareAbort.
    wrong = pair.compare("markers", act, ends=False)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("key", [24, 25, 26, 27, 28, 65, 66])
def test_the_versions_are_those_of_kafka(pair: Pair, key: int) -> None:
    for client in pair.clients:
        found = client.ask(m.ApiVersionsRequest("x", "1"), 4)
        (mine,) = [each for each in found.api_keys if each.api_key == key]
        assert (mine.min_version, mine.max_version) == ADVERTISED[ApiKey(key)]
        (feature,) = [each for each in found.finalized_features if each.name == "transaction.version"]
        assert (feature.max_version_level, feature.min_version_level) == (2, 2)
        (supported,) = [each for each in found.supported_features if each.name == "transaction.version"]
        assert (supported.min_version, supported.max_version) == (0, 2)
        assert found.finalized_features_epoch >= 0
