"""A scripted member that uses kafka-python (see told.py)."""

from __future__ import annotations

import contextlib

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, KafkaError

from tests.history.scenarios.members.told import TYPES, begin, command, commit_due, converted, handle, tell

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}

config = converted(TYPES)
config["partition_assignment_strategy"] = [ASSIGNORS[config["partition_assignment_strategy"]]]
consumer = KafkaConsumer(**config)
begin()
polling = closed = False


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_assigned(self, assigned):
        tell("assigned", list(assigned))

    def on_partitions_revoked(self, revoked):
        tell("revoked", list(revoked))


def obey(told):
    global polling, closed
    match told["do"]:
        case "subscribe":
            consumer.subscribe(told["topics"], listener=Listener())
            polling = True
        case "assign":
            consumer.assign([TopicPartition(topic, partition) for topic, partition in told["partitions"]])
            polling = True
        case "unsubscribe":
            consumer.unsubscribe()
            polling = False
        case "close":
            consumer.close()
            tell("closed")
            closed = True
        case _:
            raise ValueError(told)


while not closed:
    told = command(wait=not polling)
    if told is not None:
        obey(told)
        continue
    try:
        fetched = consumer.poll(timeout_ms=100)
    except KafkaError as error:
        tell("error", error)
        continue
    handle(sum(len(records) for records in fetched.values()))
    if fetched and commit_due():
        with contextlib.suppress(CommitFailedError):
            consumer.commit()
