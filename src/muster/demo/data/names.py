"""The names of the demo's topics, groups and members."""

from __future__ import annotations

from dataclasses import dataclass

SPARK = "spark"
"""The client id of the Spark query in the shared group, and the name of the program that it runs in."""

KEYS = ["day", "origin", "carrier"]
"""Keys of the pipeline's table and compacted topic."""

SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 1_000


@dataclass(frozen=True, slots=True)
class DemoNames:
    """The topics. `groups` are those of the pipeline."""

    flights: str
    weather: str
    windows: str
    dead: str

    @classmethod
    def of(cls, topic: str) -> DemoNames:
        """All topics are named after the topic of flights."""
        return cls(topic, f"{topic}-weather", f"{topic}-by-day", f"{topic}-dead")

    @property
    def results(self) -> tuple[str, str]:
        """The topics that the pipeline writes."""
        return self.windows, self.dead

    def group(self, source: str) -> str:
        """The group of one source of a query; a query that joins two topics has two sources."""
        return f"{self.flights}-{source}"

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        return {self.flights: 8, self.weather: 3, self.windows: 3, self.dead: 1}

    @property
    def groups(self) -> dict[str, tuple[str, str]]:
        """For each group of the pipeline: the query that is its member, and the topic that it reads."""
        return {
            self.group("windows"): ("windows", self.flights),
            self.group("join"): ("join", self.flights),
            self.group("join-weather"): ("join", self.weather),
            self.group("check"): ("check", self.flights),
        }

    @property
    def reader_group(self) -> str:
        """The group of the Python process that reads what the pipeline writes."""
        return f"{self.flights}-reader"
