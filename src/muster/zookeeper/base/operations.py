"""Operations on ZooKeeper, as values.

Theory: a rule that talks to ZooKeeper is a plan, a generator without any I/O. It yields an ask, is sent the answer, and
returns its result; an error is raised where it asked. A plan is carried out on a session with a real ZooKeeper
(`session.py`), or with one in memory on a virtual clock (`testing/zookeeper.py`): the rules are the same.

    def own_epoch(path: str) -> Plan[int]:
        data, stat = yield from ask(GetData(path))
        return stat.version

Between two asks anything may happen: other sessions write, watches fire, the plan's own session ends. So a rule trusts
nothing that it read before, except through the version that a later write checks. A plan that is no longer needed is
closed with `close()`; its last ask may or may not have been carried out.

Watches are ZooKeeper's: they fire once, at the next change. They are reported to the owner of the session as `Watched`,
not to the plan. A client that lags sees the events of its own session in the order of the changes, and never reads a
newer state before the event of a change that it watched.

Rules may have their own kinds of asks (to stop fetching, to wait); the code that carries out the plan handles those.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from enum import Enum
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from muster.errors import IllegalArgumentError, MusterError

A = TypeVar("A")
T = TypeVar("T")

ANY_VERSION = -1

MAX_DATA_BYTES = 1_000_000
"""The most data that a znode, or all parts of a multi together, may have here. ZooKeeper closes the connection of a
client that sends a packet above `jute.maxbuffer`, by default 1,048,575 bytes: that would look like a broken network,
and be retried forever."""

MAX_PACKET_BYTES = 1_048_575
"""ZooKeeper's own limit for a request, including paths and everything else in it."""

_FRAME_BYTES = 64
"""An upper bound of the size of a request, or of one part of a multi, without its path and data."""

_PATH = re.compile("/|(?:/(?!\\.{1,2}(?:/|\\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")


class ZooKeeperError(MusterError):
    """ZooKeeper refused an operation, or could not be reached.

    `path` is the operation's path; for a multi, that of the refused part.
    """

    def __init__(self, path: str = "", message: str = "") -> None:
        kind = type(self).__name__.removesuffix("Error")
        super().__init__(message or (f"{kind}: {path}" if path else kind))
        self.path = path


class NoNodeError(ZooKeeperError):
    """The znode or its parent does not exist."""


class NodeExistsError(ZooKeeperError):
    """The znode already exists."""


class BadVersionError(ZooKeeperError):
    """The znode's version is not the one that the operation expects: another session wrote it."""


class NotEmptyError(ZooKeeperError):
    """A znode with children cannot be deleted."""


class NoChildrenForEphemeralsError(ZooKeeperError):
    """An ephemeral znode cannot have children."""


class TooLargeError(ZooKeeperError):
    """More than `MAX_DATA_BYTES`; nothing was sent."""


class NotPermittedError(ZooKeeperError):
    """The ACL of the znode forbids it, or the session is not authenticated."""


class SessionExpiredError(ZooKeeperError):
    """The session has ended, and its ephemeral znodes are gone or will be. Its owner begins a new one."""


class ConnectionLossError(ZooKeeperError):
    """The connection broke, or there was none: the operation may have been carried out, or not."""


class Stat(NamedTuple):
    """A znode's metadata."""

    version: int
    """Counts the writes of its data since it was created."""
    cversion: int
    """Counts the changes of its children."""
    ephemeral_owner: int
    """The id of the session that owns an ephemeral znode; 0 for a persistent one."""
    czxid: int
    """The transaction that created it."""
    mzxid: int
    """The transaction that wrote its data last."""
    num_children: int


class Ask(Generic[A]):
    """Something that a plan yields; A is the type of its answer."""

    __slots__ = ()


Plan = Generator[Ask[Any], Any, T]


def ask(what: Ask[A]) -> Plan[A]:
    """Ask for one thing inside a plan: `stat = yield from ask(Exists(path))`."""
    answer: A = yield what
    return answer


class Operation(Ask[A]):
    """A request to ZooKeeper. `path` is absolute, below the chroot of the session."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def _values(self) -> tuple[Any, ...]:
        names = [name for base in reversed(type(self).__mro__) for name in getattr(base, "__slots__", ())]
        return tuple(getattr(self, name) for name in names)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._values()))})"


class Read(Operation[A]):
    """An operation that may set a watch."""

    __slots__ = ("watch",)

    def __init__(self, path: str, watch: bool = False) -> None:
        super().__init__(path)
        self.watch = watch


class GetData(Read[tuple[bytes | None, Stat]]):
    """A znode's data and Stat, or NoNodeError. The watch fires when it is written or deleted."""

    __slots__ = ()


