"""A scripted member that uses muster's AsyncConsumer (see told.py). Its handler holds up only its own task."""

from __future__ import annotations

import asyncio
import contextlib

from muster import AsyncConsumer
from muster.errors import CommitFailedError, KafkaError
from tests.history.scenarios.members.told import TYPES, begin, command, commit_due, converted, handle, tell


async def main():
    """Be a member until the command to close."""
    consumer = AsyncConsumer(**converted(TYPES))
    begin()
    polling = False
    while True:
        told = await asyncio.to_thread(command, wait=not polling)
        if told is not None:
            if told["do"] == "close":
                await consumer.close()
                tell("closed")
                return
            consumer.subscribe(told["topics"])
            polling = True
            continue
        try:
            fetched = await consumer.poll(timeout_ms=100)
        except KafkaError as error:
            tell("error", error)
            continue
        await asyncio.to_thread(handle, sum(len(records) for records in fetched.values()))
        if fetched and commit_due():
            with contextlib.suppress(CommitFailedError):
                await consumer.commit()


asyncio.run(main())
