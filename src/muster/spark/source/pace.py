"""When a trigger makes a batch: `minOffsetsPerTrigger` and `maxTriggerDelay`, as in Spark's own source."""

from __future__ import annotations


class Pace:
    """Holds batches back until there are enough records, or the last batch was long enough ago.

    The first trigger is never held back, and starts the clock even if it finds nothing, as with Spark's own source.
    """

    def __init__(self, min_rows: int | None, max_delay_ms: int) -> None:
        self._min_rows = min_rows
        self._max_delay_ms = max_delay_ms
        self._last: int | None = None

    def holds_back(self, rows: int, now: int) -> bool:
        """Whether a trigger now, with this many records to read, makes no batch."""
        if self._min_rows is None:
            return False
        due = self._last is None or now - self._last >= self._max_delay_ms
        if not due and rows < self._min_rows:
            return True
        self._last = now
        return False
