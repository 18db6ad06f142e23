"""Where reads begin and end by times and offsets, and when a batch is held back, on real brokers."""

from __future__ import annotations

import json

import pytest

from muster.client.config import ClientConfig
from muster.client.plain.cluster import connect
from muster.errors import ConfigError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.source.batch import plan
from muster.spark.source.options import parse_options
from tests.support.faces import until
from tests.support.queries import committed, reported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def topic(cluster):
    """Ten records in each of two partitions: offset 3 of the first has the time 7000, that of the second 8000."""
    return cluster.written(20, partitions=2)


def json_of(topic, **partitions):
    return json.dumps({topic: {number.removeprefix("p"): value for number, value in partitions.items()}})


def test_batch_reads_by_time(cluster, topic, caplog):
    def planned(**more):
        given = {"bootstrap": cluster.bootstrap, "subscribe": topic, **more}
        claims = plan(
            connect(ClientConfig(bootstrap_servers=(cluster.bootstrap,))), parse_options(given, streaming=False)
        )
        return [tuple(claims[TopicPartition(topic, number)]) for number in range(2)]

    assert planned(startingTimestamp="7001") == [(4, 10), (3, 10)]
    assert planned(startingTimestamp="7000", endingTimestamp="9000") == [(3, 4), (3, 4)]
    assert planned(endingTimestamp="99000") == [(0, 10), (0, 10)]
    assert planned(startingTimestamp="7000", startingOffsets=json_of(topic, p0=9, p1=9)) == [(3, 10), (3, 10)]
    by_time = json_of(topic, p0=7000)
    assert planned(startingOffsetsByTimestamp=by_time) == [(3, 10), (0, 10)]
    assert planned(endingOffsetsByTimestamp=by_time) == [(0, 3), (0, 10)]
    assert [line for line in reported(caplog) if topic in line] == [
        f"startingOffsetsByTimestamp does not name {topic}-1: reading starts where their logs begin",
        f"endingOffsetsByTimestamp does not name {topic}-1: reading ends where their logs end",
    ]
    with pytest.raises(ConfigError, match=f"startingTimestamp is 20000 for {topic}-0, which has no record at or after"):
        planned(startingTimestamp="20000")
    later = {"startingOffsetsByTimestampStrategy": "latest"}
    assert planned(startingTimestamp="20000", **later) == [(10, 10), (9, 10)]
    with pytest.raises(ConfigError, match=r"from offset 5 \(startingOffsets\) to 3 \(endingTimestamp\)"):
        planned(startingOffsets=json_of(topic, p0=5, p1=0), endingTimestamp="7000")
    lax = {"failOnDataLoss": "false"}
    assert planned(startingOffsets=json_of(topic, p0=5, p1=0), endingTimestamp="7000", **lax) == [(5, 5), (0, 3)]
    with pytest.raises(ConfigError, match=f"startingOffsets names {topic}-7"):
        planned(startingOffsets=json_of(topic, p7=1))


@pytest.mark.parametrize("mode", ["group", "assign"])
def test_a_stream_begins_at_a_time_where_the_group_has_no_commit(cluster, queries, topic, mode):
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 1): OffsetAndMetadata(8)})
    query = queries(topic, mode=mode, startingOffsets="latest", startingTimestamp="7000")
    until(lambda: len(query.sink()) >= 9, query.run)
    assert sorted(query.sink()) == [(0, offset) for offset in range(3, 10)] + [(1, 8), (1, 9)]
    query.run()
    until(lambda: committed(cluster, topic, 2) == {0: 10, 1: 10}, query.run)


def test_a_stream_whose_time_nothing_has_fails_or_begins_at_the_end(cluster, queries, topic):
    query = queries(topic, startingTimestamp="20000")
    with pytest.raises(ConfigError, match=f"startingTimestamp is 20000 for {topic}-0"):
        until(lambda: query.sink(), query.run)
    query.stop()
    again = queries(topic, "again", startingTimestamp="20000", startingOffsetsByTimestampStrategy="latest")
    until(lambda: again.sink(), again.run)
    cluster.produce(topic, 2, partitions=2, start=20)
    until(lambda: len(again.sink()) == 3, again.run)
    assert sorted(again.sink()) == [(0, 10), (1, 9), (1, 10)]


def test_a_stream_begins_where_json_says_and_tells_of_the_rest(cluster, queries, topic, caplog):
    query = queries(topic, startingOffsets=json_of(topic, p1=7))
    until(lambda: len(query.sink()) == 13, query.run)
    assert sorted(query.sink()) == [(0, offset) for offset in range(10)] + [(1, 7), (1, 8), (1, 9)]
    rest = f"startingOffsets does not name {topic}-0: reading starts where their logs begin"
    assert reported(caplog).count(rest) == 1
    query.stop()
    wrong = queries(topic, "wrong", groupId=f"{cluster.group}-wrong", startingOffsets=json_of(topic, p2=7))
    with pytest.raises(ConfigError, match=f"startingOffsets names {topic}-2, which is not one of"):
        until(lambda: wrong.sink(), wrong.run)


def test_a_batch_waits_for_enough_records_and_not_forever(cluster, queries, topic):
    query = queries(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    until(lambda: len(query.sink()) == 20, query.run)
    cluster.produce(topic, 4, partitions=2, start=20)
    until(lambda: sum(claim.size for claim in query.member.unread().values()) == 4, query.trigger)
    assert not query.trigger()
    cluster.produce(topic, 1, partitions=2, start=24)
    until(lambda: len(query.sink()) == 25, query.run)
    cluster.produce(topic, 4, partitions=2, start=26)
    query.member._pace._max_delay_ms = 0
    until(lambda: len(query.sink()) == 29, query.run)
    query.stop()
    cluster.produce(topic, 1, partitions=2, start=30)
    again = queries(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    again.member.prepare_available_now()
    again.run()
    assert len(again.sink()) == 30  # Trigger.AvailableNow reads what is there
