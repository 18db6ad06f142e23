"""One group of real processes: members that speak Kafka's draft protocol, and a stock client.

They join, are killed, and leave; their coordinator is killed and started again. No record is lost, and a coordinator
that comes back finds the group in the generation in which it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.protocol import messages as m
from tests.support import outsiders
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.outsiders import Feed, Member, until
from tests.support.peers import free_ports

pytestmark = pytest.mark.slow

GROUP = TOPIC = "drafts"
PARTITIONS = 6


def committed(bootstrap: str) -> list[int]:
    """The group's offsets, as the broker reports them."""
    with RawClient(bootstrap) as client:
        asked = [m.OffsetFetchRequestTopic(TOPIC, list(range(PARTITIONS)))]
        answer = client.ask(m.OffsetFetchRequest(group_id=GROUP, topics=asked), 5)
    return [partition.committed_offset for partition in answer.topics[0].partitions]


def test_members_of_both_kinds_come_go_and_outlive_their_coordinator(tmp_path: Path) -> None:
    [port] = free_ports(1)
    settings: dict[str, object] = {"draft.listener": f"127.0.0.1:{port}", "server.assigned.groups": "draft.*"}
    broker = BrokerProcess(tmp_path / "broker", settings)
    members: list[Member] = []
    with broker:
        cluster = outsiders.Cluster(broker.bootstrap)
        cluster.create([TOPIC], PARTITIONS)
        drafts = f"127.0.0.1:{port}/{broker.bootstrap}"

        def begin(client: str) -> Member:
            address = drafts if client == "with-drafts" else broker.bootstrap
            members.append(Member(client, address, GROUP, TOPIC, tmp_path))
            return members[-1]

        try:
            first, second, third = (begin("with-drafts") for _ in range(3))
            with Feed(broker.bootstrap, [TOPIC], PARTITIONS) as feed:
                shares = cluster.shared_by(GROUP, [first, second, third], PARTITIONS)
                assert [share.partitions for share in shares] == [[0, 1], [2, 3], [4, 5]]
                stock = begin("with-kafka-python")
                cluster.shared_by(GROUP, [first, second, third, stock], PARTITIONS)
                first.crash()
                cluster.shared_by(GROUP, [second, third, stock], PARTITIONS)
                fourth = begin("with-drafts")
                living = [second, third, stock, fourth]
                before = cluster.shared_by(GROUP, living, PARTITIONS)
                until(lambda: min(committed(broker.bootstrap)) > 0, lambda: "all partitions are read and committed")
                starts = broker.log().count("rebalance")
                assert starts > 0, "the broker logs each"
                offsets = committed(broker.bootstrap)
                broker.kill()
                broker.start()
                after = cluster.shared_by(GROUP, living, PARTITIONS)
                assert after == before, "members and shares are what they were"
                kept = committed(broker.bootstrap)
                assert all(now >= then for now, then in zip(kept, offsets, strict=True)), "no commit was lost"
                until(
                    lambda: all(now > then for now, then in zip(committed(broker.bootstrap), kept, strict=True)),
                    lambda: "every member continues to commit, in the generation that it had",
                )
                assert broker.log().count("rebalance") == starts, "the group did not rebalance"
                fourth.leave()
                cluster.shared_by(GROUP, [second, third, stock], PARTITIONS)
                count = feed.finish()

            def missing() -> set[int]:
                return set(range(count)) - set().union(*(member.values for member in members))

            until(lambda: not missing(), lambda: f"{count} records are handled; missing {sorted(missing())[:20]}")
        finally:
            for member in members:
                member.destroy()
