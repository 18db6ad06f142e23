"""The fetcher if whole batches are handed out instead of records."""

from __future__ import annotations

import pytest

from muster.errors import CorruptRecordError
from tests.support.one_broker import P0, OneBroker, flipped


def test_raw_batches_move_the_position_as_records_do() -> None:
    broker = OneBroker.fetched({P0: [3, 2]}, max_batches=2)
    [data] = broker.fetcher.collect_raw()[P0]
    assert (data.start_offset, data.end_offset) == (0, 5)
    assert broker.subscription.position(P0) == 5
    assert broker.fetcher.collect_raw() == {}


def test_raw_batches_that_were_begun_as_records_are_fetched_again() -> None:
    """One application calls `poll`, then `poll_arrow`. Records that were handed out are not returned again."""
    broker = OneBroker.fetched({P0: [2, 2]}, max_batches=2)
    assert [r.offset for r in broker.fetcher.collect(2)[P0]] == [0, 1]
    assert broker.fetcher.collect_raw() == {}
    broker.exchange()
    assert [data.start_offset for data in broker.fetcher.collect_raw()[P0]] == [2]


def test_batches_before_the_position_are_skipped() -> None:
    """A broker may begin its answer before the offset that was requested."""
    broker = OneBroker({P0: [2, 2]})
    broker.subscription.seek(P0, 3)
    [send] = broker.poll()
    answer = broker.answer(send.build(13))
    answer.responses[0].partitions[0].records = b"".join(batch for *_, batch in broker.logs[P0])
    send.on_reply(answer, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


def test_a_batch_that_was_cut_comes_again_as_a_whole() -> None:
    broker = OneBroker({P0: [2, 20]})
    [send] = broker.poll()
    answer = broker.answer(send.build(13))
    answer.responses[0].partitions[0].records = b"".join(batch for *_, batch in broker.logs[P0])[:-1]
    send.on_reply(answer, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == list(range(2, 22))


def test_what_is_damaged_is_not_part_of_the_raw_batches_before_it() -> None:
    broker = OneBroker({P0: [2, 2]}, max_batches=2)
    flipped(broker, P0, 1, at=16)
    broker.exchange()
    [data] = broker.fetcher.collect_raw()[P0]
    assert (bytes(data.buffer), data.end_offset) == (broker.logs[P0][0][2], 2)
    with pytest.raises(CorruptRecordError, match="offset 2"):
        broker.fetcher.collect_raw()


def test_refused_raw_batches_are_reported_though_an_error_follows_them() -> None:
    broker = OneBroker({P0: [2, 2]}, max_batches=2)
    flipped(broker, P0, 1, at=16)
    broker.exchange()
    assert broker.fetcher.collect_raw()[P0]
    broker.fetcher.refuse_raw(P0, 1, CorruptRecordError("its decoder found it"))
    with pytest.raises(CorruptRecordError, match="offset 1"):
        broker.fetcher.collect(500)
    assert broker.subscription.position(P0) == 1
