"""Compute something for each flight, in one process per CPU.

pip install muster-kafka
"""

import json
import logging

from muster import ConcurrentConsumer, ConsumerRecord, Retry


def handle(record: ConsumerRecord) -> None:
    """At the top of a module, so that each process can import it."""
    flight = json.loads(record.value or b"")
    score = sum(number * flight["delay"] for number in range(100_000)) % 97
    print(flight["carrier"], score, flush=True)


if __name__ == "__main__":  # each process imports this file again
    logging.basicConfig(level=logging.WARNING)
    ConcurrentConsumer(
        {"bootstrap.servers": "localhost:9092", "group.id": "scores", "auto.offset.reset": "earliest"},
        handle,
        topics=["flights"],
        workers="processes",
        retry=Retry(max_attempts=3, delay_ms=1_000),
        dead_letter_topic="flights-dead",
    ).run()  # until Ctrl-C or SIGTERM
