"""The group events of three brokers are in `__group_events`, whichever broker coordinates the group."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.history.model import Cause
from muster.history.rules.event_rebalances import by_group
from muster.model import GROUP_EVENTS_TOPIC, TopicPartition
from muster.protocol import messages as m
from tests.support.muster_cluster import LONG, PATIENCE_S, Cluster, eventually
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

GROUPS = [f"g{number}" for number in range(8)]


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot(), LONG).running() as made:
        yield made


def coordinator(cluster: Cluster, group: str, asked: int) -> int:
    found = cluster.ask(asked, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators[0]
    return found.node_id if found.error_code == 0 else -1


def events(cluster: Cluster, asked: int, without: int = 0) -> list[dict[str, Any]]:
    """The events in partitions with a leader, except those of one broker that is down."""
    reported = cluster.leaders(GROUP_EVENTS_TOPIC, asked).items()
    led = [number for number, (error, leader, _) in reported if not error and leader != without]
    partitions = [TopicPartition(GROUP_EVENTS_TOPIC, number) for number in led]
    found: list[dict[str, Any]] = []
    with Consumer(bootstrap_servers=cluster.brokers[asked].bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < end for each, end in ends.items()):
            for records in consumer.poll(200).values():
                found += [json.loads(record.value or b"") for record in records]
    return found


def joined(cluster: Cluster, group: str) -> Consumer:
    member = Consumer(bootstrap_servers=cluster.bootstrap, group_id=group)
    member.subscribe(["t"])
    deadline = time.monotonic() + PATIENCE_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(100)
    return member


def test_events_of_all_groups_are_found_and_who_took_one_over(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1)])
    eventually(lambda: {coordinator(cluster, group, 1) for group in GROUPS} == {1, 2, 3})
    for group in GROUPS[1:]:
        joined(cluster, group).close()
    with joined(cluster, GROUPS[0]) as member:
        former = coordinator(cluster, GROUPS[0], 1)
        other = former % 3 + 1

        def all_reported() -> bool:
            reported = by_group(events(cluster, other))
            causes = {group: [label.cause for label in found] for group, found in reported.items()}
            return causes == {GROUPS[0]: [Cause.STARTED]} | {key: [Cause.STARTED, Cause.LEFT] for key in GROUPS[1:]}

        eventually(all_reported)
        leaders = [leader for _, leader, _ in cluster.leaders(GROUP_EVENTS_TOPIC, other).values()]
        assert sorted(leaders) == [1, 2, 3]
        # Another broker takes over the group; the events written by the former one are unavailable while it is down.
        cluster.brokers[former].kill()

        def taken_over() -> list[dict[str, Any]]:
            member.poll(0)
            found = [event for event in events(cluster, other, former) if event["group_id"] == GROUPS[0]]
            return [event for event in found if event["event"] == "GroupLoaded"]

        loaded = eventually(taken_over)[-1]
        assert loaded["broker_id"] != former
        assert (loaded["generation_id"], loaded["members"]) == (1, 1)
        cluster.brokers[former].start()

        def moved() -> bool:
            reported = by_group(events(cluster, other)).get(GROUPS[0], [])
            return [label.cause for label in reported][:2] == [Cause.STARTED, Cause.COORDINATOR_MOVED]

        eventually(moved)
