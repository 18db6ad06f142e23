"""A scripted member that uses aiokafka (see told.py). Its handler holds up only its own task, as a slow await would."""

from __future__ import annotations

import asyncio
import contextlib

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, KafkaError

from tests.history.scenarios.members.told import TYPES, begin, command, commit_due, converted, handle, tell


async def main():
    """Be a member until the command to close."""
    config = converted(TYPES)
    config["partition_assignment_strategy"] = (RangePartitionAssignor,)
    consumer = AIOKafkaConsumer(**config)
    await consumer.start()
    begin()
    polling = False
    while True:
        told = await asyncio.to_thread(command, wait=not polling)
        if told is not None:
            if told["do"] == "close":
                await consumer.stop()
                tell("closed")
                return
            if told["do"] == "assign":
                consumer.assign([TopicPartition(topic, partition) for topic, partition in told["partitions"]])
            else:
                consumer.subscribe(told["topics"])
            polling = True
            continue
        try:
            fetched = await consumer.getmany(timeout_ms=100)
        except KafkaError as error:
            tell("error", error)
            continue
        await asyncio.to_thread(handle, sum(len(records) for records in fetched.values()))
        if fetched and commit_due():
            with contextlib.suppress(CommitFailedError):
                await consumer.commit()


asyncio.run(main())
