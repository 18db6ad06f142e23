"""A member of a group that uses confluent-kafka. `python with_confluent.py BOOTSTRAP GROUP TOPIC`; SIGTERM: it leaves.

Prints every record as a line of JSON before it commits, so that a kill can repeat records but lose none.
"""

import faulthandler
import json
import signal
import sys
from types import SimpleNamespace

from confluent_kafka import Consumer, KafkaException

reported = SimpleNamespace(to_stop=False)
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: setattr(reported, "to_stop", True))

bootstrap, group, topic = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": "with-confluent",
        "partition.assignment.strategy": "range",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 12_000,
        "heartbeat.interval.ms": 1_000,
    }
)
consumer.subscribe([topic])
while not reported.to_stop:
    messages = consumer.consume(500, timeout=0.3)
    for message in messages:
        if message.error():
            print(message.error(), file=sys.stderr)
            continue
        line = {"partition": message.partition(), "offset": message.offset(), "value": message.value().decode()}
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    if messages:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:  # a rebalance happened in between: another member repeats the records
            print(error, file=sys.stderr)
consumer.close()
