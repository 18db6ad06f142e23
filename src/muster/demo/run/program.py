"""One of the demo's Spark programs: its messages to and from the demo, and how it ends.

Commands arrive as lines of JSON on standard input; batches, and answers to commands, are printed as lines of JSON. The
program ends when standard input is closed, as happens when the demo dies, whatever it is doing then.
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
from muster.spark.history.short_errors import sentence

Say: TypeAlias = Callable[[Mapping[str, Any]], None]

POLL_INTERVAL_S = 0.4
PATIENCE_S = 30.0
"""How long a program may take to end once its standard input is closed: a query may wait for a dead broker."""


class Program:
    """The program's connection to the demo. Create it first, before the JVM; an error that ends its block is reported
    too."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the demo, which decides
        # The JVM would inherit standard output and print there, even within a line.
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
        """Send the demo a message."""
        with self._writing:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    def commands(self) -> Iterator[dict[str, Any]]:
        """The demo's commands, until it closes the input."""
        while (line := self._commands.get()) is not None:
            yield json.loads(line)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line)
        self._commands.put(None)
        threading.Event().wait(PATIENCE_S)
        os._exit(1)  # the JVM ends when this process's pipe closes


def failed(error: Exception) -> dict[str, Any]:
    """The message about a failure."""
    return {"event": "failed", "error": sentence(str(error)) or repr(error)}


class Reporter:
    """Reports each batch of some queries, until they end."""

    def __init__(self, queries: Sequence[StreamingQuery], say: Say) -> None:
        self._queries = queries
        self._say = say
        self._last: dict[str, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(POLL_INTERVAL_S):
                for query in self._queries:
                    self._look(query)
        except Exception as error:  # for example, the JVM has died
            self._say(failed(MusterError(f"cannot get the progress of the queries from Spark: {error!r}")))

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
        """Stop reporting."""
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
