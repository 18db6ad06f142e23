"""When a cluster counts as healthy, and how the command reports it."""

from __future__ import annotations

from muster.cli.observe.health import judge
from muster.client.core.admin.admin import PartitionDescription, TopicDescription
from muster.errors import ErrorCode, KafkaError


def topic(*parts: tuple[int, list[int], list[int]], name: str = "t") -> TopicDescription:
    """Partitions with leader, replicas and in-sync replicas."""
    found = [PartitionDescription(n, leader, 0, replicas, isr) for n, (leader, replicas, isr) in enumerate(parts)]
    return TopicDescription(name, bytes(16), False, found)


WELL = topic((1, [1, 2], [1, 2]), (2, [2, 1], [2, 1]))


def test_a_cluster_that_is_well():
    found = judge({1: None, 2: None}, [WELL, topic(name="u")], None)
    assert found.healthy
    assert found.line() == "healthy: 2 brokers, 2 topics, 2 partitions, coordinator available"
    assert judge({1: None}, [], "no groups").line() == "healthy: 1 broker, 0 topics, 0 partitions, no groups"


def test_a_broker_that_does_not_answer():
    found = judge({1: None, 2: KafkaError(ErrorCode.REQUEST_TIMED_OUT)}, [WELL], None)
    assert not found.healthy
    assert (found.away, found.line()) == ([2], "not healthy: broker 2 is down")


def test_a_broker_that_only_its_replicas_speak_of():
    """A broker that is dead is no longer in the metadata."""
    found = judge({1: None}, [topic((1, [1, 2, 3], [1]), (1, [1], [1]))], None)
    assert found.away == [2, 3]
    assert found.line() == "not healthy: brokers 2, 3 are down; 1 partition under-replicated: t-0"


def test_partitions_without_a_leader_are_not_counted_twice():
    found = judge({1: None}, [topic(*[(-1, [1], [])] * 7)], None)
    assert found.under_replicated == []
    assert len(found.leaderless) == 7
    assert found.line() == "not healthy: 7 partitions without a leader: t-0, t-1, t-2, t-3, t-4 and 2 more"


def test_a_coordinator_that_is_not_there():
    found = judge({1: None}, [], KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "soon"))
    assert not found.healthy
    assert found.line() == "not healthy: no coordinator: COORDINATOR_NOT_AVAILABLE"
