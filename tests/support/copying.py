"""A copy job: each record of one topic goes to another, exactly once, until it is stopped or killed.

With an assignor it is a dynamic member of its group, otherwise a static one: the next job has the partitions of a
killed one immediately.

It prints `ready` once it is subscribed, then `copied` after each transaction that it commits.

python -m tests.support.copying BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID [sync|async|arrow] [ASSIGNOR]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

from muster import AsyncConsumer, AsyncProducer, Consumer, Producer, async_exactly_once, exactly_once


def settings(bootstrap: str, group: str, name: str, assignor: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the consumer and of the producer."""
    reading = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "session_timeout_ms": 12_000,
        "heartbeat_interval_ms": 500,
        "max_poll_records": 50,
    }
    reading |= {"partition_assignment_strategy": assignor} if assignor else {"group_instance_id": name}
    # The next job with this id aborts the transaction of a killed one; a dynamic member only disappears by its timeout.
    timeout_ms = 10_000 if assignor else 60_000
    return reading, {"bootstrap_servers": bootstrap, "transactional_id": name, "transaction_timeout_ms": timeout_ms}


def report(count: int) -> bool:
    """Print that a round was committed; the job continues."""
    if count:
        print("copied", flush=True)
    return False


def copy(bootstrap: str, source: str, target: str, group: str, name: str, assignor: str, arrow: bool) -> None:
    """With blocking clients."""
    reading, writing = settings(bootstrap, group, name, assignor)
    with Consumer(reading) as consumer, Producer(writing) as producer:
        producer.init_transactions()
        consumer.subscribe([source])

        def handle(batch: Any) -> None:
            for records in batch.values():
                values = records["value"].to_pylist() if arrow else [record.value for record in records]
                for value in values:
                    producer.send(target, value)

        print("ready", flush=True)
        exactly_once(consumer, producer, handle, until=report, arrow=arrow, timeout_ms=200)


async def copy_async(bootstrap: str, source: str, target: str, group: str, name: str, assignor: str) -> None:
    """With clients of asyncio."""
    reading, writing = settings(bootstrap, group, name, assignor)
    async with AsyncConsumer(reading) as consumer, AsyncProducer(writing) as producer:
        await producer.init_transactions()
        consumer.subscribe([source])

        async def handle(batch: Any) -> None:
            for records in batch.values():
                for record in records:
                    await producer.send(target, record.value)

        print("ready", flush=True)
        await async_exactly_once(consumer, producer, handle, until=report, timeout_ms=200)


if __name__ == "__main__":
    bootstrap, source, target, group, name, kind, *more = sys.argv[1:]
    assignor = "".join(more)
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "async":
            asyncio.run(copy_async(bootstrap, source, target, group, name, assignor))
        else:
            copy(bootstrap, source, target, group, name, assignor, arrow=kind == "arrow")
