"""A topic in which each broker leads its own partition, and writes only to that.

The first broker that has something to write creates the topic with one partition, its own. Each other broker adds a
partition, as Kafka's `TopicCommand --alter` does: it writes the topic's znode with one more replica, and the controller
gives the new partition a leader. So a broker that joins the cluster later has a partition too.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.zookeeper.base.operations import BadVersionError, GetData, NodeExistsError, NoNodeError, Plan, SetData, ask
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import TopicRegistration, read_topic, topic_path
from muster.zookeeper.cluster.scheme import create_topic

TRIES = 10
"""Brokers that start at the same time all write to one znode."""


def own_partition(topic: str, broker_id: int, exists: bool, settings: Mapping[str, str]) -> Plan[None]:
    """Create a partition whose only replica is this broker, unless there is one. `exists`: the topic is known, and a
    partition may be added; otherwise the topic is created, or left alone if it exists after all.

    Raises:
        ZooKeeperError: it could not be written; the next call starts over.
    """
    if not exists:
        try:
            # The controller gives it an id.
            yield from create_topic(topic, TopicRegistration({0: [broker_id]}, version=1), settings)
        except NodeExistsError:
            return
    for _ in range(TRIES):
        try:
            data, stat = yield from ask(GetData(topic_path(topic)))
        except NoNodeError:
            return
        found = read_topic(topic, data)
        if isinstance(found, Unreadable) or any(replicas[:1] == [broker_id] for replicas in found.partitions.values()):
            return
        added = {**found.partitions, len(found.partitions): [broker_id]}
        try:
            yield from ask(SetData(topic_path(topic), found._replace(partitions=added).encode(), stat.version))
        except BadVersionError:
            continue
        return
