"""What must always hold, and what must hold at the end.

The truth about a transaction is in the logs, when all their batches are read one after the other: every record names
its attempt. It is compared with the answers to producers, the records that readers got, and the state that the
coordinators and logs keep in memory. Promises:

 1. atomicity: all records and offsets of an attempt end alike, and a transaction in a log belongs to only one attempt;
 2. commit: only attempts that asked for it are committed; all that were reported committed are, complete and in order;
 3. isolation: a reader of committed records is given all of them and no other, however fetches split the log;
 4. no zombie: nothing of an older epoch is in a log after a newer one, or after the newer producer had its ids;
 5. no hanging: after the faults nothing stays open or undecided, and the last stable offset is the log's end;
 6. the last stable offset never goes back, and is not above the high watermark;
 7. read-process-write: each input is in the committed output once, up to the group's committed offset;
 8. replay: a shard read from its log equals the served one, including offsets pending in transactions;
 9. each request is answered once, within a bounded time (node.py, world.py);
10. an index of aborted transactions, and a log's producers, match its batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from muster.coordinator.groups.pending_offsets import PendingOffsets
from muster.coordinator.shards.loading import Loading
from muster.coordinator.shards.log_store import LogJournal
from muster.log import PartitionLog
from muster.model import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from muster.protocol.group_records import CommittedOffset, OffsetCommitRecord, decode_record
from muster.protocol.records.control_records import read_marker
from muster.protocol.records.record_batch import BatchHeader, iter_headers, read_records
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.node import SEGMENT_BYTES, Node
from tests.simulator.transactions.world import Attempt, World
from tests.support.transactions import check_rebuilt, read_committed


@dataclass
class Reported:
    """One record, and how its transaction ended: None if it has not."""

    where: TopicPartition
    offset: int
    attempt: str
    value: str
    producer: tuple[int, int]
    committed: bool | None = None


@dataclass
class Truth:
    """The complete contents of the logs."""

    records: list[Reported] = field(default_factory=list)
    transactions: dict[tuple[TopicPartition, int], set[str]] = field(default_factory=dict)
    """The attempts whose records are in each transaction of a log, by partition and the end of the transaction."""


def check(what: bool, sentence: str) -> None:
    """Raises InvariantError unless the condition holds."""
    if not what:
        raise InvariantError(sentence)


def truth_of(logs: list[PartitionLog]) -> Truth:
    """Read every log from its beginning."""
    truth = Truth()
    for log in logs:
        opened: dict[int, list[Reported]] = {}
        for segment in log.segments:
            for position, header in segment.headers():
                batch = segment.view(position, position + header.size)
                if header.is_control:
                    marker = read_marker(batch, 0, header)
                    ended = opened.pop(header.producer_id, [])
                    for reported in ended:
                        reported.committed = marker is not None and marker.committed
                    key = (log.topic_partition, header.base_offset)
                    truth.transactions[key] = {reported.attempt for reported in ended}
                elif header.is_transactional:
                    found = _reported(log.topic_partition, batch, header)
                    truth.records += found
                    opened.setdefault(header.producer_id, []).extend(found)
    return truth


def _reported(where: TopicPartition, batch: Any, header: BatchHeader) -> list[Reported]:
    producer, found = (header.producer_id, header.producer_epoch), []
    for record in read_records(batch, 0, header):
        if where.topic == GROUP_METADATA_TOPIC:
            offset = decode_record(record.key, record.value)
            assert isinstance(offset, OffsetCommitRecord)
            assert offset.value is not None
            attempt, value = offset.value.metadata, f"{offset.key.group} {offset.key.topic}-{offset.key.partition}"
        else:
            assert record.value is not None
            attempt, _, value = record.value.decode().partition(" ")
        found.append(Reported(where, record.offset, attempt, value, producer))
    return found


# ------------------------------------------------------------------------------------------------------ after each turn


class Watch:
    """The checks of every moment."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stable: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, tuple[int, int]] = {}
        self._turns = 0

    def look(self, node: Node) -> None:
        """After a turn of a broker."""
        if self._world.nodes[node.node_id] is not node:
            return  # another process has taken over its id
        for log in node.logs:
            where, ends = log.topic_partition, (log.log_end_offset, log.high_watermark)
            if self._seen.get(where) == ends:
                continue
            if where.topic not in INTERNAL_TOPICS:
                log.config.segment_bytes = SEGMENT_BYTES
            self._seen[where] = ends
            stable = log.last_stable_offset
            if ends[1] < ends[0] and self._turns % 16 == 0:
                check_log(log)
            check(stable <= log.high_watermark, f"the last stable offset of {where}, {stable}, is above {ends[1]}")
            before = self._stable.get(where, 0)
            check(stable >= before, f"the last stable offset of {where} went back from {before} to {stable}")
            self._stable[where] = stable
        self._turns += 1
        if self._turns % 500 == 0:
            self.look_closely()

    def forget(self) -> None:
        """The disk has lost what was not synced: an offset may be assigned again."""
        self._stable.clear()

    def look_closely(self) -> None:
        """The slow checks: memory against logs."""
        self._world.check_answers()
        for log in self._world.logs:
            check_log(log)
        for node in self._world.nodes.values():
            if node.is_ready:
                check_replay(node)


