"""What tests need for a streaming query in a real Spark: quiet settings, an idempotent sink, patience at its start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

_AGAIN = 3
"""How often a query whose Python process was late is started again."""

QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}


def write_batch(folder: Path, rows: list[Any], batch: int) -> None:
    """One file for each batch, complete or absent."""
    partial = folder / f".{batch}"
    partial.write_text(json.dumps([[row["partition"], row["offset"]] for row in rows]))
    partial.replace(folder / str(batch))


class Stream:
    """A query. Spark gives a source's Python process ten seconds to start, which no setting changes: on a busy machine
    that is not always enough, and ends the query before it has read anything. It is then started again, at most three
    times. A query that has got further is not: its end is up to the test."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._query = begin()
        self._begun = 1
        self.once = False
        """It is not started again: the test kills the process, perhaps before Spark has learned of it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended without an error; returns whether it has."""
        while True:
            try:
                return bool(self._query.awaitTermination(timeout_s) is not False)
            except StreamingQueryException:
                if not self._begun_again():
                    raise

    def look(self) -> None:
        """Raise the error that has ended it."""
        error = self._query.exception()
        if error is not None and not self._begun_again():
            raise error

    def _begun_again(self) -> bool:
        late = "worker failed to connect back" in str(self._query.exception()) and self._query.lastProgress is None
        if not late or self.once or self._begun > _AGAIN:
            return False
        self._begun += 1
        self._query = self._begin()
        return True
