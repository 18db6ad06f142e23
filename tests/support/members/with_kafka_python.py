"""A member of a group that uses kafka-python. `python with_kafka_python.py BOOTSTRAP GROUP TOPIC`; SIGTERM: it leaves.

Prints every record as a line of JSON before it commits, so that a kill can repeat records but lose none.
"""

import faulthandler
import json
import logging
import signal
import sys
from types import SimpleNamespace

from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, KafkaConnectionError

reported = SimpleNamespace(to_stop=False)
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: setattr(reported, "to_stop", True))
# What it did last, for the message of a failure.
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s: %(message)s")

bootstrap, group, topic = sys.argv[1:]
consumer = KafkaConsumer(
    topic,
    bootstrap_servers=bootstrap,
    group_id=group,
    client_id="with-kafka-python",
    partition_assignment_strategy=[RangePartitionAssignor],
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    session_timeout_ms=12_000,
    heartbeat_interval_ms=1_000,
)
while not reported.to_stop:
    try:
        fetched = consumer.poll(timeout_ms=300)
        for records in fetched.values():
            for record in records:
                line = {"partition": record.partition, "offset": record.offset, "value": record.value.decode()}
                sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if fetched:
            consumer.commit()
    except CommitFailedError as error:  # a rebalance happened in between: another member repeats the records
        print(error, file=sys.stderr)
    except KafkaConnectionError as error:  # the broker is being restarted: the next commit includes these, too
        print(error, file=sys.stderr)
consumer.close()
