"""The runtime with logs that fail, that cannot be read, or that contain unknown records."""

from typing import Any

import pytest

from muster.broker.net.calls import at_once
from muster.coordinator.runtime import Client
from muster.coordinator.shards.log_store import ShardLogStore
from muster.errors import ErrorCode
from muster.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    SyncGroupRequest,
)
from tests.support.memory_log import MemoryLog
from tests.support.runtime_broker import Broker, code
from tests.support.written import build_batch


def test_a_failed_write_is_answered_and_the_shard_is_read_again(broker, caplog):
    broker.commit(offset=1, turn=True)
    broker.log_of("g").fails = True
    answers, fetched = broker.commit(offset=2), broker.fetch("g")
    broker.turn()
    assert code(answers) == ErrorCode.NOT_COORDINATOR
    assert fetched[0].groups[0].error_code == ErrorCode.NOT_COORDINATOR
    broker.log_of("g").fails = False
    assert code(broker.commit()) == ErrorCode.NOT_COORDINATOR  # not every request tries to read the log again
    assert broker.runtime.heartbeat("g", 1, "x") == ErrorCode.NOT_COORDINATOR
    assert "the disk is gone" in caplog.text
    broker.now += 1000
    broker.runtime.on_deadlines(broker.now)
    assert broker.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 1
    assert (broker.runtime.next_deadline() or 0) > broker.now


def test_a_failed_write_answers_members_that_wait_for_others(broker):
    """Members that are parked in a join or a sync when the shard is dropped."""
    first, second = broker.join(instance="a"), broker.join(instance="b")
    broker.turn()
    broker.now += 1  # the group keeps waiting while members keep coming
    broker.turn()
    a, b = first[0].member_id, second[0].member_id
    share = broker.send(SyncGroupRequest("g", 1, b), 4)
    commit = broker.commit()
    broker.log_of("g").fails = True
    broker.send(SyncGroupRequest("g", 1, a), 4)
    assert share == []
    broker.turn()
    assert code(share) == ErrorCode.NOT_COORDINATOR
    assert code(commit) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.runtime.next_deadline() == broker.now + 1000


def test_a_failed_sync_is_answered_and_its_records_are_not_served(broker, caplog):
    """--fsync always, and the disk fails between the write and its sync: parked requests would wait forever."""
    broker.commit(offset=1, turn=True)
    log = broker.log_of("g")
    log.hold()
    answers, fetched = broker.commit(offset=2), broker.fetch("g")
    broker.turn()
    assert (answers, fetched) == ([], [])
    log.failed = OSError("input/output error")
    broker.runtime.release_durable()
    assert code(answers) == ErrorCode.NOT_COORDINATOR
    assert fetched[0].groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert "input/output error" in caplog.text
    broker.now += 1000
    broker.runtime.on_deadlines(broker.now)
    assert broker.fetch("g")[0].groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_failed_sync_that_no_request_waited_for_keeps_no_later_one_waiting(broker):
    """The offsets of a deleted topic are removed: no answer waits for that write."""
    broker.commit(offset=1, turn=True)
    log = broker.log_of("g")
    log.hold()
    at_once(broker.runtime.topics_deleted(["t"]))
    broker.turn()
    log.failed = OSError("input/output error")
    broker.runtime.release_durable()
    assert [answer.groups[0].error_code for answer in broker.fetch("g")] == [ErrorCode.NOT_COORDINATOR]


def test_what_was_durable_before_a_failed_sync_is_acknowledged(broker):
    broker.commit(offset=0, turn=True)
    log = broker.log_of("g")
    log.hold()
    first = broker.commit(offset=1, turn=True)
    durable = log.log_end_offset
    second = broker.commit(offset=2, turn=True)
    log._durable = durable
    assert (first, second) == ([], [])
    log.failed = OSError("input/output error")
    broker.runtime.release_durable()
    assert (code(first), code(second)) == (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)


def test_a_shard_that_was_dropped_is_not_read_before_its_log_is_durable(broker):
    """--fsync always: an append is being synced when the next one fails. What is read must contain both."""
    broker.commit(offset=1, turn=True)
    log = broker.log_of("g")
    log.hold()
    broker.commit(offset=2, turn=True)
    log.fails = True
    broker.commit(offset=3, turn=True)
    log.fails = False
    broker.now += 1000
    broker.runtime.on_deadlines(broker.now)
    assert broker.fetch("g")[0].groups[0].error_code == ErrorCode.NOT_COORDINATOR
    log.sync()
    broker.now += 1000
    broker.runtime.on_deadlines(broker.now)
    assert broker.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 2


def test_a_log_that_cannot_be_opened(broker):
    def refuse(partition: int) -> MemoryLog:
        raise OSError("no space left on device")

    broker.runtime._store = ShardLogStore(refuse)
    assert code(broker.commit("h")) == ErrorCode.NOT_COORDINATOR
    broker.now += 1000
    broker.runtime.on_deadlines(broker.now)
    assert broker.runtime.next_deadline() == broker.now + 1000


def test_a_log_that_cannot_be_read_does_not_keep_the_others(broker, caplog):
    broker.commit("g")
    broker.commit("h", turn=True)

    def refuse(offset: int, max_bytes: int) -> Any:
        raise OSError("input/output error")

    broker.log_of("g").read = refuse
    again = Broker(broker.logs).loaded()
    assert code(again.commit("g")) == ErrorCode.NOT_COORDINATOR
    assert again.fetch("h")[0].groups[0].topics[0].partitions[0].committed_offset == 1
    assert f"reading partition {again.runtime.partition_for('g')}" in caplog.text


