"""A scripted member that uses confluent-kafka, so librdkafka (see told.py)."""

from __future__ import annotations

import os

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.history.scenarios.members.told import SPEC, begin, command, commit_due, handle, tell

config = {
    name.replace("metadata.max.age.ms", "topic.metadata.refresh.interval.ms"): value
    for name, value in SPEC["config"].items()
}


def failed(error):
    """librdkafka reports here what it cannot repair."""
    if error.fatal() or error.code() == KafkaError._FATAL:
        tell("fenced", error)
        os._exit(3)


consumer = Consumer({**config, "error_cb": failed})
begin()
polling = closed = False


def listen(event):
    return lambda _, partitions: tell(event, [(p.topic, p.partition) for p in partitions])


def obey(told):
    global polling, closed
    match told["do"]:
        case "subscribe":
            topics = ["^" + told["pattern"]] if "pattern" in told else told["topics"]
            consumer.subscribe(
                topics, on_assign=listen("assigned"), on_revoke=listen("revoked"), on_lost=listen("lost")
            )
            polling = True
        case "assign":
            consumer.assign([TopicPartition(topic, partition) for topic, partition in told["partitions"]])
            polling = True
        case "pause":
            consumer.pause(consumer.assignment()[:1])
        case "unsubscribe":
            consumer.unsubscribe()
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
    message = consumer.poll(0.1)
    if message is None:
        continue
    if message.error() is not None:
        tell("error", message.error())
        continue
    handle(1)
    if commit_due():
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            tell("error", error)
