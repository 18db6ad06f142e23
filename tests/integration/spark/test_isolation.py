"""Committed, aborted and open transactions, read with either isolation level, by batches and by streams, on both
brokers. A stream ends where the first open transaction begins; markers leave gaps in the offsets."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from muster.client.plain.cluster import connect, disconnect
from muster.client.plain.fetch import RangeReader
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.spark.offsets import Claim
from muster.spark.progress.reports import report
from muster.spark.source.batch import plan
from muster.spark.source.options import parse_options
from tests.support.faces import PATIENCE_S, until
from tests.support.queries import committed, offsets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Offsets of partition 0: 0 1 2 committed, 3 marker; 4 5 6 aborted, 7 marker; 8 not transactional; 9 10 11 open.
COMMITTED, ABORTED, PLAIN, OPEN = [0, 1, 2], [4, 5, 6], [8], [9, 10, 11]
STABLE, END = 9, 12


class Writer:
    """One transactional producer, and the topic that it writes to."""

    def __init__(self, cluster):
        self.cluster, self.topic = cluster, cluster.topic(1)
        settings = {"bootstrap.servers": cluster.bootstrap, "transaction.timeout.ms": 900_000}  # one stays open
        self._producer = Producer({**settings, "transactional.id": uuid.uuid4().hex})
        self._producer.init_transactions(PATIENCE_S)

    def begin(self):
        self._producer.begin_transaction()
        for _ in range(3):
            self._producer.produce(self.topic, b"x", partition=0)
        self._producer.flush(PATIENCE_S)

    def commit(self):
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self):
        self._producer.abort_transaction(PATIENCE_S)

    def until_stable(self, offset):
        """The end of a transaction is answered before readers see it."""
        place = TopicPartition(self.topic, 0)
        until(lambda: self.look().list_offsets({place: -1}, 1)[place] == offset, lambda: None)

    def look(self):
        return connect(parse_options(self.options("read_committed"), streaming=False).fetch_settings().client)

    def options(self, isolation):
        return {"bootstrap": self.cluster.bootstrap, "subscribe": self.topic, "isolationLevel": isolation}


@pytest.fixture
def writer(cluster):
    found = Writer(cluster)
    found.begin()
    found.commit()
    found.begin()
    found.abort()
    found.until_stable(8)
    cluster.produce(found.topic, 1, partitions=1)
    found.begin()
    yield found
    disconnect()


@pytest.mark.parametrize(
    ("isolation", "end", "expected"),
    [
        ("read_committed", STABLE, COMMITTED + PLAIN),
        ("read_uncommitted", END, COMMITTED + ABORTED + PLAIN + OPEN),
    ],
)
def test_a_batch_ends_at_the_last_offset_of_its_level(writer, isolation, end, expected):
    options = parse_options(writer.options(isolation), streaming=False)
    assert plan(writer.look(), options) == {TopicPartition(writer.topic, 0): Claim(0, end)}
    chosen = options.fetch_settings()
    for start in range(end):
        found = offsets(RangeReader(chosen, TopicPartition(writer.topic, 0), start, end).batches())
        assert found == [offset for offset in expected if offset >= start]


def test_a_stream_of_committed_records_waits_where_a_transaction_is_open(writer, queries):
    query = queries(writer.topic, isolationLevel="read_committed")
    until(lambda: query.owned, lambda: query.trigger())
    assert query.claims(0) == {0: (0, STABLE)}
    query.finish()
    assert not query.trigger(), "what is open is not read, and is no batch either"
    assert query.sink() == [(0, offset) for offset in COMMITTED + PLAIN]
    reported = report(query.member.unread(), query.member.group_progress())
    assert (reported["totalLag"], reported["ends"]) == (0, {writer.topic: {"0": STABLE}})
    assert committed(writer.cluster, writer.topic, 1) == {0: STABLE}
    writer.commit()
    until(lambda: query.log("offsets") == [0, 1], lambda: query.trigger())
    query.finish()
    assert query.claims(1) == {0: (STABLE, END + 1)}
    assert query.sink()[4:] == [(0, offset) for offset in OPEN]
    writer.begin()
    writer.abort()
    until(lambda: query.log("offsets") == [0, 1, 2], lambda: query.trigger())
    query.finish()
    assert query.claims(2) == {0: (END + 1, END + 5)}, "a batch without rows: what was aborted is passed over"
    assert query.sink()[7:] == []
    assert not query.trigger()
    assert committed(writer.cluster, writer.topic, 1) == {0: END + 5}


def test_a_stream_of_all_records_does_not_wait(writer, queries):
    query = queries(writer.topic, isolationLevel="read_uncommitted")
    until(lambda: query.owned, lambda: query.trigger())
    query.finish()
    assert query.claims(0) == {0: (0, END)}
    assert query.sink() == [(0, offset) for offset in COMMITTED + ABORTED + PLAIN + OPEN]


def test_available_now_ends_before_what_is_open(writer, queries):
    query = queries(writer.topic, isolationLevel="read_committed", maxOffsetsPerTrigger=4)
    query.member.prepare_available_now()
    assert query.run() == 3
    assert [query.claims(batch)[0] for batch in range(3)] == [(0, 4), (4, 8), (8, STABLE)]
    assert query.sink() == [(0, offset) for offset in COMMITTED + PLAIN]
    writer.commit()
    writer.until_stable(END + 1)
    assert not query.trigger(), "the end is that of the start"


def test_either_name_of_the_option():
    given = {"bootstrap": "b:1", "subscribe": "t"}
    for name in ("isolationLevel", "kafka.isolation.level"):
        assert parse_options(given | {name: "READ_COMMITTED"}, streaming=False).read_committed
        assert not parse_options(given | {name: "read_uncommitted"}, streaming=False).read_committed
    assert not parse_options(given, streaming=False).read_committed
    with pytest.raises(ConfigError, match=r"^kafka.isolation.level is 'commited'; it must be one of read_uncommitted"):
        parse_options(given | {"kafka.isolation.level": "commited"}, streaming=False)
    both = {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"}
    with pytest.raises(ConfigError, match=r"isolationLevel and kafka.isolation.level are the same option"):
        parse_options(given | both, streaming=False)