class GetChildren(Read[list[str]]):
    """The names of a znode's children, sorted, or NoNodeError. The watch fires when a child is created or deleted, or
    the znode is deleted."""

    __slots__ = ()


class Exists(Read[Stat | None]):
    """A znode's Stat, None if it does not exist. The watch fires when it is created, written or deleted."""

    __slots__ = ()


class Sync(Operation[None]):
    """Wait until the server of this session has everything written so far: a later read is not stale."""

    __slots__ = ()


class Write(Operation[A]):
    """An operation that may be part of a Multi."""

    __slots__ = ()


class Create(Write[str]):
    """Create a znode. The answer is its path, which for a sequential one ends with ten digits.

    Raises NodeExistsError, NoNodeError without a parent, NoChildrenForEphemeralsError.
    """

    __slots__ = ("data", "ephemeral", "sequential")

    def __init__(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> None:
        super().__init__(path)
        self.data = data
        self.ephemeral = ephemeral
        self.sequential = sequential


class SetData(Write[Stat]):
    """Write a znode's data. Raises NoNodeError; BadVersionError if a version is passed and the znode has a different
    one."""

    __slots__ = ("data", "version")

    def __init__(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> None:
        super().__init__(path)
        self.data = data
        self.version = version


class Delete(Write[None]):
    """Delete a znode. Raises NoNodeError, NotEmptyError; BadVersionError like SetData."""

    __slots__ = ("version",)

    def __init__(self, path: str, version: int = ANY_VERSION) -> None:
        super().__init__(path)
        self.version = version


class Check(Write[None]):
    """As part of a Multi: the whole Multi is refused unless the znode has this version. Raises NoNodeError,
    BadVersionError."""

    __slots__ = ("version",)

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path)
        self.version = version


class Multi(Ask[list[Any]]):
    """Carry out all writes or none, atomically. The answer is the list of their answers, in order; raises the error of
    the first refused write."""

    __slots__ = ("writes",)

    def __init__(self, *writes: Write[Any]) -> None:
        self.writes = writes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multi) and self.writes == other.writes

    def __hash__(self) -> int:
        return hash(self.writes)

    def __repr__(self) -> str:
        return f"Multi({', '.join(map(repr, self.writes))})"


class Several(Ask[list[Any]]):
    """Asks that are sent one after another, without waiting for answers.

    The answer is a list with each ask's answer, or its error as a value. ZooKeeper processes them in order but, unlike
    the parts of a Multi, individually: between two of them other sessions may write. `side_by_side` builds it from
    plans.
    """

    __slots__ = ("asks",)

    def __init__(self, *asks: Ask[Any]) -> None:
        self.asks = asks

    def __repr__(self) -> str:
        return f"Several({', '.join(map(repr, self.asks))})"


class SessionId(Ask[int]):
    """The id of the plan's own session, as in `Stat.ephemeral_owner`. No request is sent to ZooKeeper.

    Raises ConnectionLossError before the session has one.
    """

    __slots__ = ()


class Reconnected(Ask[None]):
    """Wait until there is a connection (again). Raises SessionExpiredError if the session turns out to have ended.

    A request does not wait for a connection: without one it raises ConnectionLossError immediately.
    """

    __slots__ = ()


AT_A_TIME = 100
"""How many plans run concurrently. Their requests are answered within some tens of milliseconds; then the next plans
run, and the rest of the process can run."""


def side_by_side(plans: Iterable[Plan[T]]) -> Plan[list[T]]:
    """Carry out plans that do not wait for one another; returns their results, in order.

    The first plan's asks are sent before the second's. If one raises, the others are closed, and the error is raised.
    """
    left = enumerate(plans)
    going: dict[int, Plan[T]] = {}
    answers: dict[int, Any] = {}
    results: dict[int, T] = {}
    try:
        while True:
            asks: dict[int, Ask[Any]] = {}
            for place, plan in chain(list(going.items()), left):
                going[place] = plan
                try:
                    asks[place] = next_ask(plan, answers.get(place))
                except StopIteration as done:
                    results[place] = done.value
                    del going[place]
                if len(asks) == AT_A_TIME:
                    break
            if not asks:
                return [results[place] for place in sorted(results)]
            answers = dict(zip(asks, (yield from ask(Several(*asks.values()))), strict=True))
    finally:
        for plan in going.values():
            plan.close()


def next_ask(plan: Plan[Any], answer: Any) -> Ask[Any]:
    """Send an answer or an error to a plan, and return its next request; None starts it. Raises StopIteration at its
    end."""
    return plan.throw(answer) if isinstance(answer, Exception) else plan.send(answer)


