"""Clients stay in the process that made them: threads and sockets cannot be forked, pickled or copied."""

from __future__ import annotations

import os
from typing import NoReturn, SupportsIndex

from muster.errors import IllegalStateError

count = 0
"""How often this process's line was forked. An object that stores it when made can tell later that it is in a child."""


def _in_child() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_in_child)


def orphaned(what: str) -> IllegalStateError:
    """The error for a child process that uses its parent's `what`."""
    return IllegalStateError(f"this {what} belongs to the process that forked: make a new one in the child process")


class StaysHere:
    """A client that can be neither pickled nor copied: a copy would end its original's thread when it is dropped."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} objects can be neither pickled nor copied: make a new one where it is to be used")
