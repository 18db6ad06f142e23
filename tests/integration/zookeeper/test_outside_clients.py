"""Third-party clients in a cluster of three brokers: one broker is killed under load, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support import outsiders
from tests.support.muster_cluster import LONG, Cluster, eventually, stored
from tests.support.outsiders import CLIENTS, Feed, Member
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

States = dict[int, tuple[int, int, int]]
"""The error, leader and epoch of each partition."""


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot(), LONG).running() as made:
        yield made


def coordinator_of(cluster: Cluster, group: str) -> int:
    """The broker that coordinates a group, once it knows that."""

    def found() -> int:
        node_id = cluster.ask(1, m.FindCoordinatorRequest(group), 1).node_id
        if node_id < 0:
            return 0
        described = cluster.ask(node_id, m.DescribeGroupsRequest([group]), 5)
        return 0 if described.groups[0].error_code else node_id

    number: int = eventually(found)
    return number


def under_newer_epochs(
    cluster: Cluster, asked: int, partitions: list[int], wanted: tuple[int, int], after: States
) -> States:
    """Wait until partitions have this error and leader, with newer epochs; returns what is reported then."""

    def found() -> States | None:
        reported = cluster.leaders("mixed", asked)
        return reported if all(reported[n][:2] == wanted and reported[n][2] > after[n][2] for n in partitions) else None

    states: States = eventually(found)
    return states


def test_all_go_on_when_a_broker_is_killed_and_comes_back(
    cluster: Cluster, java: str, kcat: str, tmp_path: Path
) -> None:
    """One member of each kind, each with three consecutive partitions, one on each broker. One broker is killed under
    load, and comes back, then the group's coordinator. Every record is stored once, and handled.

    A member whose position has an older epoch lets the new leader validate it before it continues."""
    partitions = 3 * len(CLIENTS)
    seen_by = outsiders.Cluster(cluster.bootstrap)
    seen_by.create(["mixed"], partitions)
    coordinator = coordinator_of(cluster, "mixed")
    members: list[Member] = []

    def handled(numbers: range, but: list[int]) -> None:
        """Wait until all numbers are handled, except those in some partitions."""

        def missing() -> list[int]:
            for member in members:
                member.check_alive()
            seen = set().union(*(member.values for member in members))
            return [n for n in numbers if n not in seen and n % partitions not in but]

        outsiders.until(lambda: not missing(), lambda: f"all is handled; missing: {missing()[:20]} of {numbers}")

    with contextlib.ExitStack() as held:
        for client in CLIENTS:
            members.append(Member(client, cluster.bootstrap, "mixed", "mixed", tmp_path))
            held.callback(members[-1].destroy)
        settings = {"enable.idempotence": True}
        feed = held.enter_context(Feed(cluster.bootstrap, ["mixed"], partitions, settings))
        seen_by.shared_by("mixed", members, partitions)
        for victim in (coordinator % 3 + 1, coordinator):
            # Every member has read from every broker: it knows the epochs.
            handled(range(feed.count + partitions), [])
            other = victim % 3 + 1
            before = cluster.leaders("mixed", other)
            mine = [number for number, (_, leader, _) in before.items() if leader == victim]
            assert len(mine) == len(CLIENTS)
            cluster.brokers[victim].kill()
            away = under_newer_epochs(cluster, other, mine, (ErrorCode.LEADER_NOT_AVAILABLE, -1), before)
            if victim != coordinator:  # without the coordinator, members wait in their commits
                handled(range(feed.count, feed.count + partitions), mine)
            cluster.brokers[victim].start()
            under_newer_epochs(cluster, other, mine, (0, victim), away)
        count = feed.finish()
        handled(range(count), [])
    expected = {number: list(range(number, count, partitions)) for number in range(partitions)}
    assert stored(cluster, "mixed", partitions) == expected
