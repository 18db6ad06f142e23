"""Exceptions that handlers raise, and the failures made from them."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import replace

from muster.client.core.checks import check_number
from muster.client.core.concurrent.rules import MAX_MS, HandlerFailure
from muster.errors import ConfigError, MusterError, RecordDeserializationError
from muster.model import ConsumerRecord


class PoisonRecordError(Exception):
    """Raised by a handler: a retry does not help. The record goes to the dead letter topic immediately."""


class RetryLaterError(Exception):
    """Raised by a handler to get the record again after `delay_ms`. It counts as an attempt."""

    def __init__(self, delay_ms: int, why: str = "") -> None:
        super().__init__(why or f"again in {delay_ms} ms")
        self.delay_ms = check_number("delay_ms", delay_ms, -MAX_MS, MAX_MS)


class HandlerFailedError(MusterError):
    """`run` has ended because a record could not be handled, and no dead letter topic is set or writing to it failed.
    `record` is not committed: the next run begins with it. The cause is what the handler raised."""

    def __init__(self, message: str, record: ConsumerRecord) -> None:
        super().__init__(message)
        self.record = record


def check_returned(result: object) -> None:
    """Refuse a result that is not finished: the record of a coroutine that is never awaited would count as handled.

    Raises:
        ConfigError: the handler is of the wrong kind.
    """
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # otherwise Python would warn that it was never awaited
        raise ConfigError(
            f"the handler returned a {type(result).__name__}, so nothing has run yet: use an async function as a "
            "handler of AsyncConcurrentConsumer, and await everything it starts"
        )


class WorkerDiedError(MusterError):
    """The process that handled a record died."""


class WorkerStartError(MusterError):
    """No worker process could be started."""


class UnreadableRecordError(Exception):
    """A deserializer has failed, and the handler was not called: distinguishes this from the same error raised by a
    handler."""

    def __init__(self, error: RecordDeserializationError) -> None:
        super().__init__(str(error))
        self.error = error

    def failure(self) -> HandlerFailure:
        """The reason as text. A retry does not help unless the deserializer asks for one: a schema registry may be
        down."""
        cause = self.error.__cause__
        if isinstance(cause, RetryLaterError):
            return failure_of(cause)
        text = f"the {self.error.origin} cannot be deserialized: {type(cause).__name__}: {cause}"
        return replace(failure_of(self.error), message=text, permanent=True)


Outcome = BaseException | HandlerFailure | None
"""How a handler ended; None if it returned."""


def failure_of(outcome: BaseException | HandlerFailure) -> HandlerFailure:
    """Why a record was not handled, as text."""
    if isinstance(outcome, HandlerFailure):
        return outcome
    if isinstance(outcome, UnreadableRecordError):
        return outcome.failure()
    kind = type(outcome)
    return HandlerFailure(
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        _text_of(outcome),
        "".join(traceback.format_exception(outcome)),
        isinstance(outcome, PoisonRecordError),
        max(0, outcome.delay_ms) if isinstance(outcome, RetryLaterError) else None,
    )


def _text_of(error: BaseException) -> str:
    """An exception's text, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as another:
        return f"<its text is not available: {type(another).__name__}>"
