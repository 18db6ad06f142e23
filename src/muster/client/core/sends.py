"""What the client's cores ask of the driver, which moves their bytes.

Theory: a core is a plain object. `poll(now)` returns `Send` values; the driver delivers each to its node, in order for
each node, and calls `on_reply` exactly once, with the response or a `Failure`. The core never waits: it decides
what happens next at its next `poll`. `next_deadline()` says by when that must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from muster.errors import (
    AuthenticationError,
    IllegalArgumentError,
    KafkaConnectionError,
    MusterError,
    UnsupportedVersionError,
)
from muster.protocol.primitives import Request, Response

R = TypeVar("R", bound=Response)

LEAST_LOADED = -1
"""Any broker: the driver picks the one with the fewest requests in flight, or a bootstrap address if none is known."""


class Channel(Enum):
    """Which connection to a node carries a request.

    The broker may park a fetch for `fetch.max.wait.ms` and a join for minutes, and answers come in order. So requests
    of the group have a connection of their own, as in Kafka's client.
    """

    DATA = "data"
    COORDINATOR = "coordinator"


class FailureKind(Enum):
    """Why a request has no response."""

    UNREACHABLE = "unreachable"
    """No connection could be made: the request was certainly not processed."""
    DISCONNECTED = "disconnected"
    """The connection broke while the request was in flight: the broker may or may not have processed it."""
    TIMEOUT = "timeout"
    """No response in time; the connection was closed because of it."""
    UNSUPPORTED_VERSION = "unsupported version"
    """The broker speaks no version of the request that can carry it. Trying again does not help."""
    UNENCODABLE = "unencodable"
    """The protocol cannot carry a value in the request: nothing was sent. Trying again does not help."""
    AUTHENTICATION = "authentication"
    """The client or the broker rejected the other. Trying again does not help."""
    GARBLED = "garbled"
    """The response could not be decoded; the connection was closed because of it."""


_FINAL = frozenset({FailureKind.UNSUPPORTED_VERSION, FailureKind.UNENCODABLE, FailureKind.AUTHENTICATION})


@dataclass(slots=True)
class Failure:
    """A request without a response. `message` is a readable sentence."""

    kind: FailureKind
    message: str

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind not in _FINAL

    def error(self) -> MusterError:
        """The failure as an exception for the user."""
        match self.kind:
            case FailureKind.UNSUPPORTED_VERSION:
                return UnsupportedVersionError(self.message)
            case FailureKind.UNENCODABLE:
                return IllegalArgumentError(self.message)
            case FailureKind.AUTHENTICATION:
                return AuthenticationError(self.message)
        return KafkaConnectionError(self.message)


@dataclass(slots=True)
class Send(Generic[R]):
    """One request to be sent: to which node, how to build it, what to call with the answer.

    `build` gets the version that the driver negotiated with the broker, because the form of some requests depends on
    it. `timeout_ms` of None means the client's `request.timeout.ms`; a join needs longer, because the broker holds it
    back.
    """

    node_id: int
    request_type: type[Request[R]]
    build: Callable[[int], Request[R]]
    on_reply: Callable[[R | Failure, int], None]
    channel: Channel = Channel.DATA
    timeout_ms: int | None = None
    newest_version: int | None = None
    expects_reply: bool = True
    """False for the one request that brokers do not answer, Produce with acks=0: it gets an empty response once it is
    written."""
    sent_at: int = 0
    """When it was written, for the driver's metrics."""


def send(
    node_id: int,
    request: Request[R],
    on_reply: Callable[[R | Failure, int], None],
    *,
    channel: Channel = Channel.DATA,
    timeout_ms: int | None = None,
    newest_version: int | None = None,
) -> Send[R]:
    """A `Send` for a request that is the same in every version."""
    return Send(node_id, type(request), lambda _version: request, on_reply, channel, timeout_ms, newest_version)


AnySend = Send[Any]
