"""A streaming query in a separate process that gets its commands as lines, and is killed in many ways.

It reads JSON objects from standard input: `{"start": RUN, "tag": …, …}`, with the checkpoint, the sink and how long a
batch takes before and after its write, `{"stop": true}`, and `{"once": TAG}` before the query's source is killed. It
says what happens in JSON lines. As users' scripts do, its main thread waits for the end of the query. It ends when
standard input does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from muster.spark import session
from tests.support.spark_query import QUIET, Stream


def say(**what: Any) -> None:
    """Report to the caller. Two threads do this, so a line is written in one call."""
    os.write(sys.stdout.fileno(), f"{json.dumps(what)}\n".encode())


def main() -> None:
    """Run queries, one after the other."""
    settings = QUIET | {"spark.sql.streaming.minBatchesToRetain": "10000"}
    spark = session("soak", "local[2,4]", **settings)
    reported: queue.Queue[dict[str, Any] | None] = queue.Queue()
    running: list[Stream] = []
    begun = threading.Condition()

    def listen() -> None:
        wanted = 0
        for line in sys.stdin:
            command = json.loads(line)
            if "start" in command:
                wanted += 1
                reported.put(command)
                continue
            with begun:  # the command may arrive before there is a query
                begun.wait_for(lambda count=wanted: len(running) == count)  # type: ignore[misc]
            if "stop" in command:
                running[-1].stop()
                say(stopped=True)
            else:
                running[-1].once = True
                say(once=command["once"])
        reported.put(None)
        if running:
            running[-1].stop()

    threading.Thread(target=listen, daemon=True).start()
    say(pid=os.getpid(), jvm=spark.sparkContext._gateway.proc.pid)
    while (command := reported.get()) is not None:
        query = Stream(lambda c=command: begin(spark, c).start())  # type: ignore[misc]
        with begun:
            running.append(query)
            begun.notify_all()
        say(started=command["tag"])
        try:
            query.wait()
            say(ended=command["tag"])
        except StreamingQueryException as error:
            say(ended=command["tag"], error=str(error)[-3_000:])
    spark.stop()


def begin(spark: Any, command: dict[str, Any]) -> Any:
    """The function that starts the query."""
    frame = spark.readStream.format("muster").options(**command["options"]).load()
    if "topic" in command:
        writer = frame.selectExpr("value").writeStream.format("muster").options(**command["topic"])
    else:
        writer = frame.selectExpr("cast(cast(value as string) as long) as number").writeStream.foreachBatch(
            lambda rows, batch: write(command, rows, batch)
        )
    writer = writer.option("checkpointLocation", command["checkpoint"])
    return writer.trigger(processingTime="100 milliseconds")


def write(command: dict[str, Any], rows: Any, batch: int) -> None:
    """A file for each call, complete or absent."""
    found = [row["number"] for row in rows.collect()]
    time.sleep(command["before_s"])
    folder = Path(command["sink"])
    name = f"{batch}-{command['start']}-{uuid.uuid4().hex[:6]}"
    (folder / f".{name}").write_text(json.dumps(found))
    (folder / f".{name}").replace(folder / name)
    time.sleep(command["behind_s"])


if __name__ == "__main__":
    main()
