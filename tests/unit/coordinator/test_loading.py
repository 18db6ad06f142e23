"""Reading shards back: in pieces, once, whatever happens meanwhile; and how times in records are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from muster.broker.net.calls import at_once
from muster.coordinator.groups.shard import GroupShard
from muster.coordinator.runtime import Client, CoordinatorRuntime, GroupConfig
from muster.coordinator.shards.loading import last_of_each_key
from muster.coordinator.shards.log_store import ShardLogStore
from muster.coordinator.shards.shards import LOAD_RECORDS, RELOAD_AFTER_MS, ShardHost
from muster.errors import ErrorCode, KafkaError
from muster.protocol import messages as m
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, decode_record
from muster.protocol.records.record_batch import iter_headers, read_tuples
from tests.support.group_harness import DEFAULT_PROTOCOLS, FakeTopics
from tests.support.memory_log import MemoryLog, Read
from tests.support.written import build_batch

NOW = 1_700_000_000_000


class Broker:
    """A runtime whose loop turns when the test says so."""

    def __init__(self, logs: dict[int, MemoryLog] | None = None) -> None:
        self.logs = {} if logs is None else logs
        self.now = NOW
        self.ahead = 0
        self.due: deque[Callable[[], None]] = deque()
        self.opened: list[int] = []
        self.topics = FakeTopics()
        self.runtime = CoordinatorRuntime(
            GroupConfig(group_initial_rebalance_delay_ms=0),
            ShardLogStore(self._open),
            ShardHost(
                lambda: self.now,
                lambda event: None,
                later=self.due.append,
                wall_clock=lambda: self.now + self.ahead,
            ),
            topics=self.topics,
            new_member_id=lambda prefix: f"{prefix}-{len(self.opened)}",
        )

    def _open(self, partition: int) -> MemoryLog:
        self.opened.append(partition)
        return self.logs.setdefault(partition, MemoryLog())

    def turn(self) -> bool:
        """One turn of the loop; returns whether there was something to do."""
        if not self.due:
            return False
        self.due.popleft()()
        return True

    def settle(self) -> int:
        """Turn until there is nothing to do."""
        turns = 0
        while self.turn():
            turns += 1
        return turns

    def send(self, request: Any, version: int) -> Any:
        answers: list[Any] = []
        self.runtime.submit(request, Client("cli", "/127.0.0.1", version), answers.append)
        [answer] = answers
        return answer

    def commit(self, offset: int = 1, group_id: str = "g", topic: str = "t") -> int:
        partition = m.OffsetCommitRequestPartition(0, offset)
        request = m.OffsetCommitRequest(group_id, topics=[m.OffsetCommitRequestTopic(topic, partitions=[partition])])
        return int(self.send(request, 8).topics[0].partitions[0].error_code)

    def committed(self, group_id: str = "g", topic: str = "t") -> tuple[int, int]:
        request = m.OffsetFetchRequest(group_id, [m.OffsetFetchRequestTopic(topic, [0])])
        answer = self.send(request, 7)
        return answer.error_code, answer.topics[0].partitions[0].committed_offset if answer.topics else -1

    def errors(self, group_id: str = "g") -> set[int]:
        """The errors of requests about a group, of every kind that shows it."""
        return {
            self.commit(group_id=group_id),
            self.committed(group_id)[0],
            self.send(m.DescribeGroupsRequest([group_id]), 5).groups[0].error_code,
            self.send(m.DeleteGroupsRequest([group_id]), 2).results[0].error_code,
            self.send(m.ListGroupsRequest(), 4).error_code,
            self.send(m.SyncGroupRequest(group_id, 1, "x"), 4).error_code,
            self.send(m.LeaveGroupRequest(group_id, members=[m.MemberIdentity("x")]), 5).error_code,
            self.send(m.JoinGroupRequest(group_id, 10_000, member_id="x"), 5).error_code,
        }

    @property
    def log(self) -> MemoryLog:
        return self.logs[self.runtime.partition_for("g")]


@pytest.fixture
def logs() -> dict[int, MemoryLog]:
    """A thousand commits of g, the last of them 1000, and one of h on another partition."""
    broker = Broker()
    broker.runtime.load_all([])
    for offset in range(1, 1001):
        assert broker.commit(offset) == 0
    broker.commit(7, "h")
    return broker.logs


def test_of_records_with_one_key_only_the_last_of_a_piece_is_decoded(logs, monkeypatch):
    decoded: list[bytes] = []
    replay = GroupShard.replay

    def counted(shard: GroupShard, key: bytes, value: bytes, shift: int) -> bool:
        decoded.append(key)
        return replay(shard, key, value, shift)

    monkeypatch.setattr(GroupShard, "replay", counted)
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    turns = broker.settle()
    assert (broker.committed(), broker.committed("h")) == ((0, 1000), (0, 7))
    assert 1000 // LOAD_RECORDS <= len(decoded) <= turns * len(set(decoded))


def test_the_last_of_each_key_are_left_in_their_order():
    records = [(0, b"a", b"0"), (1, b"b", b"1"), (2, None, b"2"), (3, b"a", b"3"), (4, None, b"4"), (5, b"c", None)]
    assert last_of_each_key(records) == records[1:]
    assert last_of_each_key(()) == []


def test_a_log_is_read_a_piece_at_a_time(logs):
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    turns = 0
    while broker.runtime.is_loading:
        if "g" not in {group for served in broker.runtime._served.values() for group in served.shard.groups}:
            assert broker.errors() == {loading}
            assert broker.runtime.heartbeat("g", 1, "x") is ErrorCode.NONE  # so that members stay calm
        assert len(broker.due) == 1
        assert broker.turn()
        turns += 1
    assert turns > 1000 // LOAD_RECORDS
    assert (broker.committed(), broker.committed("h")) == ((0, 1000), (0, 7))
    assert sorted(broker.opened) == sorted(logs)
    assert broker.send(m.ListGroupsRequest(), 4).error_code == 0


def test_a_shard_that_is_there_serves_while_another_is_read(logs):
    broker = Broker(logs)
    broker.runtime.load_all([broker.runtime.partition_for("h")])
    broker.settle()
    assert broker.commit(8) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.commit(8, "h") == 0
    assert broker.send(m.ListGroupsRequest(), 4).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.settle() > 1
    assert (broker.committed(), broker.committed("h")) == ((0, 1000), (0, 8))


def test_a_log_that_fails_while_it_is_read_is_read_again(logs, caplog, monkeypatch):
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    broker.turn()

    def refuse(offset: int, max_bytes: int) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "input/output error")

    monkeypatch.setattr(broker.log, "read", refuse)
    broker.settle()
    monkeypatch.undo()
    assert "input/output error" in caplog.text
    assert broker.committed() == (ErrorCode.NOT_COORDINATOR, -1)
    assert broker.committed("h") == (0, 7)
    assert broker.runtime._unavailable
    assert (broker.runtime.next_deadline() or 0) <= broker.now + RELOAD_AFTER_MS
    broker.now += RELOAD_AFTER_MS
    broker.runtime.on_deadlines(broker.now)
    broker.settle()
    assert broker.committed() == (0, 1000)


@pytest.mark.parametrize("end", [CoordinatorRuntime.unload_all, CoordinatorRuntime.close])
def test_to_unload_while_a_log_is_read(logs, end):
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    broker.turn()
    end(broker.runtime)
    assert broker.errors() <= {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    broker.settle()
    assert not broker.runtime.is_loading
    assert broker.runtime._served == {}


@pytest.mark.parametrize("end", [CoordinatorRuntime.unload_all, CoordinatorRuntime.close])
def test_what_was_unloaded_is_not_read_again_by_itself(logs, end):
    """The topic is deleted, or the broker stops: there is nothing to return to. One of its logs was due for another
    read."""
    logs[0] = MemoryLog()
    logs[0].append(build_batch([(NOW, b"key", b"value", [])]), now=NOW)
    logs[0].held = True
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    broker.settle()
    assert broker.runtime._unavailable
    end(broker.runtime)
    opened = len(broker.opened)
    broker.now += 10 * RELOAD_AFTER_MS
    broker.runtime.on_deadlines(broker.now)
    assert (broker.runtime.next_deadline(), broker.runtime._unavailable) == (None, {})
    assert len(broker.opened) == opened


def test_a_log_that_has_nothing_up_to_its_end_is_read_nevertheless(logs, monkeypatch):
    """Its last records were lost, and their offsets are not assigned again: the next record comes after them."""
    broker = Broker(logs)
    end = broker.log.log_end_offset
    broker.log.log_end_offset += 3
    read, asked = broker.log.read, []

    def read_what_is_there(offset: int, max_bytes: int) -> Any:
        asked.append(offset)
        assert asked.count(offset) < 3, "the end is asked for again and again"
        return (
            Read(b"", offset)
            if offset >= end
            else Read(read(offset, max_bytes).data, min(end, read(offset, max_bytes).next_offset))
        )

    monkeypatch.setattr(broker.log, "read", read_what_is_there)
    broker.runtime.load_all(sorted(logs))
    broker.settle()
    assert broker.committed() == (0, 1000)


def test_a_log_is_read_from_where_it_begins(logs, monkeypatch):
    broker = Broker(logs)
    log = broker.log
    log.log_start_offset = log.batches[-10][0]
    read = log.read

    def refuse_what_is_gone(offset: int, max_bytes: int) -> Any:
        if offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")
        return read(offset, max_bytes)

    monkeypatch.setattr(log, "read", refuse_what_is_gone)
    broker.runtime.load_all(sorted(logs))
    broker.settle()
    assert broker.committed() == (0, 1000)


def test_a_record_that_the_disk_has_changed_is_not_served(caplog):
    """It can still be decoded, but with a different value: only the checksum shows it."""
    broker = Broker()
    broker.runtime.load_all([])
    broker.commit(0x1234)
    [(base, data)] = broker.log.batches
    assert data.count(b"\x12\x34") == 1
    broker.log.batches[0] = base, data.replace(b"\x12\x34", b"\x12\x35")
    again = Broker(broker.logs)
    again.runtime.load_all(sorted(broker.logs))
    again.settle()
    assert again.committed() == (0, -1)
    assert "skipped" in caplog.text


def test_to_start_over_while_a_log_is_read(logs):
    """The topic is deleted and created again, with an older epoch: nothing of the old log reappears."""
    broker = Broker(dict(logs))
    broker.runtime.load_all(sorted(logs), 5)
    broker.turn()
    broker.runtime.unload_all()
    broker.logs.clear()
    broker.runtime.load_all([])
    broker.settle()
    assert broker.committed() == (0, -1)
    assert broker.commit(5) == 0
    assert broker.committed() == (0, 5)


def test_records_that_come_while_a_log_is_read_are_read_too(logs):
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    broker.turn()
    other = Broker(logs)
    other.runtime.load_all(sorted(logs))
    other.settle()
    assert other.commit(2000) == 0
    broker.settle()
    assert broker.committed() == (0, 2000)


def test_offsets_of_a_topic_that_is_deleted_while_a_log_is_read_go(logs):
    broker = Broker(logs)
    broker.runtime.load_all(sorted(logs))
    broker.turn()
    del broker.topics.partitions["t"]
    at_once(broker.runtime.topics_deleted(["t"]))
    broker.settle()
    broker.topics.partitions["t"] = 4
    assert (broker.committed(), broker.committed("h")) == ((0, -1), (0, -1))
    again = Broker(logs)
    again.runtime.load_all(sorted(logs))
    again.settle()
    assert again.committed() == (0, -1)


# --------------------------------------------------------------------------------------------------- the time of day


def records(log: MemoryLog) -> list[Any]:
    return [
        (time, decode_record(key, value))
        for _, data in log.batches
        for position, header in iter_headers(data)
        for _, time, key, value, _ in read_tuples(data, position, header)
    ]


@pytest.mark.parametrize("step", [3_600_000, -3_600_000, 99, 0])
def test_records_tell_the_time_of_day(step):
    """The clock is moved forward or back by an hour while the broker runs: less than a tenth of a second is not a
    step."""
    broker = Broker()
    broker.runtime.load_all([])
    broker.commit(1)
    broker.ahead = step
    broker.now += 1000
    broker.commit(2)
    expected = NOW + 1000 + (step if abs(step) > 99 else 0)
    [_, (time, commit)] = records(broker.log)
    assert isinstance(commit, OffsetCommitRecord)
    assert commit.value is not None
    assert (time, commit.value.commit_timestamp) == (expected, expected)
    protocols = [m.JoinGroupRequestProtocol(*item) for item in DEFAULT_PROTOCOLS.items()]
    broker.runtime.submit(
        m.JoinGroupRequest("h", 10_000, 60_000, "", "i", "consumer", protocols),
        Client("cli", "/127.0.0.1", 5),
        lambda answer: None,
    )
    [(_, group)] = records(broker.logs[broker.runtime.partition_for("h")])
    assert isinstance(group, GroupMetadataRecord)
    assert group.value is not None
    assert group.value.current_state_timestamp == expected


@pytest.mark.parametrize("step", [86_400_000, -86_400_000])
def test_offsets_expire_by_the_time_that_has_passed(step):
    """However the clock is set, before a restart and after it: seven days are seven days."""
    broker = Broker()
    broker.runtime.load_all([])
    broker.commit(1)
    broker.ahead = step
    broker.commit(2)
    week = GroupConfig().offsets_retention_ms
    broker.now += week - 1
    broker.runtime.on_deadlines(broker.now)
    assert broker.committed() == (0, 2)
    again = Broker(broker.logs)
    again.now, again.ahead = broker.now, step  # the monotonic clock of a new process may have any value
    again.runtime.load_all(sorted(broker.logs))
    again.settle()
    again.runtime.on_deadlines(again.now)
    assert again.committed() == (0, 2)
    again.now += 600_001
    again.runtime.on_deadlines(again.now)
    assert again.committed() == (0, -1)
