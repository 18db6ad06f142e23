"""One run of one way to handle records: `python -m benchmarks.concurrent_runs '{"way": "muster async", …}'`.

Prints, as JSON, the seconds from the end of the warm-up to the end of the last record, and the CPU of the process for
these. Every handler sleeps for the same time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from muster import Consumer
from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer


@dataclass(frozen=True)
class Run:
    """The task."""

    way: str
    bootstrap: str
    group: str
    topic: str
    concurrency: int
    sleep_ms: int
    warm_up: int
    records: int

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "group.id": self.group, "auto.offset.reset": "earliest"}


class Meter:
    """Counts records, and reads the clocks at the first record that counts and at the last."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._count = 0
        self._began = (0.0, 0.0)
        self.figures: dict[str, float] = {}

    def done(self) -> bool:
        """Count a handled record; returns whether it was the last."""
        with self._lock:
            self._count += 1
            if self._count == self._run.warm_up:
                self._began = time.perf_counter(), time.process_time()
            if self._count == self._run.records:
                wall, cpu = self._began
                self.figures = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            return self._count >= self._run.records


def _one_at_a_time(run: Run, meter: Meter) -> None:
    with Consumer(run.settings) as consumer:
        consumer.subscribe(run.topic)
        for _ in consumer:
            time.sleep(run.sleep_ms / 1000)
            if meter.done():
                break


def _threads(run: Run, meter: Meter) -> None:
    def handle(_record: object) -> None:
        time.sleep(run.sleep_ms / 1000)
        if meter.done():
            consumer.stop()

    consumer = ConcurrentConsumer(run.settings, handle, topics=run.topic, concurrency=run.concurrency)
    consumer.run()


def _tasks(run: Run, meter: Meter) -> None:
    async def handle(_record: object) -> None:
        await asyncio.sleep(run.sleep_ms / 1000)
        if meter.done():
            consumer.stop()

    consumer = AsyncConcurrentConsumer(run.settings, handle, topics=run.topic, concurrency=run.concurrency)
    asyncio.run(consumer.run())


WAYS = {"one at a time": _one_at_a_time, "muster threads": _threads, "muster async": _tasks}


def main() -> None:
    """Run what the command line describes."""
    run = Run(**json.loads(sys.argv[1]))
    meter = Meter(run)
    WAYS[run.way](run, meter)
    print(json.dumps(meter.figures))


if __name__ == "__main__":
    main()
