"""The fast path of OffsetCommit answers, writes and stores what the general path does, and skips unusual requests."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.broker.handlers import fast_commit as module
from muster.broker.handlers.fast_commit import MOST_KNOWN, MOST_PARTITIONS, fast_commit
from muster.broker.handlers.offsets import offset_commit
from muster.broker.net.calls import Api, Call, Service
from muster.broker.net.connection_core import ConnectionCore
from muster.broker.net.intake import Intake
from muster.broker.net.slices import Slices
from muster.coordinator.shards.shards import RELOAD_AFTER_MS
from muster.errors import ErrorCode
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol.records.record_batch import read_records
from tests.support.group_harness import FakeTopics, classic
from tests.support.runtime_broker import Broker

VERSIONS = [8, 9, 10]
KEY = m.OffsetCommitRequest.API_KEY
DYNAMIC, STATIC = "cli-1", "i-2"
GENERATION = 1
IDS = {"t": FakeTopics().topic_id("t"), "u": FakeTopics().topic_id("u"), "?": b"?" * 16}


class Loop:
    """The parts of a loop that slices need: nothing here is large enough to be handled in slices."""

    def time(self) -> float:
        return 0.0

    def call_soon(self, *_: Any) -> None:
        raise AssertionError("nothing is handled in slices")

    def call_later(self, *_: Any) -> None:
        raise AssertionError("nothing waits")


class Way:
    """A coordinator with two members in group `g`, and a connection to it, with or without the fast path."""

    serving = True
    may_serve = None

    def __init__(self, short: bool) -> None:
        self.broker = Broker().loaded()
        self.runtime = self.broker.runtime
        self.taken = self.wall_ahead_ms = 0
        self.runtime._wall_clock = lambda: self.broker.now + self.wall_ahead_ms
        self.broker.join()
        self.tick(0)
        self.broker.join(instance="i")
        self.broker.join(member_id=DYNAMIC)
        self.tick(1)
        self.tick(1)
        assert self.group.generation_id == GENERATION
        share = [m.SyncGroupRequestAssignment(DYNAMIC, b"share"), m.SyncGroupRequestAssignment(STATIC, b"share")]
        for member in (DYNAMIC, STATIC):
            self.broker.send(m.SyncGroupRequest("g", GENERATION, member, assignments=share), 4)
        self.tick(0)
        assert (self.group.state.value, sorted(self.group.members)) == ("Stable", [DYNAMIC, STATIC])
        groups: Any = self
        self._short = fast_commit(groups)
        serve = partial(offset_commit, groups)
        api = Api(m.OffsetCommitRequest, 2, 10, serve, True, short=self._counted if short else None)
        loop: Any = Loop()
        service = Service({KEY: api}, None, 100_000, Intake(1 << 20, loop), Slices(loop), lambda: None, lambda: 0.0)
        self.core = ConnectionCore(service, lambda: None)

    def _counted(self, frame: bytes, position: int, call: Call) -> bool:
        taken = self._short(frame, position, call)
        self.taken += taken
        return taken

    @property
    def group(self) -> Any:
        return classic(self.runtime._served[self.runtime.partition_for("g")].shard.groups["g"])

    def tick(self, milliseconds: int) -> None:
        self.broker.now += milliseconds
        self.broker.turn()

    def send(self, frame: bytes) -> bytes:
        """Send a frame; returns what is answered at once."""
        if self.core.ending is None:
            self.core.received(memoryview(frame))
        return self.answers()

    def answers(self) -> bytes:
        return b"".join(bytes(part) for part in self.core.take())

    def state(self) -> Any:
        """All the state that a commit can change."""
        served_shards = self.runtime._served
        return (
            {slot: log.batches for slot, log in self.broker.logs.items()},
            {
                slot: (served.shard.offsets.by_group, sorted(served.shard.groups))
                for slot, served in served_shards.items()
            },
            {slot: served.shard.next_deadline() for slot, served in served_shards.items()},
            {
                (name, member.member_id): member.session_deadline
                for served in served_shards.values()
                for name, group in served.shard.groups.items()
                for member in classic(group).members.values()
            },
            self.core.ending and self.core.ending.how,
        )


class Both:
    """One world with the fast path and one without, which get the same requests."""

    def __init__(self) -> None:
        self.short, self.general = self.ways = Way(True), Way(False)

    def do(self, act: Any) -> Any:
        """Do the same in both; returns the result, which must be the same."""
        found, other = (act(way) for way in self.ways)
        assert found == other
        assert self.short.state() == self.general.state()
        return found

    def send(self, frame: bytes) -> bytes:
        """The answer to a frame, at once or at the end of the turn."""
        at_once: bytes = self.do(lambda way: way.send(frame))
        self.do(lambda way: way.tick(0))
        later: bytes = self.do(Way.answers)
        return at_once + later


def partition(index: int = 0, offset: int = 7, epoch: int = -1, metadata: str | None = "") -> Any:
    return m.OffsetCommitRequestPartition(index, offset, epoch, metadata)


def frame_of(version: int, *topics: tuple[str, list[Any]], number: int = 77, **fields: Any) -> bytes:
    asked = [
        m.OffsetCommitRequestTopic(name, IDS.get(name, b"?" * 16) if version >= 10 else bytes(16), partitions)
        for name, partitions in topics
    ]
    sender = {"group_id": "g", "generation_id_or_member_epoch": GENERATION, "member_id": DYNAMIC, **fields}
    return b"".join(framing.encode_request(m.OffsetCommitRequest(topics=asked, **sender), version, number, "c"))


def errors(answer: bytes, version: int) -> list[int]:
    response = framing.decode_response(answer[4:], m.OffsetCommitRequest, version)
    return [each.error_code for topic in response.topics for each in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_commit_is_answered_when_it_is_written(version: int) -> None:
    both = Both()
    assert both.do(lambda way: way.send(frame_of(version, ("t", [partition(2, 41)])))) == b""
    assert both.short.taken == 1
    both.do(lambda way: way.tick(0))
    assert errors(both.do(Way.answers), version) == [0]
    [(_, batch)] = both.short.broker.log_of("g").batches[-1:]
    assert read_records(batch)[0].value is not None
    [offsets] = both.short.broker.fetch("g")
    assert [p.committed_offset for p in offsets.groups[0].topics[0].partitions] == [41]


@pytest.mark.parametrize("version", [2, 4, 5, 7, *VERSIONS])
def test_only_plain_commits_are_taken(version: int) -> None:
    both = Both()

    def taken(*topics: tuple[str, list[Any]], **fields: Any) -> int:
        before = both.short.taken
        assert both.send(frame_of(version, *topics, **fields))
        return both.short.taken - before

    one = ("t", [partition()])
    static = {"member_id": STATIC, "group_instance_id": "i"} if version >= 7 else {"member_id": STATIC}
    alone = {"generation_id_or_member_epoch": -1, "member_id": ""}
    assert taken(one) == taken(one, **static) == (version >= 8)
    assert not taken(one, group_id="simple", **alone)  # its shard is not read yet
    assert taken(one, group_id="simple", **alone) == (version >= 8)
    assert taken(("u", [partition(1), partition(0)])) == (version >= 8)
    assert not taken(one, ("u", [partition()]))
    assert not taken(("t", []))
    assert not taken()
    assert not taken(("t", [partition(4)]))
    assert not taken(("t", [partition(3), partition(-1)]))
    assert not taken(("?", [partition()]))
    assert taken(("t", [partition(metadata=None)])) == (version >= 8)
    assert taken(("t", [partition(index, metadata=None) for index in range(3)])) == (version >= 8)
    assert not taken(("t", [partition(metadata="m")]))
    assert not taken(("t", [partition(), partition(1, metadata=None)]))
    assert not taken(("t", [partition(), partition(1, metadata="x" * 5_000)]))
    assert not taken(one, generation_id_or_member_epoch=2)
    assert not taken(one, member_id="x")
    assert not taken(one, group_id="none")
    assert not taken(one, **alone)
    assert taken(one, **static) == (version >= 8)
    if version >= 7:
        assert not taken(one, member_id=DYNAMIC, group_instance_id="i")
    if version < 5:
        assert not taken(one, retention_time_ms=5_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_most_partitions(version: int) -> None:
    both = Both()
    for way in both.ways:
        way.broker.topics.partitions["t"] = 100
    for count in (MOST_PARTITIONS, MOST_PARTITIONS + 1):
        both.send(frame_of(version, ("t", [partition(index, 100 + index) for index in range(count)])))
    assert both.short.taken == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [1, 2])
def test_damaged_requests_are_answered_as_on_the_general_way(version: int, count: int) -> None:
    whole = frame_of(version, ("t", [partition(index, 0x0102030405060708) for index in range(count)]))
    both = Both()
    for at in range(8, len(whole)):
        cut = (at - 4).to_bytes(4, "big") + whole[4:at]
        for data in (cut, *(whole[:at] + bytes((other,)) + whole[at + 1 :] for other in (whole[at] ^ 0x81, 2))):
            both.send(data)
            for way in both.ways:
                if way.core.ending is not None:
                    way.core = ConnectionCore(way.core.service, lambda: None)
    assert both.short.taken > 10


NAMES = st.sampled_from(["t", "t", "t", "u", "?", ""])
PARTITIONS = st.builds(
    partition,
    st.sampled_from([0, 1, 2, 3, 0, 1, 4, -1]),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "", "", "", "m", None, "é" * 200, "x" * 5_000]),
)
NUMBERS = st.integers(0, 1), st.integers(0, 2**63 - 1), st.integers(-1, 3)
PLAIN, NULL = (st.builds(partition, *NUMBERS, st.just(metadata)) for metadata in ("", None))
TOPICS = st.tuples(
    NAMES,
    st.lists(PLAIN, min_size=1, max_size=5) | st.lists(NULL, min_size=1, max_size=5) | st.lists(PARTITIONS, max_size=4),
)
SENDERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {"member_id": STATIC, "group_instance_id": "i"},
        {"member_id": DYNAMIC, "group_instance_id": "i"},
        {"member_id": "x"},
        {"generation_id_or_member_epoch": 2},
        {"generation_id_or_member_epoch": -1},
        {"generation_id_or_member_epoch": -1, "member_id": ""},
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": "alone"},
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": "é" * 60},
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": "\x02" * 130},
        {"generation_id_or_member_epoch": -1, "member_id": "\x01" * 200},
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": ""},
        {"generation_id_or_member_epoch": 0, "group_id": "none"},
    ]
)


@st.composite
def commits(draw: st.DrawFn) -> bytes:
    version, sender = draw(st.sampled_from([7, *VERSIONS, 9, 9])), dict(draw(SENDERS))
    topics = draw(st.lists(TOPICS, min_size=1, max_size=1) | st.lists(TOPICS, max_size=3))
    return frame_of(version, *topics, number=draw(st.integers(0, 9)), **sender)


def set_log(way: Way, **fields: bool) -> None:
    for log in way.broker.logs.values():
        if fields.get("held"):
            log.hold()
        else:
            vars(log).update(fields)
    way.runtime.release_durable()


def resize(count: int, way: Way) -> None:
    way.broker.topics.partitions["t"] = count


def rejoin(way: Way) -> None:
    way.broker.join(member_id=DYNAMIC)


def set_wall(ahead_ms: int, way: Way) -> None:
    way.wall_ahead_ms = ahead_ms


EVENTS = st.sampled_from(
    [
        *[lambda way: way.tick(0)] * 4,
        lambda way: way.tick(3_000),
        lambda way: way.tick(RELOAD_AFTER_MS),
        lambda way: way.tick(15_000),
        rejoin,
        partial(resize, 0),
        partial(resize, 2),
        partial(resize, 4),
        partial(set_wall, 5_000_000),
        partial(set_wall, -100),
        partial(set_log, held=True),
        partial(set_log, held=False),
        partial(set_log, fails=True),
        partial(set_log, fails=False),
    ]
)


@given(st.lists(commits() | EVENTS, max_size=12))
def test_whatever_comes_is_answered_written_and_kept_alike(history: list[Any]) -> None:
    both = Both()
    for step in history:
        both.do((lambda way: way.send(step)) if isinstance(step, bytes) else step)  # noqa: B023
        both.do(Way.answers)
    both.do(partial(set_log, fails=False))
    both.do(partial(set_log, held=False))
    both.do(lambda way: way.tick(RELOAD_AFTER_MS))
    both.do(Way.answers)
    assert not both.short.core._slots, "every request is answered"
    assert both.short.core.out == []


@pytest.mark.interpreted
def test_a_rule_that_raises_drops_the_shard_as_on_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both()
    data = frame_of(9, ("t", [partition()]))
    assert both.do(lambda way: way.send(data)) == b""  # it waits for the turn
    for way in both.ways:
        shard = way.runtime._served[way.runtime.partition_for("g")].shard
        monkeypatch.setattr(type(shard), "apply", lambda *_: 1 // 0)
    with monkeypatch.context() as patch:
        patch.setattr("muster.coordinator.shards.shards.log.exception", lambda *_: None)
        answer = both.do(lambda way: way.send(data))
    size = 4 + int.from_bytes(answer[:4], "big")
    assert errors(answer[:size], 9) == errors(answer[size:], 9) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert both.short.taken == 2


def test_as_many_senders_are_known_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_KNOWN > 1_000
    monkeypatch.setattr(module, "MOST_KNOWN", 2)
    both = Both()
    senders: list[dict[str, Any]] = [{}, {"member_id": STATIC}, {"member_id": STATIC, "group_instance_id": "i"}]
    for number in (0, 1, 2, 0, 1, 1, 0, 2):
        assert errors(both.send(frame_of(9, ("t", [partition(number)]), **senders[number])), 9) == [0]
    assert both.short.taken == 8
