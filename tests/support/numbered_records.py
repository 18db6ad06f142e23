"""A topic of numbered records and a group that reads it, on a broker that many tests share."""

from __future__ import annotations

import uuid
from typing import Any

from muster import Admin, Consumer, NewTopic, Producer
from muster.model import ConsumerRecord, TopicPartition


class World:
    """A topic of numbered records and a group, for one test."""

    def __init__(self, bootstrap: str, count: int = 100, partitions: int = 1) -> None:
        self.topic, self.group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
        self.settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 1,
            "fetch_max_wait_ms": 50,
        }
        self.admin = Admin(bootstrap_servers=bootstrap)
        self.admin.create_topics([NewTopic(self.topic, partitions)])
        self.places = [TopicPartition(self.topic, number) for number in range(partitions)]
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(count):
                producer.send(self.topic, b"%d" % number, partition=number % partitions)

    def committed(self) -> list[int]:
        """The committed offset of each partition, 0 if there is none."""
        found = self.admin.list_consumer_group_offsets(self.group)
        return [getattr(found.get(place), "offset", 0) for place in self.places]

    def members(self) -> int:
        """The number of the group's members."""
        found: Any = self.admin.describe_consumer_groups([self.group])[self.group]
        return len(found.members)


def first(consumer: Consumer, **how: Any) -> list[ConsumerRecord]:
    """The first poll that returns records."""
    while not (batches := consumer.poll(1_000, **how)):
        pass
    return [record for batch in batches.values() for record in batch]
