"""Behaviours that behaviours.md promises and that only whole clients on a real broker can show; on muster and on Apache
Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from muster import Admin
from muster.errors import ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from tests.support.faces import Recorder, read, rest, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("face", ["sync", "async"])
def test_callbacks_of_commits_come_before_the_rebalance(cluster, face):
    """J6: the first thing in a poll, even if the coordinator has had the answer and the rebalance ready for that
    long."""
    topic = cluster.topic(1)
    reported: list[str] = []

    class Listener(Recorder):
        def on_partitions_revoked(self, partitions):
            reported.append("revoked")

    with cluster.consumer(face, enable_auto_commit=False) as consumer:
        inner = consumer._consumer if face == "sync" else consumer.consumer
        consumer.subscribe([topic], listener=Listener())
        until(lambda: consumer.assignment() != set(), lambda: consumer.poll(50))
        consumer.commit_async(
            {TopicPartition(topic, 0): 3}, lambda _offsets, error: reported.append(f"committed {error}")
        )
        consumer.enforce_rebalance("to see what comes first")
        until(lambda: bool(inner._pump._completed), rest)
        until(lambda: "revoked" in reported, lambda: consumer.poll(50))
    assert reported[:2] == ["committed None", "revoked"]


def test_who_has_no_partition_is_idle_and_takes_over(cluster):
    """H7: more consumers than partitions."""
    topic = cluster.topic(1)
    with cluster.consumer("sync") as first:
        first.subscribe([topic])
        until(lambda: first.assignment() != set(), lambda: first.poll(50))
        with cluster.consumer("sync") as second:
            second.subscribe([topic])

            def both():
                first.poll(50)
                second.poll(50)

            def stable():
                mine, yours = first.group_metadata(), second.group_metadata()
                return mine.generation_id == yours.generation_id and len(first.assignment() | second.assignment()) == 1

            until(stable, both)
            assert sorted(map(len, (first.assignment(), second.assignment()))) == [0, 1]
            busy, idle = (first, second) if first.assignment() else (second, first)
            busy.close()
            until(lambda: idle.assignment() == {TopicPartition(topic, 0)}, lambda: idle.poll(50))


def test_partitions_that_are_gone_are_taken_from_who_has_them(cluster):
    """H6, to the extent that one broker can show it: the leader sees that partitions are gone, and the group
    rebalances."""
    kept, gone = cluster.topic(1), cluster.topic(1)
    with (
        cluster.consumer("sync", metadata_max_age_ms=300, allow_auto_create_topics=False) as consumer,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        consumer.subscribe([kept, gone])
        both = {TopicPartition(kept, 0), TopicPartition(gone, 0)}
        until(lambda: consumer.assignment() == both, lambda: consumer.poll(50))
        assert admin.delete_topics([gone]) == {gone: None}
        until(lambda: consumer.assignment() == {TopicPartition(kept, 0)}, lambda: consumer.poll(50))


def test_groups_are_listed_described_and_deleted(cluster):
    """O1, O4: what kafka-consumer-groups.sh shows, from the client's own admin."""
    topic = cluster.written(10, partitions=2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        with cluster.consumer("sync", enable_auto_commit=False, client_id="reader") as consumer:
            consumer.subscribe([topic])
            read(consumer, 10)
            consumer.commit({places[0]: 5, places[1]: 2})

            listed = {group.group_id: group for group in admin.list_consumer_groups()}
            assert (listed[cluster.group].state, listed[cluster.group].protocol_type) == ("Stable", "consumer")
            assert cluster.group not in {group.group_id for group in admin.list_consumer_groups(states=["Empty"])}

            found = admin.describe_consumer_groups([cluster.group])[cluster.group]
            assert (found.state, found.assignor) == ("Stable", "range")
            [member] = found.members
            assert (member.client_id, member.topics, sorted(member.assignment)) == ("reader", [topic], places)
            assert member.member_id == consumer.group_metadata().member_id

            refused = admin.delete_consumer_groups([cluster.group], raise_errors=False)[cluster.group]
            assert isinstance(refused, KafkaError)
            assert refused.code is ErrorCode.NON_EMPTY_GROUP

        committed: dict[TopicPartition, Any] = admin.list_consumer_group_offsets(cluster.group)
        ends: dict[TopicPartition, Any] = admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        assert [ends[place].offset - committed[place].offset for place in places] == [0, 3]

        assert admin.delete_consumer_groups([cluster.group]) == {cluster.group: None}
        assert admin.list_consumer_group_offsets(cluster.group) == {}
        assert cluster.group not in {group.group_id for group in admin.list_consumer_groups()}


def test_lag_is_seen_as_it_shrinks(cluster):
    """O4: from the consumer itself, while it reads."""
    topic = cluster.written(10, partitions=1)
    place = TopicPartition(topic, 0)
    with cluster.consumer("sync", max_poll_records=4) as consumer:
        consumer.subscribe([topic])
        seen = []

        def step():
            if consumer.poll(50):
                seen.append(consumer.current_lag(place))

        until(lambda: bool(seen) and seen[-1] == 0, step)
    assert seen == [6, 2, 0]
