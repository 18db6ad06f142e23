"""A process with one `WatcherConsumer` that prints what it hands out, for tests that stop and kill it.

watcher_process.py ZOOKEEPER GROUP NAME TOPIC SESSION_TIMEOUT_MS PAUSE_MS

It prints a line for each record: partition, offset, how many fetched records of the partition are left. After each it
waits.
"""

from __future__ import annotations

import sys
import time

from muster.zookeeper import RebalanceFailedError, WatcherConsumer


def main(connect: str, group: str, name: str, topic: str, session_timeout_ms: str, pause_ms: str) -> None:
    """Read until the process ends."""
    with WatcherConsumer(
        zookeeper_connect=connect,
        group_id=group,
        consumer_id=name,
        auto_offset_reset="earliest",
        zookeeper_session_timeout_ms=int(session_timeout_ms),
        zookeeper_connection_timeout_ms=60_000,
        rebalance_backoff_ms=300,
        rebalance_max_retries=100,
        auto_commit_interval_ms=500,
    ) as consumer:
        consumer.subscribe(topic)
        while True:
            try:
                found = consumer.poll(500, max_records=50)
            except RebalanceFailedError:
                continue
            for records in found.values():
                for index, record in enumerate(records):
                    print(record.partition, record.offset, len(records) - index - 1, flush=True)
                    time.sleep(int(pause_ms) / 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
