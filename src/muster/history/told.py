"""Rebalances that the broker itself has explained: its word in place of what the records let us infer.

muster's broker writes to `__group_events` when each rebalance began and ended, and why. A label belongs to the row of
the same generation that was written at about the time at which the rebalance ended: numbers come again when a group was
deleted. What one event cannot tell stays as it was inferred: a rolling restart, a flapping member; a member that was
too slow, whose client leaves then and gives no reason (librdkafka, kafka-python, aiokafka).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from muster.history.labels import Label
from muster.history.model import Cause, Rebalance

EVENTS = "events"
_NEAR_MS = 60_000
"""The broker's two clocks are one; but what was decided may wait for its log."""

PATTERNS = frozenset({Cause.ROLLING_RESTART, Cause.FLAPPING})


def explained(rebalances: Iterable[Rebalance], labels: Mapping[str, Sequence[Label]]) -> list[Rebalance]:
    """The same rows; those that the broker explained with its cause, and how long they took exactly."""
    return [_explained(row, labels.get(row.group, ())) for row in rebalances]


def _explained(row: Rebalance, labels: Sequence[Label]) -> Rebalance:
    label = _label_of(row, labels)
    if label is None or label.finished_ms is None:
        return row
    known = row.cause in PATTERNS or (not label.is_sure and row.cause is Cause.POLL_INTERVAL_EXCEEDED)
    return replace(
        row,
        duration_ms=max(0, label.finished_ms - label.started_ms),
        duration_is="exact",
        cause=row.cause if known else label.cause,
        confidence=row.confidence if known else 1.0,
        evidence=(_said(label), *row.evidence) if known else (_said(label), _inferred(row)),
        alternatives=row.alternatives if known else (),
        phase=label.phase,
        source=EVENTS,
    )


def _label_of(row: Rebalance, labels: Sequence[Label]) -> Label | None:
    near = [
        (abs(label.finished_ms - row.at_ms), label)
        for label in labels
        if label.rebalanced and label.generation == row.generation and label.finished_ms is not None
    ]
    distance, found = min(near, key=lambda each: each[0], default=(_NEAR_MS, None))
    return found if distance < _NEAR_MS else None


def _said(label: Label) -> str:
    whose = f" by {label.client_id or label.member}" if label.client_id or label.member else ""
    reason = f", with the reason: {label.reason}" if label.reason else ""
    also = f"; meanwhile also {', '.join(label.others)}" if label.others else ""
    return f"The broker says: {label.cause}{whose}{reason}{also}."


def _inferred(row: Rebalance) -> str:
    return f"From the records alone it would be {row.cause} (confidence {row.confidence:.2f})."