def check_log(log: PartitionLog) -> None:
    """The log's producers and its indexes match its batches."""
    try:
        check_rebuilt(log)
    except AssertionError as error:
        raise InvariantError(f"{log.topic_partition} does not know what is in it: {error}") from None


def check_replay(node: Node) -> None:
    """Shards loaded from their logs equal those that are served."""
    broker = node.broker
    assert broker is not None
    for runtime in (broker.transactions.runtime, broker.groups.runtime):
        for slot, served in runtime._served.items():
            journal = served.journal
            if served.is_all_durable and isinstance(journal, LogJournal):
                again = LogJournal(journal.log, journal.epoch, lambda _closed: None, True)
                loading: Any = Loading(slot, again, runtime._new_shard(), 0)
                while not loading.is_complete:
                    loading.step(1_000)
                kept, read = _state(served.shard), _state(loading.shard)
                check(kept == read, f"slot {slot} of {runtime._topic} has {kept}, its log {read}")


def _state(shard: Any) -> Any:
    if hasattr(shard, "entries"):
        return {
            name: entry._replace(last_update_ms=0, start_ms=min(entry.start_ms, 0))
            for name, entry in shard.entries.items()
        }
    offsets = {tuple(place): _value_of(value) for *place, value in shard.offsets}
    return offsets, _pending(shard.pending)


def _value_of(value: CommittedOffset) -> tuple[int, str]:
    """An offset and its metadata; times are compared separately."""
    return value[0], value[2]


def _pending(pending: PendingOffsets) -> Any:
    """What would be committed, and in which order."""
    found = {
        producer_id: {place: None if one is None else _value_of(one[1]) for place, one in places.items()}
        for producer_id, places in pending.by_producer.items()
        if places
    }
    order = [
        (producer_id, place)
        for _, producer_id, place in sorted(
            (one[0], producer_id, place)
            for producer_id, places in pending.by_producer.items()
            for place, one in places.items()
            if one is not None
        )
    ]
    return found, order, sorted(pending.open_keys())


# ----------------------------------------------------------------------------------------------------------- at the end


def check_settled(world: World) -> None:
    """Faults ended a while ago."""
    world.check_answers(2_000)
    for node in world.nodes.values():
        check(node.is_ready, f"{node} does not run")
        assert node.broker is not None
        for connection in node.connections:
            waiting = [name for name in connection.unanswered if name not in _LASTING]
            check(not waiting, f"never answered: {waiting}")
        for served in node.broker.transactions.runtime._served.values():
            for name, entry in served.shard.entries.items():
                check(entry.state.name in _ENDED, f"{name} is in {entry.state.name} forever")
    for log in world.logs:
        hanging = log.open_transactions()
        check(not hanging, f"open forever in {log.topic_partition}: {hanging}")
        ends = (log.last_stable_offset, log.high_watermark, log.log_end_offset)
        check(len(set(ends)) == 1, f"{log.topic_partition} has readers wait forever: {ends}")


_LASTING = ("FetchRequest",)
"""Requests that may wait long."""
_ENDED = ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT")


def check_truth(world: World, truth: Truth, *, has_offsets: bool = True) -> dict[str, bool]:
    """Promises 1, 2 and 4. Returns how each attempt that has a record ended. `has_offsets`: offsets of groups are in
    logs, too."""
    ends: dict[str, set[bool | None]] = {}
    for reported in truth.records:
        ends.setdefault(reported.attempt, set()).add(reported.committed)
    for (where, offset), attempts in truth.transactions.items():
        check(len(attempts) <= 1, f"the marker at {offset} of {where} ends {sorted(attempts)} together")
    for name, found in ends.items():
        check(len(found) == 1, f"{name} ended differently here and there: {_whereabouts(truth, name)}")
    fates = {name: next(iter(found)) is True for name, found in ends.items()}
    for attempt in world.attempts.values():
        _check_attempt(attempt, fates, truth)
        if has_offsets and (fates.get(attempt.name) or attempt.reported is True):
            _check_offsets(attempt, truth)
    _check_zombies(world, truth)
    return fates


def _whereabouts(truth: Truth, name: str) -> str:
    found = [(str(one.where), one.offset, one.producer, one.committed) for one in truth.records if one.attempt == name]
    return str(found)


