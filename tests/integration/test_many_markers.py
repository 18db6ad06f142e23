"""Transactions in many partitions, whose markers are written a slice at a time: with clients that do not wait for the
end, a disk that becomes full in the middle of it, and kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker.net import slices
from muster.errors import ErrorCode
from muster.log import PartitionLog
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import iter_headers
from tests.support.brokers import BrokerProcess, RawClient, in_thread, log_of, running
from tests.support.faulty_disk import FaultyDisk
from tests.support.transaction_sides import TransactionSide

PARTITIONS = 200
MARKER_BYTES = 78


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "muster") as process:
        with RawClient(process.bootstrap) as client:
            made = client.ask(m.CreateTopicsRequest([m.CreatableTopic("t", PARTITIONS, 1)], 60_000), 7)
            assert made.topics[0].error_code == 0
        yield process


def places(count: int = PARTITIONS) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in range(count)]


def begun(client: RawClient, name: str, records: int = 0) -> TransactionSide:
    """A transaction in all partitions, with a record in some of them."""
    side = TransactionSide(client, "t", name).begin()
    side.settled(lambda: client.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4).coordinators[0])
    added = side.add(3, None, *places())
    assert {
        each.partition_error_code
        for topic in added.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    } == {0}
    for index in range(records):
        assert not side.produce(9, partition=index).error_code
    return side


def ends(client: RawClient) -> list[list[int]]:
    """The last stable offset and the high watermark of each partition."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for isolation in (1, 0):
        for each in client.ask(ends_request(isolation), 4).topics[0].partitions:
            assert not each.error_code
            found[each.partition_index].append(each.offset)
    return found


def ends_request(isolation: int) -> m.ListOffsetsRequest:
    asked = [m.ListOffsetsPartition(index, -1, -1) for index in range(PARTITIONS)]
    return m.ListOffsetsRequest(-1, isolation, [m.ListOffsetsTopic("t", asked)])


def end_request(side: TransactionSide) -> t.EndTxnRequest:
    return t.EndTxnRequest(side.name, side.producer_id, side.epoch, True)


def until_settled(client: RawClient) -> None:
    """Wait until no transaction is open or being finished."""
    asked = t.ListTransactionsRequest(["Ongoing", "PrepareCommit", "PrepareAbort"])
    while (found := client.ask(asked, 0)).error_code or found.transaction_states:
        pass


