"""A member of a group that uses muster. `python with_muster.py BOOTSTRAP GROUP TOPIC`; SIGTERM: it leaves.

With COORDINATOR/BOOTSTRAP it speaks Kafka's draft protocol. Prints every record as a line of JSON before it commits, so
that a kill can repeat records but lose none.
"""

import faulthandler
import json
import signal
import sys
from types import SimpleNamespace
from typing import Any

from muster.client.consumer.consumer import Consumer
from muster.errors import CommitFailedError
from muster.zookeeper import ServerAssignedConsumer

reported = SimpleNamespace(to_stop=False)
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: setattr(reported, "to_stop", True))

servers, group, topic = sys.argv[1:]
coordinators, _, bootstrap = servers.rpartition("/")
settings: dict[str, Any] = {
    "bootstrap_servers": bootstrap,
    "group_id": group,
    "partition_assignment_strategy": "range",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 12_000,
    "heartbeat_interval_ms": 1_000,
}
consumer: Consumer | ServerAssignedConsumer
if coordinators:
    consumer = ServerAssignedConsumer(coordinator_servers=coordinators, client_id="with-drafts", **settings)
else:
    consumer = Consumer(client_id="with-muster", **settings)
consumer.subscribe([topic])
while not reported.to_stop:
    fetched = consumer.poll(timeout_ms=300)
    for records in fetched.values():
        for record in records:
            value = (record.value or b"").decode()
            line = {"partition": record.partition, "offset": record.offset, "value": value}
            sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    if fetched:
        try:
            consumer.commit()
        except CommitFailedError as error:  # a rebalance happened in between: another member repeats the records
            print(error, file=sys.stderr)
consumer.close()
