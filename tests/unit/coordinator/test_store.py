"""Slots that come, go and move between coordinators: epochs, fencing, and which errors clients get. Over logs, and over
a store behind a network that a coordinator has to wait for."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.broker.net.calls import at_once
from muster.coordinator.shards.log_store import SLICE, ShardLogStore
from muster.coordinator.shards.store import FencedError, Piece
from muster.errors import ErrorCode, KafkaError
from muster.protocol import messages as m
from muster.protocol.records.record_batch import BatchBuilder, iter_headers
from tests.support.memory_log import MemoryLog
from tests.support.runtime_broker import Broker, code
from tests.support.slow_store import Cells, SlowStore
from tests.support.written import build_batch

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def slot_of(broker: Broker, group_id: str = "g") -> int:
    return broker.runtime.partition_for(group_id)


def committed(broker: Broker, group_id: str = "g", partition: int = 0) -> int:
    """The committed offset of a group, or the error that it gets, negated."""
    (answer,) = broker.fetch(group_id)
    [group] = answer.groups
    if group.error_code:
        return -int(group.error_code)
    found = {each.partition_index: each.committed_offset for topic in group.topics for each in topic.partitions}
    return int(found.get(partition, 0))


def commit_now(broker: Broker, group_id: str = "g", offset: int = 1) -> int:
    answers = broker.commit(group_id, offset, turn=True)
    return code(answers)


# -------------------------------------------------------------------------------------------------- one slot moves away


def test_whoever_waits_for_a_slot_that_moves_away_is_sent_on(broker):
    """A sync that waits for others, a commit that is not written, one that is not durable; another slot continues."""
    neighbour = next(name for name in map(str, range(10_000)) if slot_of(broker, name) == slot_of(broker))
    first, second = broker.join(instance="a"), broker.join(instance="b")
    broker.turn()
    broker.now += 1  # the group keeps waiting while members keep coming
    broker.turn()
    assert first[0].leader == first[0].member_id
    share = broker.send(m.SyncGroupRequest("g", 1, second[0].member_id), 4)
    broker.log_of("g").hold()
    written = broker.commit(neighbour, 5, turn=True)
    decided, other = broker.commit(neighbour, 6), broker.commit("h")
    assert (share, written, decided) == ([], [], [])
    end = broker.log_of("g").log_end_offset
    broker.runtime.unload(slot_of(broker))
    assert [code(each) for each in (share, written, decided)] == [NOT_COORDINATOR] * 3
    broker.turn()
    assert code(other) == 0
    assert broker.log_of("g").log_end_offset == end  # decisions that were not written are dropped
    broker.log_of("g").sync()
    broker.now += 3_600_000
    broker.turn()
    assert committed(broker) == -NOT_COORDINATOR
    assert broker.runtime.heartbeat("g", 1, "x") is NOT_COORDINATOR
    assert commit_now(broker, "h", 2) == 0


def test_a_slot_comes_back_by_a_newer_epoch_only(broker):
    slot = slot_of(broker)
    commit_now(broker, offset=1)
    broker.runtime.unload(slot, 4)
    for epoch in (0, 3, 4):  # older than the known epoch, or its successor's
        assert not broker.runtime.load(slot, epoch)
        assert committed(broker) == -NOT_COORDINATOR
    assert broker.runtime.load(slot, 5)
    assert committed(broker) == 1


def test_news_of_older_epochs_change_nothing(broker):
    slot = slot_of(broker)
    broker.runtime.load(slot, 5)
    commit_now(broker, offset=1)
    waiting = broker.commit(offset=2)
    for epoch in (0, 4, 5):  # 5 is the epoch with which the slot is held
        broker.runtime.unload(slot, epoch)
    assert not broker.runtime.load(slot, 4)
    assert waiting == []
    broker.turn()
    assert (code(waiting), committed(broker)) == (0, 2)


def test_to_load_again_under_the_same_epoch_changes_nothing(broker):
    slot = slot_of(broker)
    broker.runtime.load(slot, 5)
    waiting = broker.commit(offset=2)
    opened = len(broker.opened)
    assert broker.runtime.load(slot, 5)
    broker.turn()
    assert (code(waiting), len(broker.opened)) == (0, opened)


def test_a_newer_epoch_reads_again(broker):
    """Another coordinator has had the slot in between."""
    slot = slot_of(broker)
    broker.runtime.load(slot, 5)
    commit_now(broker, offset=1)
    waiting = broker.commit(offset=2)
    other = Broker(broker.logs)
    other.runtime.load(slot, 6)
    commit_now(other, offset=3)
    assert broker.runtime.load(slot, 7)
    assert (code(waiting), committed(broker)) == (NOT_COORDINATOR, 3)
    broker.turn()
    assert committed(broker) == 3


def test_a_coordinator_has_the_slots_that_it_was_given():
    broker = Broker()
    assert committed(broker) == -LOADING
    assert broker.runtime.load(slot_of(broker), 3)
    assert commit_now(broker) == 0
    assert commit_now(broker, "h") == NOT_COORDINATOR
    assert broker.opened == [slot_of(broker)]


@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_a_closed_coordinator_takes_no_slot(broker, epoch):
    commit_now(broker)
    broker.runtime.close()
    assert not broker.runtime.load(slot_of(broker), epoch)
    assert committed(broker) == -ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_topic_that_is_made_again_begins_with_any_epoch(broker):
    broker.runtime.load(slot_of(broker), 7)
    commit_now(broker)
    broker.runtime.unload(slot_of(broker, "h"), 9)
    broker.runtime.unload_all()
    broker.logs.clear()
    assert broker.runtime.load(slot_of(broker, "h"), 2)
    broker.runtime.load_all([], 3)
    assert (committed(broker), commit_now(broker, offset=3), committed(broker)) == (0, 0, 3)


def test_a_slot_that_could_not_be_read_leaves_nothing_behind(broker, monkeypatch):
    """Its topic is created again, with an older epoch than the load that failed."""
    commit_now(broker)
    monkeypatch.setattr(broker.log_of("g"), "read", lambda offset, max_bytes: 1 // 0)
    assert broker.runtime.load(slot_of(broker), 5)
    assert committed(broker) == -NOT_COORDINATOR
    broker.runtime.unload_all()
    broker.logs.clear()
    broker.runtime.load_all([], 0)
    assert commit_now(broker) == 0


def test_a_look_up_waits_for_what_was_written_without_an_answer(broker):
    """The offsets of a deleted topic are removed, and nobody waits for that. They are not gone until that is
    durable."""
    commit_now(broker, offset=1)
    log = broker.log_of("g")
    log.hold()
    waiting = broker.commit(offset=2, turn=True)
    durable = log.log_end_offset
    at_once(broker.runtime.topics_deleted(["t"]))
    broker.turn()
    log._durable = durable
    broker.runtime.release_durable()
    assert code(waiting) == 0
    fetched = broker.fetch("g")
    assert fetched == []
    log.sync()
    broker.runtime.release_durable()
    assert fetched[0].groups[0].topics == []


def test_the_store_gets_the_time_of_day(broker, monkeypatch):
    """The rules' clock continues when the machine's clock is set; a log uses the time of day."""
    commit_now(broker)
    broker.runtime._wall_clock = lambda: broker.now + 3_600_000
    log, reported = broker.log_of("g"), []

    def append(batches: bytearray, *, now: int, **rest: Any) -> Any:
        reported.append(now)
        return MemoryLog.append(log, batches, now=now, **rest)

    monkeypatch.setattr(log, "append", append)
    assert commit_now(broker, offset=2) == 0
    assert reported == [broker.now + 3_600_000]


# ----------------------------------------------------------------------------------------- two coordinators of one slot


def test_the_older_of_two_coordinators_of_a_log_is_fenced(broker, caplog):
    """In one process, with the same logs; the older one still has `h`."""
    slot, store = slot_of(broker), broker.runtime._store
    commit_now(broker, offset=1)
    commit_now(broker, "h", 1)
    late = broker.commit(offset=2)
    successor = Broker(broker.logs, store=store)
    assert successor.runtime.load(slot, 1)
    assert commit_now(successor, offset=3) == 0
    broker.turn()
    assert code(late) == NOT_COORDINATOR
    assert "epoch 0 ended with epoch 1" in caplog.text
    broker.now += 3_600_000
    broker.turn()
    assert committed(broker) == -NOT_COORDINATOR  # a failed log would have been read again by now
    assert commit_now(broker, "h", 4) == 0
    assert committed(successor) == 3


def test_a_log_that_is_led_under_a_newer_epoch_fences(broker, monkeypatch):
    """In another process: only the log knows."""
    commit_now(broker, offset=1)
    commit_now(broker, "h", 1)

    def refuse(batches: bytearray, **_: Any) -> Any:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "led under epoch 1")

    monkeypatch.setattr(broker.log_of("g"), "append", refuse)
    assert commit_now(broker, offset=2) == NOT_COORDINATOR
    monkeypatch.undo()
    broker.now += 3_600_000
    broker.turn()
    assert committed(broker) == -NOT_COORDINATOR
    assert commit_now(broker, "h", 2) == 0
    assert broker.runtime.load(slot_of(broker), 2)
    assert committed(broker) == 1


def test_what_was_durable_before_it_was_fenced_is_acknowledged(broker):
    slot = slot_of(broker)
    commit_now(broker, offset=1)
    log = broker.log_of("g")
    log.hold()
    waiting = broker.commit(offset=2, turn=True)
    log.sync()
    assert Broker(broker.logs, store=broker.runtime._store).runtime.load(slot, 1)
    assert waiting == []
    broker.runtime.release_durable()
    assert code(waiting) == 0


def test_a_log_of_a_newer_epoch_is_not_read(broker, caplog):
    slot = slot_of(broker)
    broker.runtime.load(slot, 5)
    commit_now(broker)
    behind = Broker(broker.logs)
    assert not behind.runtime.load(slot, 4)
    assert "written under epoch 5, newer than 4" in caplog.text
    assert committed(behind) == -NOT_COORDINATOR
    assert behind.runtime.load(slot, 6)
    assert committed(behind) == 1


def commit_record(offset: int) -> BatchBuilder:
    """As a coordinator writes it."""
    broker = Broker().loaded()
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, offset)])
    broker.send(m.OffsetCommitRequest("g", topics=[topic]), 8)
    served = broker.runtime._served[slot_of(broker)]
    return served.batch


def test_what_an_older_epoch_wrote_after_a_newer_began_is_left_out(broker, caplog):
    log = broker.logs[slot_of(broker)] = MemoryLog()
    for epoch, offset in ((1, 10), (2, 20), (1, 30), (2, 40), (1, 50)):
        log.append(commit_record(offset).build(), now=broker.now, leader_epoch=epoch)
    assert broker.runtime.load(slot_of(broker), 3)
    assert committed(broker) == 40
    assert "skipped 2 record(s) or batch(es)" in caplog.text
    assert "the first at 2: " in caplog.text


@given(st.lists(st.integers(0, 3), max_size=12))
def test_any_order_of_epochs_in_a_log(epochs):
    """A record is read if no record before it has a newer epoch; the order is kept."""
    log, kept, newest = MemoryLog(), [], 0
    for at, epoch in enumerate(epochs):
        log.append(build_batch([(0, b"%d" % at, None, [])]), now=0, leader_epoch=epoch)
        newest = max(newest, epoch)
        if epoch == newest:
            kept.append(b"%d" % at)
    journal = ShardLogStore(lambda slot: log).load(0, 3)
    found, is_last = [], False
    while not is_last:
        piece = journal.read(1)
        found += [key for _, key, _ in piece.records]
        is_last = piece.is_last
    assert found == kept


def alone(logs: dict[int, MemoryLog]) -> Broker:
    """A coordinator whose logs nobody else writes to."""
    return Broker(logs, store=ShardLogStore(lambda slot: logs.setdefault(slot, MemoryLog()), alone=True)).loaded()


def test_a_standalone_coordinator_continues_where_one_of_a_cluster_stopped():
    """It reads records of any epoch, and writes with the newest: so the log can be used by a cluster again."""
    log, logs = MemoryLog(), {}
    logs[slot_of(Broker())] = log
    for epoch, offset in ((1, 10), (7, 20), (0, 30)):
        log.append(commit_record(offset).build(), now=0, leader_epoch=epoch)
    broker = alone(logs)
    assert committed(broker) == 30
    assert commit_now(broker, offset=40) == 0
    assert committed(alone(logs)) == 40
    assert next(iter_headers(log.batches[-1][1]))[1].partition_leader_epoch == 7
    again = Broker(logs)
    assert again.runtime.load(slot_of(again), 8)
    assert committed(again) == 40


@pytest.mark.parametrize("count", [1, SLICE, SLICE + 1, 3 * SLICE])
def test_a_large_batch_is_read_in_pieces(count):
    log = MemoryLog()
    log.append(build_batch([(0, b"%d" % at, b"v", []) for at in range(count)]), now=0)
    journal = ShardLogStore(lambda slot: log).load(0, 0)
    pieces: list[Piece] = []
    while not (pieces and pieces[-1].is_last):
        pieces.append(journal.read(10))
    assert [where for piece in pieces for where, _, _ in piece.records] == list(range(count))
    assert max(len(piece.records) for piece in pieces) <= SLICE


def test_a_journal_that_is_closed_takes_nothing():
    log = MemoryLog()
    store = ShardLogStore(lambda slot: log)
    journal = store.load(0, 1)
    journal.write(commit_record(1), 0)
    journal.close()
    with pytest.raises(KafkaError) as refused:
        journal.write(commit_record(2), 0)
    assert not isinstance(refused.value, FencedError)
    assert log.appends == 1
    store.load(0, 0)  # the topic may have been created again


def test_an_older_epoch_than_that_of_an_open_journal_is_refused():
    store = ShardLogStore(lambda slot: MemoryLog())
    journal = store.load(0, 2)
    with pytest.raises(FencedError):
        store.load(0, 1)
    assert journal.failed is None
    store.load(1, 1)  # each slot has its own


def test_an_older_journal_does_not_take_the_newer_with_it():
    store = ShardLogStore(lambda slot: MemoryLog())
    older, newer = store.load(0, 1), store.load(0, 2)
    assert (isinstance(older.failed, FencedError), newer.failed) == (True, None)
    older.close()
    with pytest.raises(FencedError):
        store.load(0, 1)
    assert newer.failed is None


# ------------------------------------------------------------------------------------------ a store behind a network


@pytest.fixture
def cells() -> Cells:
    return Cells()


def far(cells: Cells, *, loads: bool = True) -> tuple[Broker, SlowStore]:
    """A coordinator over a store behind a network."""
    store = SlowStore(cells)
    broker = Broker(store=store)
    store.on_news = broker.runtime.release_durable
    if loads:
        broker.runtime.load_all([], 1)
        broker.commit()  # the first request of a group makes its slot be read
        store.deliver()
    return broker, store


def test_groups_live_in_a_store_behind_a_network(cells):
    broker, store = far(cells)
    answers = [broker.commit(offset=offset, partition=offset % 3) for offset in range(1, 10)]
    read = broker.fetch("g")
    broker.turn()
    assert ([code(each) for each in answers if each], read) == ([], [])
    store.deliver()
    assert [code(each) for each in answers] == [0] * 9
    assert cells.transactions == 1
    again, wire = far(cells, loads=False)
    again.runtime.load(slot_of(again), 2)
    assert committed(again) == -LOADING
    wire.deliver()
    assert [committed(again, partition=partition) for partition in range(3)] == [9, 7, 8]


def test_a_load_that_has_to_wait_holds_nobody_up(cells):
    broker, store = far(cells, loads=False)
    broker.runtime.load(slot_of(broker), 1)
    broker.runtime.load(slot_of(broker, "h"), 1)
    assert (committed(broker), committed(broker, "h")) == (-LOADING, -LOADING)
    store.deliver(slot=slot_of(broker, "h"))
    assert (committed(broker), committed(broker, "h")) == (-LOADING, 0)
    store.deliver()
    assert committed(broker) == 0


def test_a_load_that_has_to_wait_takes_no_turns(cells):
    """Otherwise the loop would be blocked until the store has answered."""
    broker, store = far(cells, loads=False)
    due: list[Callable[[], None]] = []
    broker.runtime._later = due.append
    broker.runtime.load(slot_of(broker), 1)
    due.pop()()
    assert committed(broker) == -LOADING
    assert due == []
    store.deliver()
    assert due
    while due:
        due.pop()()
    assert committed(broker) == 0


def test_a_late_piece_of_a_load_that_was_given_up_is_ignored(cells):
    first, store = far(cells)
    for partition in range(4):
        first.commit(offset=10, partition=partition)
    first.turn()
    store.deliver()
    broker, wire = far(cells, loads=False)
    broker.runtime.load(slot_of(broker), 2)
    wire.deliver(1)  # requested, and some of it is in flight
    broker.runtime.unload(slot_of(broker), 3)
    assert committed(broker) == -NOT_COORDINATOR
    other, line = far(cells, loads=False)
    other.runtime.load(slot_of(other), 3)
    line.deliver()
    commit = other.commit(offset=20, partition=3)
    other.turn()
    line.deliver()
    assert code(commit) == 0
    broker.runtime.load(slot_of(broker), 4)
    wire.deliver(1)  # of the load that was given up
    assert committed(broker) == -LOADING
    wire.deliver()
    assert [committed(broker, partition=partition) for partition in range(4)] == [10, 10, 10, 20]


def test_what_a_fenced_coordinator_sent_is_refused_where_it_arrives(cells):
    broker, store = far(cells)
    sent = broker.commit(offset=5, turn=True)
    reading, waiting = broker.fetch("g"), broker.join(instance="a")
    successor, line = far(cells, loads=False)
    successor.runtime.load(slot_of(successor), 2)
    line.deliver()
    store.deliver()
    assert code(sent) == NOT_COORDINATOR
    assert reading[0].groups[0].error_code == NOT_COORDINATOR
    assert code(waiting) == NOT_COORDINATOR
    broker.now += 3_600_000
    broker.turn()
    assert (store.deliver(), committed(broker), committed(successor)) == (0, -NOT_COORDINATOR, 0)


def test_a_coordinator_that_asks_for_a_slot_under_an_epoch_that_is_over(cells):
    _successor, line = far(cells, loads=False)
    _successor.runtime.load(slot_of(_successor), 2)
    line.deliver()
    broker, store = far(cells, loads=False)
    assert broker.runtime.load(slot_of(broker), 1)
    assert committed(broker) == -LOADING
    store.deliver()
    assert committed(broker) == -NOT_COORDINATOR
    assert broker.runtime.next_deadline() is None
    assert broker.runtime.load(slot_of(broker), 3)


def test_a_store_that_cannot_be_reached_is_asked_again(cells):
    broker, store = far(cells, loads=False)
    store.is_cut = True
    assert broker.runtime.load(slot_of(broker), 1)
    assert committed(broker) == -NOT_COORDINATOR
    store.is_cut = False
    broker.now += 1_000
    broker.turn()
    store.deliver()
    assert committed(broker) == 0
