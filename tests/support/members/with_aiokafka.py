"""A member of a group that uses aiokafka. `python with_aiokafka.py BOOTSTRAP GROUP TOPIC`; SIGTERM: it leaves.

Prints every record as a line of JSON before it commits, so that a kill can repeat records but lose none.
"""

import asyncio
import faulthandler
import json
import signal
import sys

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError


async def run(bootstrap: str, group: str, topic: str) -> None:
    """Be a member until stopped."""
    faulthandler.register(signal.SIGUSR1)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id="with-aiokafka",
        partition_assignment_strategy=(RangePartitionAssignor,),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=12_000,
        heartbeat_interval_ms=1_000,
    )
    await consumer.start()
    while not stop.is_set():
        fetched = await consumer.getmany(timeout_ms=300)
        for partition, records in fetched.items():
            for record in records:
                line = {"partition": partition.partition, "offset": record.offset, "value": record.value.decode()}
                sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if fetched:
            await commit(consumer)
    await consumer.stop()


async def commit(consumer: AIOKafkaConsumer) -> None:
    """Commit what was printed; after a rebalance in between, another member repeats it."""
    try:
        await consumer.commit()
    except CommitFailedError as error:
        print(error, file=sys.stderr)


asyncio.run(run(*sys.argv[1:]))