@pytest.mark.slow
def test_transactions_whose_clients_leave_at_once_are_finished(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        sides = [begun(client, f"left-{number}") for number in range(20)]
        for side in sides:
            with RawClient(broker.bootstrap) as gone:
                gone.send(end_request(side), 3)
                client.ask(t.ListTransactionsRequest([]), 0)  # the broker has seen it
        for side in sides:
            side.settled(lambda side=side: client.ask(end_request(side), 3))  # or it does so now
        until_settled(client)
        assert ends(client) == [[20, 20]] * PARTITIONS


@pytest.mark.slow
def test_an_end_that_is_repeated_and_records_that_come_during_it(broker: BrokerProcess) -> None:
    """Each partition has one marker. A record that comes before it belongs to the transaction, as in Kafka; none comes
    after it without a transaction."""
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as again:
        side = begun(client, "x", records=50)
        for _ in range(30):
            again.send(end_request(side), 3)
        late = [side.produce(9, partition=index).error_code for index in range(50)]
        answers = [again.receive(t.EndTxnRequest, 3).error_code for _ in range(30)]
        until_settled(client)
        assert answers[0] == ErrorCode.NONE
        assert set(answers) <= {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
        # The equivalent of CONCURRENT_TRANSACTIONS for clients of this version.
        again_later = ErrorCode.NOT_ENOUGH_REPLICAS
        assert set(late) <= {ErrorCode.NONE, again_later, ErrorCode.INVALID_TXN_STATE}
        written = [2 + (not error) for error in late] + [1] * (PARTITIONS - 50)
        assert ends(client) == [[end, end] for end in written]


@pytest.mark.slow
def test_markers_from_outside_for_more_partitions_than_there_are(broker: BrokerProcess) -> None:
    def ask(partitions: list[int]) -> list[int]:
        marker = t.WritableTxnMarker(7, 0, False, [t.WritableTxnMarkerTopic("t", partitions)], 0, 0)
        with RawClient(broker.bootstrap) as client:
            (found,) = client.ask(t.WriteTxnMarkersRequest([marker]), 1).markers
            return [each.error_code for each in found.topics[0].partitions]

    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(list(range(19_900))) == [0] * PARTITIONS + [missing] * (19_900 - PARTITIONS)
    assert ask([0] * 19_900) == [0] * 19_900
    with pytest.raises(EOFError):
        ask(list(range(30_000)))
    with RawClient(broker.bootstrap) as client:
        assert ends(client) == [[19_901, 19_901]] + [[1, 1]] * (PARTITIONS - 1)


@pytest.mark.slow
def test_a_broker_that_is_killed_between_markers_writes_the_others(broker: BrokerProcess) -> None:
    expected = [0] * PARTITIONS
    for number in range(10):
        client = RawClient(broker.bootstrap)
        side = begun(client, f"killed-{number}", records=20)
        before = ends(client)
        # Requested at the same moment: on a busy machine all markers would be written before the next request came.
        client.send(end_request(side), 3)
        client.send(ends_request(0), 4)
        assert not client.receive(t.EndTxnRequest, 3).error_code
        found = client.receive(m.ListOffsetsRequest, 4).topics[0].partitions
        broker.kill()
        seen = [each.offset for each in sorted(found, key=lambda each: each.partition_index)]
        client.close()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            until_settled(client)
            now = ends(client)
        assert all(stable == end for stable, end in now)
        # A marker that was written before its coordinator had recorded it is written again.
        assert all(end - first in (1, 2) for (end, _), (_, first) in zip(now, before, strict=True))
        expected = [end for end, _ in now]
        if seen != expected:
            break
    else:
        pytest.fail("every kill came after the last marker")


@pytest.mark.slow
@pytest.mark.parametrize("whole", range(0, 12, 3))
@pytest.mark.parametrize("part", [0, 1, MARKER_BYTES - 1])
async def test_a_disk_that_is_full_between_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, part: int
) -> None:
    """Once there is space, each partition gets its marker, and no reader has found half of one."""
    monkeypatch.setattr(slices, "SLICE_S", 0)
    disk, count = FaultyDisk(), 12
    async with running(tmp_path, files=disk) as broker:
        broker.changes.create_topic("t", count, {})
        writer = broker.transactions.writer
        write_all, full = writer.write_all, asyncio.Event()

        def fill(marker: TxnMarker, where: Any, done: Any) -> None:
            if not full.is_set():
                disk.fill_up(whole * MARKER_BYTES + part)
                full.set()
            write_all(marker, where, done)

        monkeypatch.setattr(writer, "write_all", fill)
        client = await in_thread(RawClient, broker.bootstrap)
        side = await in_thread(lambda: TransactionSide(client, "t", "x", "g").begin())
        await in_thread(lambda: side.add(3, None, *places(count)))
        await in_thread(lambda: side.settled(side.add_offsets))
        while (await in_thread(side.commit_offsets)).topics[0].partitions[0].error_code:
            pass  # the group's coordinator is still loading
        for index in range(count):
            assert not (await in_thread(lambda: side.produce(9, partition=index))).error_code  # noqa: B023
        ended = asyncio.ensure_future(in_thread(client.ask, end_request(side), 3))
        await full.wait()
        for _ in range(3 * count):
            await asyncio.sleep(0)
        logs = [log_of(broker, "t", index) for index in range(count)]
        assert sum(log.high_watermark for log in logs) <= count + whole
        disk.mend()
        assert (await ended).error_code in (0, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR)
        await in_thread(until_settled, client)
        stable = (await in_thread(side.offsets, True)).groups[0].topics[0].partitions[0]
        assert (stable.error_code, stable.committed_offset) == (0, 5)
        client.close()
        assert all(log.last_stable_offset == log.high_watermark for log in logs)
        assert all(markers(log) in ([False, True], [False, True, True]) for log in logs)


def markers(log: PartitionLog) -> list[bool]:
    """Whether each batch of a log is a marker."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20)
        found += [header.is_control for _, header in iter_headers(read.data)]
        offset = read.next_offset
    return found
