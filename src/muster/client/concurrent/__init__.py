"""Handles many records of a consumer group at a time, with asyncio tasks, threads or processes.

from muster.client.concurrent import AsyncConcurrentConsumer, ConcurrentConsumer, Retry

`docs/reference/concurrent.md` says which order is kept, what is committed when, and what happens to records that fail.
"""

from __future__ import annotations

from muster.client.concurrent.async_face import AsyncConcurrentConsumer
from muster.client.concurrent.face import ConcurrentConsumer
from muster.client.concurrent.outcomes import HandlerFailedError, PoisonRecordError, RetryLaterError
from muster.client.core.concurrent.rules import Retry

__all__ = [
    "AsyncConcurrentConsumer",
    "ConcurrentConsumer",
    "HandlerFailedError",
    "PoisonRecordError",
    "Retry",
    "RetryLaterError",
]