def check_request(what: Operation[Any] | Multi, chroot: str = "") -> None:
    """Check an operation before it is sent.

    Raises:
        IllegalArgumentError: a path is not valid in ZooKeeper.
        TooLargeError: the request is too large.
    """
    writes = what.writes if isinstance(what, Multi) else (what,)
    data_bytes = packet_bytes = 0
    for write in writes:
        data = getattr(write, "data", None) or b""
        data_bytes += len(data)
        packet_bytes += len(data) + len((chroot + _checked_path(write)).encode()) + _FRAME_BYTES
    if data_bytes > MAX_DATA_BYTES or packet_bytes > MAX_PACKET_BYTES:
        first = writes[0].path
        raise TooLargeError(
            first, f"{data_bytes} bytes for {first} are too many for ZooKeeper (limit {MAX_DATA_BYTES})"
        )


def _checked_path(operation: Operation[Any]) -> str:
    # The name of a sequential znode may be only its number: "/queue/".
    path = operation.path + "0" if isinstance(operation, Create) and operation.sequential else operation.path
    if not _PATH.fullmatch(path):
        raise IllegalArgumentError(f"not a valid path in ZooKeeper: {operation.path!r}")
    return path


def ensure_path(path: str) -> Plan[None]:
    """Create a persistent znode without data, and its parents, if they are missing. Retried after a connection loss."""
    parts = path.strip("/").split("/")
    made = 0
    while made < len(parts):
        try:
            yield from ask(Create("/" + "/".join(parts[: made + 1])))
        except ConnectionLossError:
            yield from ask(Reconnected())
        except NodeExistsError:
            made += 1
        else:
            made += 1


def create_ephemeral(path: str, data: bytes | None) -> Plan[None]:
    """Create an ephemeral znode of this session. Retried after a connection loss.

    After a connection loss it is unknown whether the znode was created: if it exists and belongs to this session, it
    was. Raises NodeExistsError if it belongs to another session, and whatever Create raises.
    """
    while True:
        try:
            yield from ask(Create(path, data, ephemeral=True))
            return
        except ConnectionLossError:
            yield from ask(Reconnected())
        except NodeExistsError:
            # Its owner's session may be about to end: then another try makes sense.
            owner = yield from _owner_of(path)
            if owner is None:
                continue
            if owner != (yield from ask(SessionId())):
                raise
            return


def delete_ephemeral(path: str) -> Plan[None]:
    """Delete an ephemeral znode of this session, if it still exists. Retried after a connection loss.

    After a connection loss it is unknown whether the znode was deleted. If it was, another session may have created its
    own znode since then, which must stay. So the znode's owner is read before the next try; after a sync, because the
    server that this session has moved to may not know of the deletion yet, and would return the former owner.
    """
    while True:
        try:
            yield from ask(Delete(path))
            return
        except NoNodeError:
            return
        except ConnectionLossError:
            yield from ask(Reconnected())
        yield from retried(Sync(path))
        if (yield from _owner_of(path)) != (yield from ask(SessionId())):
            return


def retried(what: Ask[A]) -> Plan[A]:
    """Read something; retried after a connection loss."""
    while True:
        try:
            return (yield from ask(what))
        except ConnectionLossError:
            yield from ask(Reconnected())


def _owner_of(path: str) -> Plan[int | None]:
    stat = yield from retried(Exists(path))
    return None if stat is None else stat.ephemeral_owner


class ZnodeChange(Enum):
    """What a watch reports."""

    CREATED = "created"
    DELETED = "deleted"
    DATA = "data"
    CHILDREN = "children"
    LOST = "lost"
    """The watch was lost with a connection, without having fired: read again, and watch again."""


class Watched(NamedTuple):
    """A watch has fired, or is lost; this path no longer has a watch of this kind."""

    change: ZnodeChange
    path: str


class SessionEvent(Enum):
    """What happens to a session; its owner is notified of events in order."""

    CONNECTED = "connected"
    """There is a connection, or there is one again within the session's timeout: its ephemeral znodes exist."""
    SUSPENDED = "suspended"
    """The connection broke. Whether the session is still alive is known once the connection is back."""
    DOUBTED = "doubted"
    """Nothing was received from ZooKeeper for two thirds of the session's timeout: act as if it had expired, because
    other sessions will soon consider it expired. CONNECTED may still follow."""
    EXPIRED = "expired"
    """The session has ended, and so have its ephemeral znodes. A new one follows with CONNECTED."""
