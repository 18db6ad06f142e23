"""What a handler can say by raising, and what is made of an exception."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import replace

from muster.client.core.checks import check_number
from muster.client.core.concurrent.rules import MOST_MS, Failure
from muster.errors import ConfigError, MusterError, RecordDeserializationError
from muster.model import ConsumerRecord


class PoisonRecordError(Exception):
    """Raised by a handler: another attempt does not help. The record goes to the dead letters at once."""


class RetryLaterError(Exception):
    """Raised by a handler to get the record again after `delay_ms`. It counts as an attempt."""

    def __init__(self, delay_ms: int, why: str = "") -> None:
        super().__init__(why or f"again in {delay_ms} ms")
        self.delay_ms = check_number("delay_ms", delay_ms, -MOST_MS, MOST_MS)


class HandlerFailedError(MusterError):
    """`run` has ended because a record could not be handled, and there is no topic for dead letters, or it could not be
    written there. `record` is not committed: the next run begins with it. The cause is what the handler raised."""

    def __init__(self, message: str, record: ConsumerRecord) -> None:
        super().__init__(message)
        self.record = record


def check_returned(result: object) -> None:
    """Refuse what a handler only began: a coroutine that nothing awaits would count as a record that is handled.

    Raises:
        ConfigError: the handler is of the wrong kind.
    """
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python complains that it was never awaited
        raise ConfigError(
            f"the handler has returned a {type(result).__name__}, and handled nothing yet: an async function is a "
            "handler for AsyncConcurrentConsumer, and what a handler begins it has to await"
        )


class WorkerDiedError(MusterError):
    """The process that handled a record ended meanwhile."""


class WorkerStartError(MusterError):
    """No worker process could be started."""


class UnreadableRecordError(Exception):
    """A deserializer has failed, and the handler was not called. It tells that from the same error of a handler."""

    def __init__(self, error: RecordDeserializationError) -> None:
        super().__init__(str(error))
        self.error = error

    def failure(self) -> Failure:
        """Why, as words. Another attempt does not help, unless the deserializer says that it does: a registry of
        schemas may not answer."""
        cause = self.error.__cause__
        if isinstance(cause, RetryLaterError):
            return failure_of(cause)
        text = f"the {self.error.origin} cannot be deserialized: {type(cause).__name__}: {cause}"
        return replace(failure_of(self.error), message=text, permanent=True)


Outcome = BaseException | Failure | None
"""How a handler ended; None if it returned."""


def failure_of(outcome: BaseException | Failure) -> Failure:
    """Why a record was not handled, as words."""
    if isinstance(outcome, Failure):
        return outcome
    if isinstance(outcome, UnreadableRecordError):
        return outcome.failure()
    kind = type(outcome)
    return Failure(
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        _words(outcome),
        "".join(traceback.format_exception(outcome)),
        isinstance(outcome, PoisonRecordError),
        max(0, outcome.delay_ms) if isinstance(outcome, RetryLaterError) else None,
    )


def _words(error: BaseException) -> str:
    """What an exception says, also one of a program that cannot say it."""
    try:
        return str(error)
    except Exception as another:
        return f"<it cannot be shown: {type(another).__name__}>"
