"""A program that handles many records at a time: `python concurrent_app.py BOOTSTRAP GROUP TOPIC MODE BOOK`.

It writes into BOOK a line `begin PARTITION OFFSET KEY` before each record and `end …` after it, each with one write, so
that a kill leaves whole lines. A record with key `stuck` is slow, `boom` fails for good, `die` ends its process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import Any

from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, PoisonRecordError, Retry
from muster.model import ConsumerRecord

WORK_S = 0.01
STUCK_S = 600.0


def note(word: str, record: ConsumerRecord) -> None:
    book = os.open(os.environ["BOOK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    key = (record.key or b"-").decode()
    os.write(book, f"{word} {record.partition} {record.offset} {key}\n".encode())
    os.close(book)


def begin(record: ConsumerRecord) -> float:
    note("begin", record)
    if record.key == b"boom":
        raise PoisonRecordError("it never works")
    if record.key == b"die":
        os._exit(7)
    return STUCK_S if record.key == b"stuck" else WORK_S


def handle(record: ConsumerRecord) -> None:
    time.sleep(begin(record))
    note("end", record)


async def handle_async(record: ConsumerRecord) -> None:
    await asyncio.sleep(begin(record))
    note("end", record)


def main() -> None:
    bootstrap, group, topic, mode, os.environ["BOOK"] = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 500,
    }
    chosen: dict[str, Any] = {
        "topics": topic,
        "concurrency": 2 if mode == "processes" else 20,
        "commit_interval_ms": 100,
        "dead_letter_topic": f"{topic}-dead",
        "retry": Retry(max_attempts=2, delay_ms=50),
    }
    if mode == "async":
        asyncio.run(AsyncConcurrentConsumer(settings, handle_async, **chosen).run())
    else:
        ConcurrentConsumer(settings, handle, workers="threads" if mode == "threads" else "processes", **chosen).run()
    print("ended in good order", flush=True)


if __name__ == "__main__":
    main()
