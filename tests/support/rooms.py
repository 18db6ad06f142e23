"""What a producer's buffer holds, by its own numbers."""

from __future__ import annotations

from muster import AsyncProducer, Producer


def taken(producer: Producer | AsyncProducer) -> float:
    """The bytes of a producer's buffer that are taken."""
    found = producer.metrics()
    return found.value("buffer-total-bytes") - found.value("buffer-available-bytes")