OWN_KEY = b"\0\1\0\1g\0\1t\0\0\0\0"
"""The key of the group's own commit: a record after it must not hide it, one before it is not read."""

NOT_UNDERSTOOD = {
    "no key": (None, b"v"),
    "a key without a kind": (b"\0", b"v"),
    "a commit without a value's version": (OWN_KEY, b"\0"),
    "a key that is cut short": (b"\0\2\0\x7fg", b"v"),
    "a group whose members cannot be read": (b"\0\2\0\1g", b"\0\3\0\1c\0\0\0\1"),
    "a group's id that is no text": (b"\0\2\0\1\xff", None),
}

UNKNOWN_KINDS = {
    "a consumer group of KIP-848": (b"\0\3\0\1g", b"\0\0\0\0\0\5"),
    "a share group": (b"\0\x0f\0\1g", b"\0\0"),
    "a kind not invented yet": (b"\x7f\xffwhatever", b"whatever"),
    "a newer version of a commit": (OWN_KEY, b"\0\x63whatever"),
}


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("record", [*NOT_UNDERSTOOD.values(), *UNKNOWN_KINDS.values()])
def test_a_record_that_is_not_understood_does_not_take_away_the_groups(broker, caplog, record, where):
    key, value = record
    log = broker.logs.setdefault(broker.runtime.partition_for("g"), MemoryLog())
    foreign = build_batch([(broker.now, key, value, []), (broker.now, key, value, [])])
    if where == "before":
        log.append(foreign, now=broker.now)
    broker.loaded()
    broker.commit("g", 5, turn=True)
    if where == "behind":
        log.append(foreign, now=broker.now)
    caplog.clear()
    again = Broker(broker.logs).loaded()
    assert again.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 5
    is_superseded = where == "before" and key == OWN_KEY
    assert caplog.text.count("skipped") == (record in NOT_UNDERSTOOD.values() and not is_superseded)


def test_a_batch_that_is_spoiled_does_not_take_away_the_others(broker, caplog):
    for partition in range(3):
        broker.commit("g", 7, partition, turn=True)
    log = broker.log_of("g")
    for at, change in ((0, lambda data: data[:-1] + bytes([data[-1] ^ 1])), (1, lambda data: b"\xff" * len(data))):
        base, data = log.batches[at]
        log.batches[at] = base, change(data)
    again = Broker(broker.logs).loaded()
    assert [p.partition_index for p in again.fetch("g")[0].groups[0].topics[0].partitions] == [2]
    assert caplog.text.count("skipped 2 record(s) or batch(es)") == 1


def test_an_answer_waits_for_the_offset_that_the_log_gave(broker):
    """--fsync always, and somebody else has written to the log: the number of our own records is not the offset."""
    broker.commit(offset=1, turn=True)
    log = broker.log_of("g")
    log.hold()
    log.append(build_batch([(broker.now, b"\x7f\xff", b"", [])] * 3), now=broker.now)
    log.sync()
    answers, fetched = broker.commit(offset=2), broker.fetch("g")
    broker.turn()
    broker.runtime.release_durable()
    assert (answers, fetched) == ([], [])
    log.sync()
    broker.runtime.release_durable()
    assert code(answers) == 0
    assert fetched[0].groups[0].topics[0].partitions[0].committed_offset == 2


def test_answers_go_out_in_the_order_of_the_writes(broker):
    """A sync has completed, but has not been reported yet, when the next write is durable at once."""
    order: list[int] = []
    broker.commit(offset=0, turn=True)
    log = broker.log_of("g")
    log.hold()
    for number in (1, 2):
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, number)])
        request = OffsetCommitRequest("g", topics=[topic])
        broker.runtime.submit(request, Client("cli", "", 8), lambda _, number=number: order.append(number))
        broker.turn()
        assert order == ([] if number == 1 else [1, 2])
        log.held = False


@pytest.mark.interpreted
def test_a_rule_that_raises_costs_its_shard_only(broker, caplog, monkeypatch):
    """A rule should not raise. If it does, its state cannot be trusted, but the log can."""
    broker.commit("g", offset=1)
    broker.commit("h")
    joining = broker.join("g", instance="a")
    broker.turn()
    waiting = broker.join("g", instance="b") + joining[1:]
    shard = broker.runtime._served[broker.runtime.partition_for("g")].shard
    monkeypatch.setattr(type(shard), "_check_commit", lambda *_: 1 // 0)
    assert code(broker.commit("g")) == ErrorCode.UNKNOWN_SERVER_ERROR
    monkeypatch.undo()
    assert waiting == []
    assert "ZeroDivisionError" in caplog.text
    assert code(broker.commit("g")) == ErrorCode.NOT_COORDINATOR  # not every request reads the log again
    assert broker.runtime.next_deadline() == broker.now + 1000
    assert broker.fetch("h")[0].groups[0].error_code == ErrorCode.NONE
    broker.now += 1000
    assert broker.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 1


@pytest.mark.interpreted
def test_what_a_dropped_shard_had_not_written_is_no_longer_written(broker, monkeypatch):
    """Its commits were answered with an error: they must not reappear when the log is read again."""
    broker.commit("g", offset=1, turn=True)
    second = broker.commit("g", offset=2)
    shard = broker.runtime._served[broker.runtime.partition_for("g")].shard
    monkeypatch.setattr(type(shard), "_check_commit", lambda *_: 1 // 0)
    broker.commit("g", offset=3)
    monkeypatch.undo()
    assert code(second) == ErrorCode.UNKNOWN_SERVER_ERROR
    broker.turn()
    broker.now += 1000
    assert broker.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 1
