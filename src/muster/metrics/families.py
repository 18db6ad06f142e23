"""Families of samples: measurements as values. exposition.py encodes them for Prometheus.

Names are those that Prometheus's JMX exporter gives to Kafka's own MBeans (its example `kafka-2_0_0.yml`,
otherwise its default rule), so that dashboards and alerts for Kafka work here too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

Labels = Mapping[str, str]


class MetricType(Enum):
    """The type of a metric for Prometheus."""

    COUNTER = "counter"
    """Only grows until the process restarts; its name ends in `_total`."""
    GAUGE = "gauge"
    UNKNOWN = "unknown"
    """A number whose name does not follow Prometheus's conventions, such as a counter without `_total`."""
    HISTOGRAM = "histogram"


class Distribution(NamedTuple):
    """The number of values up to each bound, the last of which is infinite; and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


@dataclass(slots=True)
class Family:
    """Samples of one name, each with its own labels."""

    name: str
    kind: MetricType
    text: str
    """The help text."""
    samples: list[tuple[Labels, float | Distribution]] = field(default_factory=list)

    def add(self, value: float | Distribution, **labels: str) -> Family:
        """Add a sample."""
        self.samples.append((labels, value))
        return self


def counter(name: str, text: str) -> Family:
    """A family of counters."""
    return Family(name, MetricType.COUNTER, text)


def gauge(name: str, text: str) -> Family:
    """A family of gauges."""
    return Family(name, MetricType.GAUGE, text)


class Buckets:
    """Counts values by size."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def seen(self) -> Distribution:
        """The distribution so far."""
        return Distribution((*self.bounds, float("inf")), tuple(accumulate(self.counts)), self.total)


def value_of(families: Iterable[Family], name: str, **labels: str) -> float | Distribution:
    """The one sample of a family with these labels. Raises LookupError if there is none, or more than one."""
    found = [
        value for family in families if family.name == name for given, value in family.samples if dict(given) == labels
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} samples of {name} with the labels {labels}")
    return found[0]
