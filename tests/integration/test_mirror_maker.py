"""Apache Kafka's MirrorMaker 2 copies topics from muster's broker, into it, and from one muster broker to another."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from muster import Admin, Consumer, Producer
from muster.client.core.admin.admin import ConfigResource, ConfigResourceType, NewTopic, TopicDescription
from muster.model import TopicPartition
from tests.support.mirror_maker import MirrorMaker
from tests.support.muster_cluster import eventually

pytestmark = pytest.mark.slow

Copy = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""A record without its offset, which may differ in its copies."""


class Side:
    """One of the clusters, and its contents."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def ask(self, question: Callable[[Admin], object]) -> object:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            return question(admin)

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.ask(lambda admin: admin.create_topics([NewTopic(topic, partitions, configs=named)]))
        eventually(lambda: self.partitions(topic) == partitions)

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if it does not exist."""
        found = self.ask(lambda admin: admin.describe_topics([topic], raise_errors=False)[topic])
        return len(found.partitions) if isinstance(found, TopicDescription) else 0

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self.ask(lambda admin: admin.describe_configs([resource], raise_errors=False)[resource])
        return found[name].value if isinstance(found, dict) else None

    def alter(self, topic: str, **configs: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        named = {name.replace("_", "."): value for name, value in configs.items()}
        assert self.ask(lambda admin: admin.alter_configs({resource: named})[resource]) is None

    def produce(self, topic: str, count: int, partitions: int, start: int = 0) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number in range(start, start + count):
                text = b"%d" % number
                value = None if number % 10 == 9 else b"value " + text
                producer.send(topic, value, key=text, partition=number % partitions, headers=[("number", text)])

    def read(self, topic: str, group: str | None = None) -> set[Copy]:
        """All records, read by a consumer that begins at the group's offsets; with a group it commits."""
        places = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        records: set[Copy] = set()
        with Consumer(
            bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            while any(consumer.position(place) < end for place, end in ends.items()):
                for batch in consumer.poll(100).values():
                    records |= {(r.partition, r.key, r.value, r.timestamp, tuple(r.headers)) for r in batch}
            if group is not None:
                consumer.commit()
        return records

    def rest_of(self, topic: str, group: str) -> dict[int, int]:
        """How much of each partition the group has not read; it may have committed nothing in some of them."""
        places = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        found = self.ask(lambda admin: admin.list_consumer_group_offsets(group, raise_errors=False))
        assert isinstance(found, dict)
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            ends = consumer.end_offsets(places)
        return {place.partition: ends[place] - found[place].offset for place in places if place in found}


def test_topics_settings_records_and_groups_are_mirrored_through_a_killed_broker(
    tmp_path, muster_process, kafka_broker, shared_muster
):
    run = uuid.uuid4().hex[:8]
    muster, kafka, other = f"muster-{run}", f"kafka-{run}", f"other-{run}"
    orders, bills, readers = f"orders-{run}", f"bills-{run}", f"readers-{run}"
    copied = f"{muster}.{orders}"
    sides = {
        name: Side(process.bootstrap)
        for name, process in ((muster, muster_process), (kafka, kafka_broker), (other, shared_muster))
    }
    here, there, third = sides.values()
    mirrors = [
        (here, orders, there, copied),
        (here, orders, third, copied),
        (there, bills, here, f"{kafka}.{bills}"),
    ]

    def mirrored() -> bool:
        return all(source.read(topic) == target.read(copy) for source, topic, target, copy in mirrors)

    here.create(orders, 2, retention_ms="86400000")
    there.create(bills, 2, max_message_bytes="500000")
    here.produce(orders, 100, 2)
    there.produce(bills, 50, 2)
    here.read(orders, readers)
    flows = [(muster, kafka), (kafka, muster), (muster, other)]
    addresses = {name: side.bootstrap for name, side in sides.items()}
    with MirrorMaker(tmp_path / "mm2", addresses, flows, topics=f".*-{run}", groups=f"readers-{run}"):
        eventually(lambda: all(target.partitions(copy) == 2 for _, _, target, copy in mirrors))
        assert there.config(copied, "retention.ms") == "86400000"
        assert here.config(f"{kafka}.{bills}", "max.message.bytes") == "500000"
        eventually(mirrored)
        eventually(lambda: all(side.rest_of(copied, readers) == {0: 0, 1: 0} for side in (there, third)))

        here.ask(lambda admin: admin.create_partitions({orders: 3}))
        here.alter(orders, retention_ms="172800000")
        there.alter(bills, max_message_bytes="600000")
        eventually(lambda: all(target.partitions(copy) == 3 for _, topic, target, copy in mirrors if topic == orders))
        eventually(lambda: there.config(copied, "retention.ms") == "172800000")
        eventually(lambda: here.config(f"{kafka}.{bills}", "max.message.bytes") == "600000")
        # Its tasks restart for the third partition, and offsets that they had not recorded by then are never recorded.
        here.produce(orders, 30, 3, start=100)
        eventually(mirrored)

        muster_process.kill()
        there.produce(bills, 50, 2, start=50)
        muster_process.start()
        here.produce(orders, 170, 3, start=130)
        here.read(orders, readers)
        eventually(mirrored)
        eventually(lambda: all(side.rest_of(copied, readers) == {0: 0, 1: 0, 2: 0} for side in (there, third)))
    assert len(there.read(copied)) == 300
    assert not here.partitions(f"{kafka}.{muster}.{orders}"), "a copy was copied back"
