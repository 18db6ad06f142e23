"""The contents of a producer's buffer, by its own numbers."""

from __future__ import annotations

from muster import AsyncProducer, Producer


def taken(producer: Producer | AsyncProducer) -> float:
    """The used bytes of a producer's buffer."""
    found = producer.metrics()
    return found.value("buffer-total-bytes") - found.value("buffer-available-bytes")
