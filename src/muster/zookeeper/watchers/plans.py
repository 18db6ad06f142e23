"""What the plans of scheme 1 share: they retry after lost connections, and end with the session they began in."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, TypeVar

from muster.zookeeper.base.operations import (
    Ask,
    ConnectionLossError,
    Create,
    GetChildren,
    GetData,
    NodeExistsError,
    NoNodeError,
    Operation,
    Plan,
    Reconnected,
    SessionExpiredError,
    ask,
    create_ephemeral,
    delete_ephemeral,
)

A = TypeVar("A")

GONE: Final = object()
"""In place of data: the znode does not exist."""


class SessionPlans:
    """The base class of objects with such plans."""

    def __init__(self) -> None:
        self._sessions = 0
        """How many sessions have expired: a plan that began in an earlier one ends."""
        self._plan_session = 0

    def _zk(self, operation: Operation[A]) -> Plan[A]:
        """Ask ZooKeeper, and retry when the connection is lost.

        So an operation may be carried out twice. All operations here tolerate that: reads, the creation of persistent
        znodes, and offsets, which are written whole.
        """
        while True:
            try:
                return (yield from self._ask(operation))
            except ConnectionLossError:
                yield from self._ask(Reconnected())

    def _ask(self, what: Ask[A]) -> Plan[A]:
        """Ask for something. Raises SessionExpiredError if the session in which this plan began has ended, since that
        voids what the plan has read."""
        self._check_session()
        answer = yield from ask(what)
        self._check_session()
        return answer

    def _check_session(self) -> None:
        if self._plan_session != self._sessions:
            raise SessionExpiredError

    def _children(self, path: str, watch: bool = False) -> Plan[list[str] | None]:
        """The children; None if the znode does not exist."""
        try:
            return (yield from self._zk(GetChildren(path, watch)))
        except NoNodeError:
            return None

    def _data(self, path: str) -> Plan[Any]:
        """A znode's data; `GONE` if it does not exist."""
        try:
            data, _ = yield from self._zk(GetData(path))
        except NoNodeError:
            return GONE
        return data

    def _delete_own(self, path: str) -> Plan[None]:
        """Delete an ephemeral znode of this session, if it still exists."""
        self._check_session()
        yield from delete_ephemeral(path)
        self._check_session()

    def _create_own(self, path: str, data: bytes) -> Plan[bool]:
        """Create an ephemeral znode and its parents; False if another session has created it."""
        while True:
            self._check_session()
            try:
                yield from create_ephemeral(path, data)
            except NodeExistsError:
                return False
            except NoNodeError:
                yield from self._make(path.rpartition("/")[0])
            else:
                self._check_session()
                return True

    def _make(self, path: str) -> Plan[None]:
        """Create a persistent znode without data, and its parents, if they are missing."""
        with suppress(NodeExistsError):
            try:
                yield from self._zk(Create(path))
            except NoNodeError:
                yield from self._make(path.rpartition("/")[0])
                yield from self._zk(Create(path))
