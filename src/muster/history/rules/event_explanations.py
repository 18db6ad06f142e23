"""Rebalances that the broker itself has explained: its events take precedence over what the records let us infer.

muster's broker writes to `__group_events` when each rebalance began and ended, and why. A label belongs to the row of
the same generation that was written at about the time at which the rebalance ended: generation numbers repeat after a
group is deleted. What a single event cannot show stays inferred: that a member was too slow and its client left without
a reason (librdkafka, kafka-python, aiokafka), or let its session expire because it has an instance id. The pattern that
a rebalance is part of is inferred, too: each event is about one rebalance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from muster.history.model import Cause, Rebalance
from muster.history.rules.event_rebalances import Label, Telling, is_known_event
from muster.history.rules.query_batches import ABOUT

EVENTS = "events"
_NEAR_MS = 60_000
"""Both times come from the broker's clock, but the log append may lag the decision."""


def explained(rebalances: Iterable[Rebalance], labels: Mapping[str, Sequence[Label]]) -> list[Rebalance]:
    """The same rows; those that the broker explained carry its cause and their exact duration."""
    return [_explained(row, labels.get(row.group, ())) for row in rebalances]


class Event(NamedTuple):
    """An event and its position. All engines process a group's events in this order: by time, then in log order."""

    at_ms: int
    partition: int
    offset: int
    fields: Mapping[str, Any]


def event_at(partition: int, offset: int, value: bytes | None) -> Event | None:
    """A record of `__group_events`; None if it is not an event of a group."""
    event = event_of(value)
    return Event(event["at_ms"], partition, offset, event) if is_known_event(event) else None


def event_of(value: bytes | None) -> Any:
    """A record's decoded value; None if it is not JSON."""
    try:
        return json.loads(value or b"null")
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class Heard:
    """The broker's events of one group, for an engine that keeps reading. Plain data, bounded by `forget`.

    Events are final once they are so old that no earlier one can arrive: a group's events may be in several partitions,
    those of the brokers that coordinated it one after another."""

    telling: Telling = field(default_factory=Telling)
    waiting: list[Event] = field(default_factory=list)
    done: list[Label] = field(default_factory=list)
    """Labels of the events that are final."""
    is_all: bool = False
    """The group has no other records: it is not in any log."""

    def add(self, events: Iterable[Event]) -> None:
        """Add events, in any order."""
        self.waiting += events
        self.waiting.sort(key=lambda each: each[:3])

    def labels(self) -> list[Label]:
        """What is known so far."""
        return [*self.done, *self.telling.copy().labels(each.fields for each in self.waiting)]

    def forget(self, before_ms: int) -> None:
        """Drop what only rows of rebalances before that time would need."""
        old = sum(each.at_ms < before_ms for each in self.waiting)
        self.done += self.telling.labels(each.fields for each in self.waiting[:old])
        del self.waiting[:old]
        self.done = [each for each in self.done if (each.finished_ms or 0) >= before_ms - _NEAR_MS]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept that could explain a row."""
        return not self.waiting and not self.done


def _explained(row: Rebalance, labels: Sequence[Label]) -> Rebalance:
    label = _label_of(row, labels)
    if label is None or label.finished_ms is None:
        return row
    has_records = row.source != EVENTS
    known = has_records and _knows_better(row.cause, label)
    inferred = (_inferred(row),) if has_records else ()
    facts = tuple(line for line in row.evidence if line.startswith(ABOUT))
    return replace(
        row,
        duration_ms=max(0, label.finished_ms - label.started_ms),
        duration_is="exact",
        cause=row.cause if known else label.cause,
        confidence=row.confidence if known else 1.0,
        evidence=(_reported(label), *row.evidence) if known else (_reported(label), *inferred, *facts),
        alternatives=row.alternatives if known else (),
        phase=label.phase,
        source=EVENTS,
    )


def _knows_better(inferred: Cause, label: Label) -> bool:
    """Whether the records show what the event leaves open: that a member was too slow; or that no topic gained
    partitions, so one was deleted (a leader rejoins for either)."""
    if label.cause is Cause.PARTITIONS_ADDED:
        return inferred is Cause.LEADER_REJOINED
    return not label.is_sure and inferred is Cause.POLL_INTERVAL_EXCEEDED


def _label_of(row: Rebalance, labels: Sequence[Label]) -> Label | None:
    near = [
        (abs(label.finished_ms - row.at_ms), label)
        for label in labels
        if label.rebalanced and label.generation == row.generation and label.finished_ms is not None
    ]
    distance, found = min(near, key=lambda each: each[0], default=(_NEAR_MS, None))
    return found if distance < _NEAR_MS else None


def _reported(label: Label) -> str:
    whose = f" by {label.client_id or label.member}" if label.client_id or label.member else ""
    reason = f", with the reason: {label.reason}" if label.reason else ""
    also = f"; during the rebalance also: {', '.join(label.others)}" if label.others else ""
    text = f"The broker reports: {label.cause}{whose}{reason}{also}."
    return text.encode("utf-8", "replace").decode()  # JSON can hold half a surrogate pair, which is not valid text


def _inferred(row: Rebalance) -> str:
    return f"From the records alone it would be {row.cause} (confidence {row.confidence:.2f})."
