"""The znodes of one simulated ZooKeeper server, and how a write changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from muster.zookeeper.base import operations as zk

ROOT = "/"
DATA, CHILD = "data", "children"
"""The two kinds of watches: those of GetData and Exists, and those of GetChildren."""


class Created(NamedTuple):
    """A znode is created."""

    path: str
    data: bytes | None
    owner: int


class Removed(NamedTuple):
    """A znode is removed."""

    path: str


class Written(NamedTuple):
    """A znode's data changes."""

    path: str
    data: bytes | None


Changed = Created | Removed | Written


class Transaction(NamedTuple):
    """A decision of the leader, in the order of `zxid`; every server applies it some time later."""

    zxid: int
    changes: Sequence[Changed] = ()
    ended: int = 0
    """The id of the session that it ends; 0 for none."""


class Trigger(NamedTuple):
    """The watches that a change fires."""

    kinds: tuple[str, ...]
    path: str
    change: zk.ZnodeChange


def parent_of(path: str) -> str:
    """The parent's path."""
    return path.rpartition("/")[0] or ROOT


class Znode:
    """One znode of a tree."""

    __slots__ = ("children", "creates", "czxid", "data", "mzxid", "owner", "version")

    def __init__(self, data: bytes | None, owner: int, zxid: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = zxid
        self.version = 0
        self.creates = 0
        """How many children it ever had: also the number of the next sequential one, whatever its name is."""
        self.children: set[str] = set()

    def stat(self) -> zk.Stat:
        """As ZooKeeper reports it: every created child, and every deleted one, counts in cversion."""
        changes = 2 * self.creates - len(self.children)
        return zk.Stat(self.version, changes, self.owner, self.czxid, self.mzxid, len(self.children))


class Tree:
    """All znodes as of one transaction."""

    def __init__(self) -> None:
        self._nodes = {ROOT: Znode(b"", 0, 0)}

    # --- reading -----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Znode | None:
        """The znode, None if there is none."""
        return self._nodes.get(path)

    def get(self, path: str) -> Znode:
        """The znode; raises NoNodeError."""
        try:
            return self._nodes[path]
        except KeyError:
            raise zk.NoNodeError(path) from None

    def paths(self) -> list[str]:
        """All paths, sorted."""
        return sorted(self._nodes)

    def owned_by(self, session_id: int) -> list[str]:
        """The ephemeral znodes of a session, sorted."""
        return sorted(path for path, node in self._nodes.items() if node.owner == session_id)

    # --- writing -----------------------------------------------------------------------------------------------------

    def transact(self, writes: Iterable[zk.Write[Any]], session_id: int, zxid: int) -> tuple[list[Changed], list[Any]]:
        """Carry out all of the writes, or none and raise the error of the first refused; returns the changes, and the
        answers.

        The order of the checks is ZooKeeper's: no znode, then the version, then the children.
        """
        changes: list[Changed] = []
        answers: list[Any] = []
        undo: list[Callable[[], None]] = []
        try:
            for write in writes:
                change, answer = self._decide(write, session_id)
                if change is not None:
                    undo.append(self.apply(change, zxid))
                    changes.append(change)
                answers.append(self.get(write.path).stat() if isinstance(write, zk.SetData) else answer)
        except zk.ZooKeeperError:
            while undo:
                undo.pop()()
            raise
        return changes, answers

    def _decide(self, write: zk.Write[Any], session_id: int) -> tuple[Changed | None, Any]:
        if isinstance(write, zk.Create):
            return self._create(write, session_id)
        if not isinstance(write, zk.SetData | zk.Delete | zk.Check):
            raise TypeError(f"not a write: {write!r}")
        node = self.get(write.path)
        if write.version not in (zk.ANY_VERSION, node.version):
            raise zk.BadVersionError(write.path)
        if isinstance(write, zk.SetData):
            return Written(write.path, write.data), None
        if isinstance(write, zk.Check):
            return None, None
        if node.children:
            raise zk.NotEmptyError(write.path)
        if write.path == ROOT:
            raise zk.ZooKeeperError(ROOT, "the root cannot be deleted")
        return Removed(write.path), None

    def _create(self, write: zk.Create, session_id: int) -> tuple[Changed, str]:
        path = write.path
        parent = self._nodes.get(parent_of(path))
        if parent is None:
            raise zk.NoNodeError(write.path)
        if write.sequential:
            path += f"{parent.creates:010d}"
        if path in self._nodes:
            raise zk.NodeExistsError(write.path)
        if parent.owner:
            raise zk.NoChildrenForEphemeralsError(write.path)
        return Created(path, write.data, session_id if write.ephemeral else 0), path

    def apply(self, change: Changed, zxid: int) -> Callable[[], None]:
        """Carry out a change; the returned function undoes it."""
        path, parent = change.path, self._nodes[parent_of(change.path)]
        name = path.rpartition("/")[2]
        match change:
            case Created():
                self._nodes[path] = Znode(change.data, change.owner, zxid)
                parent.children.add(name)
                parent.creates += 1

                def undo() -> None:
                    del self._nodes[path]
                    parent.children.remove(name)
                    parent.creates -= 1
            case Removed():
                node = self._nodes.pop(path)
                parent.children.remove(name)

                def undo() -> None:
                    self._nodes[path] = node
                    parent.children.add(name)
            case Written():
                node = self._nodes[path]
                before = node.data, node.version, node.mzxid
                node.data, node.version, node.mzxid = change.data, node.version + 1, zxid

                def undo() -> None:
                    node.data, node.version, node.mzxid = before

        return undo


def triggers(change: Changed) -> tuple[Trigger, ...]:
    """The watches that a change fires, in ZooKeeper's order. A session that has both kinds is notified once."""
    path = change.path
    match change:
        case Created():
            return Trigger((DATA,), path, zk.ZnodeChange.CREATED), Trigger(
                (CHILD,), parent_of(path), zk.ZnodeChange.CHILDREN
            )
        case Removed():
            return Trigger((DATA, CHILD), path, zk.ZnodeChange.DELETED), Trigger(
                (CHILD,), parent_of(path), zk.ZnodeChange.CHILDREN
            )
        case Written():
            return (Trigger((DATA,), path, zk.ZnodeChange.DATA),)