def _check_attempt(attempt: Attempt, fates: dict[str, bool], truth: Truth) -> None:
    name, committed = attempt.name, fates.get(attempt.name)
    mine = [one for one in truth.records if one.attempt == name]
    if attempt.reported is True:
        check(
            committed is not False,
            f"{name} was reported as committed, and was aborted: {_whereabouts(truth, name)}",
        )
    elif attempt.reported is False or attempt.reported_no_commit:
        check(not committed, f"{name} was not committed, as reported, and then it was: {_whereabouts(truth, name)}")
    if committed:
        check(True in attempt.asked, f"{name} was committed, and did not ask for it: {_whereabouts(truth, name)}")
    if committed or attempt.reported is True:
        found: dict[TopicPartition, list[str]] = {}
        for one in mine:
            if one.where.topic not in INTERNAL_TOPICS:
                found.setdefault(one.where, []).append(one.value)
        wanted: dict[TopicPartition, list[str]] = {}
        for where, value in attempt.acked:
            wanted.setdefault(where, []).append(value)
        check(found == wanted, f"{name} was committed with {found}, and had written {wanted}")
        for number, offset in attempt.places.items():
            where, value = attempt.sent[number]
            there = [one.offset for one in mine if (one.where, one.value) == (where, value)]
            check(there == [offset], f"{value!r} of {name} is at {there} of {where}, and was reported at {offset}")


def _check_offsets(attempt: Attempt, truth: Truth) -> None:
    offsets = {one.value for one in truth.records if one.attempt == attempt.name and one.where.topic in INTERNAL_TOPICS}
    for group, partition, _ in attempt.offsets:
        check(f"{group} {partition}" in offsets, f"{attempt.name} was committed without the offset of {partition}")


def _check_zombies(world: World, truth: Truth) -> None:
    newest: dict[tuple[TopicPartition, int], int] = {}
    for log in world.logs:
        for segment in log.segments:
            for _, header in segment.headers():
                if header.producer_id < 0:
                    continue
                key = (log.topic_partition, header.producer_id)
                check(
                    header.producer_epoch >= newest.get(key, -1),
                    f"offset {header.base_offset} of {key[0]} is of producer {key[1]}, epoch {header.producer_epoch}, "
                    f"after epoch {newest.get(key)}",
                )
                newest[key] = header.producer_epoch
    for producer_id, epoch, log_ends in world.fences:
        for one in truth.records:
            is_late = one.producer[0] == producer_id and one.offset >= log_ends.get(one.where, one.offset + 1)
            check(
                not (is_late and one.producer[1] < epoch),
                f"{one.attempt} wrote offset {one.offset} of {one.where} after epoch {epoch} had its ids",
            )


def check_readers(world: World, given: dict[TopicPartition, list[tuple[int, str]]], truth: Truth) -> None:
    """What readers got, each from the beginning of a partition on, and what reads return now."""
    for where, found in given.items():
        wanted = [
            (one.offset, f"{one.attempt} {one.value}") for one in truth.records if one.committed and one.where == where
        ]
        check(found == wanted, f"a reader of {where} was given {_without_common(found, wanted)}")
    for log in world.logs:
        if log.topic_partition.topic not in INTERNAL_TOPICS and log.topic_partition in given:
            wanted_offsets = [one.offset for one in truth.records if one.committed and one.where == log.topic_partition]
            start = world.rng.randint(0, log.log_end_offset)
            found_offsets = [row[0] for row in read_committed(log, start, world.rng.choice((1, 150, 400, 5_000)))]
            wanted_here = [offset for offset in wanted_offsets if offset >= start]
            check(
                found_offsets == wanted_here,
                f"from {start} on {log.topic_partition} is read as {found_offsets}, and has {wanted_here}",
            )


def _without_common(found: list[Any], wanted: list[Any]) -> str:
    at = next((i for i, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), len(wanted))
    return f"…{found[at : at + 3]} and not …{wanted[at : at + 3]}"


def check_processing(world: World, fates: dict[str, bool], committed_offset: int, group: str) -> None:
    """Promise 7. `committed_offset`: the group's, at the end."""
    done = Counter(i for attempt in world.attempts.values() if fates.get(attempt.name) for i in attempt.inputs)
    twice = [i for i, count in done.items() if count > 1]
    check(not twice, f"processed twice: {twice}")
    wanted = set(range(committed_offset))
    check(set(done) == wanted, f"{group} has committed {committed_offset}, and processed {sorted(done)}")


def committed_rows(data: Any, aborted: list[tuple[int, int]], at: int) -> tuple[list[tuple[int, str]], int]:
    """The records of a fetch from an offset on that a reader gets, and the offset of its next fetch."""
    from muster.protocol.records.aborted import AbortedTransactions

    dropped, found, end = AbortedTransactions(aborted), [], at
    for position, header in iter_headers(data):
        if not dropped.drops(data, position, header) and not header.is_control:
            records = read_records(data, position, header)
            found += [(one.offset, one.value.decode()) for one in records if one.offset >= at and one.value]
        end = header.last_offset + 1
    return found, max(end, at)
