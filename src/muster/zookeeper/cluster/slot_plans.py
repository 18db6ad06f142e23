"""Plans that read the znodes of a slot, and write them under the slot's epoch. They retry after a connection loss."""

from __future__ import annotations

from typing import Any

from muster.coordinator.shards.store import FencedError
from muster.zookeeper.base.operations import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    NodeExistsError,
    NoNodeError,
    Plan,
    Reconnected,
    SetData,
    Stat,
    Sync,
    TooLargeError,
    Write,
    ask,
    ensure_path,
    retried,
)
from muster.zookeeper.base.znodes import slot_epoch_path
from muster.zookeeper.cluster.group_znodes import groups_path

LOST_ANSWERS = 4
"""A large multi is given up once its answer was lost this many times in a row and it was not carried out."""

LARGE_BYTES = 32 * 1024
"""A size that every ZooKeeper accepts: smaller requests are retried until they are answered."""


def names_of_groups(slot: int, epoch: int) -> Plan[list[str]]:
    """The znodes of a slot that this session has under an epoch. Raises FencedError if it no longer does."""
    yield from retried(Sync(slot_epoch_path(slot)))
    yield from _check_epoch(slot, epoch)
    while True:
        try:
            return (yield from retried(GetChildren(groups_path(slot))))
        except NoNodeError:  # another program has deleted the groups and their parent
            yield from ensure_path(groups_path(slot))


def data_of(path: str) -> Plan[tuple[bytes | None, Stat] | None]:
    """The contents of a znode; None if it no longer exists."""
    try:
        return (yield from retried(GetData(path)))
    except NoNodeError:
        return None


def _check_epoch(slot: int, epoch: int) -> Plan[None]:
    found = yield from retried(Exists(slot_epoch_path(slot)))
    version = -1 if found is None else found.version
    if version != epoch:
        raise FencedError(f"slot {slot} has epoch {version}, no longer {epoch}")


def write_all(slot: int, epoch: int, writes: tuple[Write[Any], ...]) -> Plan[None]:
    """Carry out all writes or none, if this is still the slot's epoch. Retried after a connection loss.

    Raises:
        FencedError: the slot has another epoch. No write was carried out, or all were before the epoch changed.
        TooLargeError: ZooKeeper closes the connection at this size.
    """
    check = Check(slot_epoch_path(slot), epoch)
    lost = 0
    while True:
        try:
            yield from ask(Multi(check, *writes))
        except ConnectionLossError:
            lost += 1
            yield from ask(Reconnected())
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            if error.path == check.path:
                raise FencedError(f"slot {slot} no longer has epoch {epoch}") from error
            if not lost or not (yield from _was_carried_out(slot, epoch, writes[0])):
                raise
            return
        else:
            return
        if (yield from _was_carried_out(slot, epoch, writes[0])):
            return
        size = sum(map(size_of, writes))
        if lost >= LOST_ANSWERS and size > LARGE_BYTES:
            closed = f"ZooKeeper closed the connection {lost} times at {size} bytes for {writes[0].path}"
            raise TooLargeError(writes[0].path, f"{closed}: is its jute.maxbuffer smaller?")


def size_of(write: Write[Any]) -> int:
    """The size of a write in a request."""
    return len(getattr(write, "data", None) or b"") + len(write.path) + 64


def _was_carried_out(slot: int, epoch: int, write: Write[Any]) -> Plan[bool]:
    yield from retried(Sync(write.path))
    found = yield from retried(Exists(write.path))
    yield from _check_epoch(slot, epoch)  # read after `found`: only this session has written under this epoch
    return is_done(write, found)


def is_done(write: Write[Any], found: Stat | None) -> bool:
    if isinstance(write, SetData):
        return found is not None and found.version == write.version + 1
    return (found is None) is isinstance(write, Delete)
