"""The jobs that a `ConcurrentCore` starts."""

from __future__ import annotations

from muster.client.core.concurrent.core import ConcurrentCore
from muster.client.core.concurrent.work import Job


def start(of: ConcurrentCore, now: int = 0) -> list[Job]:
    """Start everything that may start now."""
    found = []
    while (job := of.start(now)) is not None:
        found.append(job)
    return found


def offsets(jobs: list[Job]) -> list[int]:
    """The offsets of the jobs' records."""
    return [job.record.offset for job in jobs]
