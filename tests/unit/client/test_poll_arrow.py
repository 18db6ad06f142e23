"""Arrow tables from the fetcher: the same records, positions and errors as its Python objects."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from muster.arrow import COLUMNS
from muster.client.consumer.arrow import ArrowReader
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.errors import ConfigError, CorruptRecordError, IllegalStateError
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.api import READ_COMMITTED
from tests.support.one_broker import P0, P1, OneBroker
from tests.support.written import build_batch

NOWHERE = "127.0.0.1:1"
ZERO = TopicPartition("flights", 0)


def reader_of(broker, columns=COLUMNS):
    return ArrowReader(broker.config, broker.fetcher, columns)


def offsets(tables):
    return {partition: table.column("offset").to_pylist() for partition, table in tables.items()}


def damaged(broker, index, at):
    """Inverts one byte of one batch in the log of P0."""
    base, after, batch = broker.logs[P0][index]
    batch = bytearray(batch)
    batch[at] ^= 0xFF
    broker.logs[P0][index] = (base, after, bytes(batch))


def test_all_that_was_fetched_comes_as_one_table_for_each_partition():
    broker = OneBroker.fetched({P0: [3, 1, 4], P1: [2]}, max_batches=3)
    tables = reader_of(broker).collect()
    assert offsets(tables) == {P0: list(range(8)), P1: [0, 1]}
    assert tables[P0].column_names == list(COLUMNS)
    assert tables[P0].column("value").to_pylist() == [b"%d" % number for number in range(8)]
    assert set(tables[P1].column("partition").to_pylist()) == {1}
    assert broker.subscription.position(P0) == 8
    assert reader_of(broker).collect() == {}


def test_only_the_columns_that_are_asked_for():
    broker = OneBroker.fetched({P0: [2]})
    [table] = reader_of(broker, ["value", "offset"]).collect().values()
    assert table.to_pydict() == {"value": [b"0", b"1"], "offset": [0, 1]}


def test_a_position_inside_a_batch_is_minded():
    broker = OneBroker({P0: [5]})
    broker.subscription.seek(P0, 3)
    broker.exchange()
    assert offsets(reader_of(broker).collect()) == {P0: [3, 4]}


@pytest.mark.parametrize("taken", [1, 2, 3, 4, 5])
def test_records_and_tables_in_turn_leave_nothing_out(taken):
    broker = OneBroker({P0: [2, 3, 2]}, max_batches=3)
    reader = reader_of(broker)
    broker.exchange()
    seen = [record.offset for record in broker.fetcher.collect(taken)[P0]]
    while broker.subscription.position(P0) != 7:
        seen += offsets(reader.collect()).get(P0, [])
        broker.exchange()
    assert seen == list(range(7))
    assert all(after - before == 1 for before, after in pairwise(seen))


@pytest.mark.parametrize("at", [17, 64], ids=["crc", "record"])
def test_records_before_a_damaged_batch_are_handed_out_then_comes_the_error(at):
    broker = OneBroker({P0: [2, 1, 3]}, max_batches=3)
    damaged(broker, 1, at)
    broker.exchange()
    state = broker.subscription.state(P0)
    state.leader, state.seen_version = (1, 0), 1  # the position was found to be valid for it
    assert offsets(reader_of(broker).collect()) == {P0: [0, 1]}
    assert (state.leader, state.seen_version) == ((1, 0), 1), "else it is validated, and the error goes with the queue"
    for _ in range(3):
        assert broker.fetcher.has_records
        with pytest.raises(CorruptRecordError, match="t-0 is damaged at offset 2"):
            reader_of(broker).collect()
        assert broker.subscription.position(P0) == 2
        assert not broker.exchange()  # it waits for the user
    broker.subscription.seek(P0, 3)
    broker.exchange()
    assert offsets(reader_of(broker).collect()) == {P0: [3, 4, 5]}


def test_records_that_are_broken_after_a_good_crc():
    broker = OneBroker({P0: [1, 1]}, max_batches=2, check_crcs=False)
    damaged(broker, 1, 61)
    broker.exchange()
    assert offsets(reader_of(broker).collect()) == {P0: [0]}
    with pytest.raises(CorruptRecordError, match="t-0 is damaged at offset 1"):
        reader_of(broker).collect()


def test_what_a_fetch_under_way_brings_from_after_the_damage_is_not_handed_out_in_tables_either():
    broker = OneBroker({P0: [2, 1, 3]})
    damaged(broker, 1, 64)
    broker.exchange()
    broker.exchange()
    [under_way] = broker.poll()
    assert offsets(reader_of(broker).collect()) == {P0: [0, 1]}
    under_way.on_reply(broker.answer(under_way.build(13)), 0)
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match="t-0 is damaged at offset 2"):
            reader_of(broker).collect()
        assert broker.subscription.position(P0) == 2


def test_aborted_transactions_are_left_out():
    broker = OneBroker({P0: [1]}, isolation_level="read_committed")
    [send] = broker.poll()
    request: Any = send.build(13)
    assert request.isolation_level == READ_COMMITTED
    aborted = build_batch(
        [(0, None, b"aborted", [])], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True
    )
    kept = build_batch([(0, None, b"kept", [])], base_offset=1)
    data = m.PartitionData(0, 0, 2, 2, 0, records=bytes(aborted + kept))
    data.aborted_transactions = [m.AbortedTransaction(9, 0)]
    topic = request.topics[0].topic_id
    send.on_reply(m.FetchResponse(session_id=1, responses=[m.FetchableTopicResponse("", topic, [data])]), 0)
    [table] = reader_of(broker).collect().values()
    assert table.column("value").to_pylist() == [b"kept"]
    assert broker.subscription.position(P0) == 2


def test_polling_for_tables_is_polling():
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        with pytest.raises(IllegalStateError, match=r"assign\(\) before poll"):
            consumer.poll_arrow(50)
        consumer.assign([ZERO])
        assert consumer.poll_arrow(50) == {}
        with pytest.raises(ValueError, match="no column 'colour'"):
            consumer.poll_arrow(50, columns=["colour"])


async def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "muster.client.consumer.arrow", None)
    consumer = AsyncConsumer(bootstrap_servers=NOWHERE)
    consumer.assign([TopicPartition("t", 0)])
    with pytest.raises(ConfigError, match=r"pip install 'muster-kafka\[arrow\]'"):
        await consumer.poll_arrow(50)
