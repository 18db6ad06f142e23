"""A program for Spark, as the demo runs it: what the two say to each other, and how the program ends.

Commands come as lines of JSON on standard input; batches, and answers to commands, go out as lines of JSON. The program
ends when standard input is closed, as it is when the demo dies, whatever it does at that moment.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

from muster.errors import MusterError
from muster.spark.history.sentences import sentence

Say: TypeAlias = Callable[[Mapping[str, Any]], None]

LOOK_EVERY_S = 0.4
PATIENCE_S = 30.0
"""How long a program may take to end once its standard input is closed: a query may wait for a broker that has gone."""


class Program:
    """This process's side of the talk. To be made first of all, before there is a JVM; an error that ends its block is
    said too."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the demo, which decides
        # The JVM would inherit standard output, and prints what it likes there, in the midst of a line too.
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._writing = threading.Lock()
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            self.say(failed(error))

    def say(self, message: Mapping[str, Any]) -> None:
        """Say something to the demo."""
        with self._writing:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    def commands(self) -> Iterator[dict[str, Any]]:
        """What the demo says, until it has no more to say."""
        while (line := self._commands.get()) is not None:
            yield json.loads(line)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line)
        self._commands.put(None)
        threading.Event().wait(PATIENCE_S)
        os._exit(1)  # the JVM ends with the pipe that it has from this process


def failed(error: Exception) -> dict[str, Any]:
    """The message that says so."""
    return {"event": "failed", "error": sentence(str(error)) or repr(error)}


class Reporter:
    """Says what each batch of some queries was, until the queries end."""

    def __init__(self, queries: Sequence[StreamingQuery], say: Say) -> None:
        self._queries = queries
        self._say = say
        self._last: dict[str, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(LOOK_EVERY_S):
                for query in self._queries:
                    self._look(query)
        except Exception as error:  # such as of a JVM that has died
            self._say(failed(MusterError(f"it cannot ask Spark about its queries: {error!r}")))

    def _look(self, query: StreamingQuery) -> None:
        if (error := query.exception()) is not None:
            self._say(failed(error))
            self._stopped.set()
            return
        progress: Any = query.lastProgress
        if progress is not None and self._last.get(query.name) != progress["batchId"] and progress["numInputRows"]:
            self._last[query.name] = progress["batchId"]
            self._say({"event": "batch", "query": query.name, **_shown(progress)})

    def stop(self) -> None:
        """Say no more."""
        self._stopped.set()
        self._thread.join()


def _shown(progress: Any) -> dict[str, Any]:
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "took_ms": progress["batchDuration"],
        "watermark": progress["eventTime"].get("watermark") if progress["eventTime"] else None,
        "newest": progress["eventTime"].get("max") if progress["eventTime"] else None,
        "dropped": sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"]),
        "state_rows": sum(state["numRowsTotal"] for state in progress["stateOperators"]),
    }
