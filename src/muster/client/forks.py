"""Whether this process is a fork's child of the one that made an object: threads and sockets do not come along."""

from __future__ import annotations

import os

from muster.errors import IllegalStateError

count = 0
"""Forks between the first process and this one. An object that notes it when made can tell that it is in a child."""


def _in_child() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_in_child)


def orphaned(what: str) -> IllegalStateError:
    """What a child is told that uses its parent's `what`."""
    return IllegalStateError(f"this {what} belongs to the process that forked: make a new one in the child process")
