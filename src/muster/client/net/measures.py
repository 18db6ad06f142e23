"""What a client counts: requests by kind and how long they took, records by topic, rates.

Averages, maxima and rates cover the last 30 to 60 seconds, as in Kafka's clients (metrics.sample.window.ms times
metrics.num.samples): a `SampleWindow` has the current half minute and the one before. Times are passed in, in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from muster.model import TopicPartition

WINDOW_MS = 30_000


class SampleWindow:
    """Values of the last 30 to 60 seconds: how many, their sum and the largest."""

    __slots__ = ("_before", "_began", "_now")

    def __init__(self) -> None:
        self._began: int | None = None
        self._now = (0, 0.0, 0.0)
        self._before = (0, 0.0, 0.0)

    def add(self, value: float, now: int) -> None:
        """Record a value."""
        self._turn(now)
        count, total, most = self._now
        self._now = count + 1, total + value, max(most, value)

    def average(self, now: int) -> float | None:
        """Their average; None if there are none."""
        self._turn(now)
        count = self._now[0] + self._before[0]
        return (self._now[1] + self._before[1]) / count if count else None

    def maximum(self, now: int) -> float | None:
        """The largest; None if there are none."""
        self._turn(now)
        return max(self._now[2], self._before[2]) if self._now[0] or self._before[0] else None

    def rate(self, now: int) -> float:
        """Their sum per second. A window that has just begun counts as a whole one, as in Kafka's clients."""
        self._turn(now)
        seen_ms = 0 if self._began is None else now - self._began
        return (self._now[1] + self._before[1]) / ((WINDOW_MS + seen_ms) / 1_000)

    def _turn(self, now: int) -> None:
        if self._began is None:
            self._began = now
        elif now - self._began >= WINDOW_MS:
            is_next = now - self._began < 2 * WINDOW_MS
            self._before = self._now if is_next else (0, 0.0, 0.0)
            self._now = (0, 0.0, 0.0)
            self._began = self._began + WINDOW_MS if is_next else now


class RequestStats:
    """The requests of one kind."""

    __slots__ = ("answered", "sent_at", "took_ms")

    def __init__(self) -> None:
        self.answered = 0
        self.sent_at = 0
        """When the last answered request was sent."""
        self.took_ms = SampleWindow()


class Measures:
    """What the connections of a client count."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestStats] = {}
        """The requests of each kind, by name."""
        self.made = self.closed = 0
        """Connections opened and closed."""

    def answered(self, name: str, sent_at: int, now: int) -> None:
        """A request was answered."""
        found = self.requests.get(name)
        if found is None:
            found = self.requests[name] = RequestStats()
        found.answered += 1
        found.sent_at = sent_at
        found.took_ms.add(now - sent_at, now)


class RecordCounts:
    """Counts of the records that were consumed."""

    def __init__(self) -> None:
        self.total = 0
        self.by_topic: dict[str, int] = {}
        self.window = SampleWindow()

    def add(self, records: Mapping[TopicPartition, Sized], now: int) -> None:
        """Count more records; called once for each poll, not for each record."""
        for partition, some in records.items():
            count = len(some)
            self.total += count
            self.by_topic[partition.topic] = self.by_topic.get(partition.topic, 0) + count
            self.window.add(count, now)
