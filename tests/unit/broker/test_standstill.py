"""A broker that was suspended acknowledges nothing until ZooKeeper has confirmed that its registration is its own."""

from __future__ import annotations

from muster.broker.broker import Broker
from muster.broker.cluster.frozen_process import FreezeDetector
from muster.errors import ErrorCode
from tests.support.cluster_asks import create, produce, stored
from tests.support.sim_cluster import SESSION_MS, SimCluster, session_of


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_doubt_begins_with_a_standstill_and_ends_with_an_answer_to_what_was_asked_since() -> None:
    clock, noticed = Clock(), []
    still = FreezeDetector(10, lambda: noticed.append(clock.now), clock)
    for _ in range(20):
        clock.now += 9.9
        assert not still.is_doubtful()
    before = clock.now
    clock.now += 10
    assert still.is_doubtful()
    assert noticed == [clock.now]
    still.answered(before)
    clock.now += 1
    assert still.is_doubtful(), "that was asked before"
    still.answered(clock.now)
    assert not still.is_doubtful()
    clock.now += 10
    assert still.is_doubtful()
    clock.now += 9.9
    assert still.is_doubtful()
    clock.now += 0.1
    assert not still.is_doubtful(), "ZooKeeper is away: served on"
    assert len(noticed) == 2


async def refusal(broker: Broker) -> int:
    answer = await produce(broker, "t", 0).answered()
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def test_no_record_is_acknowledged_after_a_standstill_before_zookeeper_has_answered(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        assert await stored(broker, "t", 0) == 0
        assert broker._zookeeper is not None
        assert broker._zookeeper._freeze_detector is not None
        clock = broker._zookeeper._freeze_detector._read = Clock()
        broker._zookeeper._freeze_detector._read_at = clock.now
        clock.now += SESSION_MS / 1000
        assert await refusal(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        clock.now += 1
        await cluster.until(lambda: broker.partitions.get("t", 0) is not None)
        assert await stored(broker, "t", 0) == 1
        # With ZooKeeper unreachable as well, it is in doubt for as long as a session lasts.
        cluster.cut(session_of(broker))
        await cluster.until(lambda: not session_of(broker).sim.is_connected)
        clock.now += SESSION_MS / 1000
        assert await refusal(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        clock.now += SESSION_MS / 1000 - 0.1
        assert await refusal(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        clock.now += 0.1
        assert await stored(broker, "t", 0) == 2
