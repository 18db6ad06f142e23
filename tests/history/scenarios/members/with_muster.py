"""A scripted member that uses muster's own Consumer (see told.py)."""

from __future__ import annotations

import contextlib

from muster import Consumer
from muster.errors import CommitFailedError, KafkaError
from muster.model import TopicPartition
from tests.history.scenarios.members.told import TYPES, begin, command, commit_due, converted, handle, tell

consumer = Consumer(**converted(TYPES))
begin()
polling = closed = False


def obey(told):
    global polling, closed
    match told["do"]:
        case "subscribe":
            consumer.subscribe(told["topics"])
            polling = True
        case "assign":
            consumer.assign([TopicPartition(topic, partition) for topic, partition in told["partitions"]])
            polling = True
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
