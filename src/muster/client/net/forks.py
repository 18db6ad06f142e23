"""Clients stay in the process that created them: threads and sockets cannot be forked, pickled or copied."""

from __future__ import annotations

import os
from typing import NoReturn, SupportsIndex

from muster.errors import IllegalStateError

count = 0
"""The number of forks that led to this process. An object that stores it can detect later that it is in a child."""


def _in_child() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_in_child)


def orphaned(what: str) -> IllegalStateError:
    """The error for a child process that uses a client of its parent."""
    return IllegalStateError(f"this {what} belongs to the parent process: create a new one in the child process")


class NotPicklable:
    """A client that can be neither pickled nor copied: a copy would end its original's thread when it is dropped."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} objects can be neither pickled nor copied: create a new one where it is used")
