"""Call a service for each flight, a hundred at a time, the flights of each plane in order.

pip install muster-kafka
"""

import asyncio
import json
import logging
from typing import Any

from muster import AsyncConcurrentConsumer, ConsumerRecord, PoisonRecordError, Retry


async def ask_service(flight: dict[str, Any]) -> bool:
    """A placeholder for a request over the network."""
    await asyncio.sleep(0.1)
    return bool(flight["delay"] > 0)


async def handle(record: ConsumerRecord) -> None:
    flight = record.value
    if flight is None:
        raise PoisonRecordError("not a flight")  # no retry: to the dead letters
    async with asyncio.timeout(10):  # any exception, including this one, means a retry
        is_late = await ask_service(flight)
    print(flight["carrier"], "late" if is_late else "on time", flush=True)


consumer = AsyncConcurrentConsumer(
    {"bootstrap.servers": "localhost:9092", "group.id": "late-flights", "auto.offset.reset": "earliest"},
    handle,
    value_deserializer=json.loads,  # unreadable records go to the dead letters too
    topics=["flights"],
    order="key",
    concurrency=100,
    retry=Retry(max_attempts=5, delay_ms=500),
    dead_letter_topic="flights-dead",
)
logging.basicConfig(level=logging.WARNING)
asyncio.run(consumer.run())  # until Ctrl-C or SIGTERM
print(consumer.metrics())
