"""What was observed of the group during the demo: the owners of each partition, each rebalance with its cause.

Snapshots come from requests to the cluster, as any operator could send; causes and exact times come from the events
that muster's own broker writes. Without these, rebalances still show between two snapshots, with the cause "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muster.demo.course import Outage
from muster.demo.show.report import NOT_KNOWN, OwnershipSpan, ShownRebalance
from muster.history.lag import lag, total

STABLE = "Stable"
GONE = ("Empty", "Dead")


@dataclass(slots=True)
class Snapshot:
    """The group at one moment. `owners` says which member (by its client id) has a partition."""

    at_ms: int
    state: str
    members: list[str]
    owners: dict[int, str]
    positions: dict[int, int]
    ends: dict[int, int]

    @property
    def lag(self) -> int:
        """Records that are written but not yet committed."""
        return total(lag(self.positions.get(partition, 0), end) for partition, end in self.ends.items())

    @property
    def settled(self) -> bool:
        """Whether the group is stable, every partition has an owner and every member a partition."""
        owned = self.state == STABLE and bool(self.ends) and self.owners.keys() >= self.ends.keys()
        return owned and set(self.owners.values()) == set(self.members)


@dataclass
class Story:
    """Collects what happened. `has_events` means that the broker reports its rebalances."""

    group: str
    has_events: bool
    generation: int = -1
    latest: Snapshot | None = None
    rebalances: list[ShownRebalance] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    spans: list[OwnershipSpan] = field(default_factory=list)
    _open_spans: dict[int, OwnershipSpan] = field(default_factory=dict)
    _causes: list[str] = field(default_factory=list)
    _started_at: int | None = None

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Process a snapshot of the group."""
        if not self.has_events:
            self._notice_rebalance(snapshot)
        if snapshot.state == STABLE:
            self._extend_spans(snapshot)
        elif snapshot.state in GONE:
            self.finish(snapshot.at_ms)
        self.latest = snapshot

    def on_event(self, event: dict[str, Any]) -> ShownRebalance | None:
        """Process an event of the broker; returns the rebalance that it completes, if any."""
        if event.get("group_id") != self.group:
            return None
        if event["event"] == "RebalanceStarted":
            if self._started_at is None:
                self._started_at = event["at"]
            cause = f"{event['cause']} ({event['client_id']})" if event.get("client_id") else str(event["cause"])
            if cause not in self._causes:
                self._causes.append(cause)
        elif event["event"] == "RebalanceCompleted":
            self.generation = event["generation_id"]
            causes = "; ".join(self._causes) or NOT_KNOWN
            return self._completed(event["at"], event["duration_ms"], causes)
        return None

    def finish(self, at_ms: int) -> None:
        """Close open spans: the group is empty, or the demo ends."""
        for partition, span in self._open_spans.items():
            self.spans.append(OwnershipSpan(partition, span.member, span.start_ms, max(span.end_ms, at_ms)))
        self._open_spans = {}

    def _completed(self, at_ms: int, duration_ms: int, cause: str) -> ShownRebalance:
        rebalance = ShownRebalance(at_ms - duration_ms, duration_ms, self.generation, cause)
        self.rebalances.append(rebalance)
        self._started_at = None
        self._causes = []
        return rebalance

    def _notice_rebalance(self, snapshot: Snapshot) -> None:
        before = self.latest
        changed = before is not None and (before.owners != snapshot.owners or before.members != snapshot.members)
        if self._started_at is None and (changed or snapshot.state != STABLE):
            self._started_at = before.at_ms if before else snapshot.at_ms
        if snapshot.state == STABLE and self._started_at is not None:
            self.generation += 1
            self._completed(snapshot.at_ms, snapshot.at_ms - self._started_at, NOT_KNOWN)

    def _extend_spans(self, snapshot: Snapshot) -> None:
        for partition, member in snapshot.owners.items():
            span = self._open_spans.get(partition)
            if span is not None and span.member != member:
                self.spans.append(OwnershipSpan(partition, span.member, span.start_ms, snapshot.at_ms))
                span = None
            start = span.start_ms if span else snapshot.at_ms
            self._open_spans[partition] = OwnershipSpan(partition, member, start, snapshot.at_ms)
        for partition in self._open_spans.keys() - snapshot.owners.keys():
            self.spans.append(self._open_spans.pop(partition))
