"""The same work for several items in parallel threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each_in_threads(work: Callable[[T], R], items: Sequence[T], width: int) -> list[R]:
    """The results of `work` for the items, in their order. The threads are daemons: they end with the process.

    Raises:
        Exception: the first that `work` raised.
    """
    waiting = deque(enumerate(items))
    done: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()

    def run() -> None:
        while waiting:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                done.put((number, work(item)))
            except BaseException as error:  # raised again in the caller's thread
                done.put((number, error))

    for _ in range(min(width, len(items))):
        threading.Thread(target=run, name="muster-history", daemon=True).start()
    found: dict[int, R] = {}
    try:
        while len(found) < len(items):
            number, result = done.get()
            if isinstance(result, BaseException):
                raise result
            found[number] = result
    finally:
        waiting.clear()
    return [found[number] for number in range(len(items))]
