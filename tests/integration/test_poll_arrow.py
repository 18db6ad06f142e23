"""Arrow tables from a group's consumer, on muster and on Apache Kafka: the records of `poll`, as columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from muster.model import TopicPartition
from tests.support.faces import until

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sync", "async"])
def face(request):
    return request.param


def read(consumer, count, columns=None):
    """At least this many records, as one table."""
    tables: list[pa.Table] = []
    until(
        lambda: sum(table.num_rows for table in tables) >= count,
        lambda: tables.extend(consumer.poll_arrow(200, columns=columns).values()),
    )
    return pa.concat_tables(tables)


def places(table):
    """(partition, offset) of each record, in order."""
    return list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def test_a_group_reads_tables_and_commits_after_them(cluster, face):
    topic = cluster.written(1_000)
    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        table = read(consumer, 1_000)
        for partition in range(4):
            assert [at for number, at in places(table) if number == partition] == list(range(250))
        assert set(table.column("topic").to_pylist()) == {topic}
        assert {int(value) for value in table.column("value").to_pylist()} == set(range(1_000))
        consumer.commit()
    with cluster.consumer(face) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(4)])
        assert {committed.offset for committed in found.values()} == {250}


def test_records_and_tables_in_turn(cluster, face):
    topic = cluster.written(400)
    with cluster.consumer(face, max_poll_records=30) as consumer:
        consumer.subscribe([topic])
        first = next(consumer)  # more wait in the iterator's buffer
        rest = places(read(consumer, 399, ["partition", "offset"]))
        assert sorted([(first.partition, first.offset), *rest]) == [(p, at) for p in range(4) for at in range(100)]
