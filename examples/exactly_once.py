"""Read flights, write the late ones to another topic, each once, even if this program is killed and started again.

pip install muster-kafka
"""

import json
import logging

from muster import Consumer, ConsumerRecord, Producer, TopicPartition, exactly_once

consumer = Consumer(
    bootstrap_servers="localhost:9092",
    group_id="late-flights",
    enable_auto_commit=False,  # offsets are committed with the results
    auto_offset_reset="earliest",
    isolation_level="read_committed",
)
producer = Producer(bootstrap_servers="localhost:9092", transactional_id="late-flights-1")  # another in each process


def handle(batch: dict[TopicPartition, list[ConsumerRecord]]) -> None:
    for records in batch.values():
        for record in records:
            if record.value is not None and json.loads(record.value)["delay"] > 0:
                producer.send("late-flights", record.value)


def report(count: int) -> bool:
    if count:
        print(count, "flights done", flush=True)
    return False  # continue


logging.basicConfig(level=logging.WARNING)
with consumer, producer:
    producer.init_transactions()
    consumer.subscribe(["flights"])
    exactly_once(consumer, producer, handle, until=report)  # until Ctrl-C
