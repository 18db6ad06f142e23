"""Ctrl-C and SIGTERM while a run goes on."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Calls a function in the event loop for either signal, as long as the program does nothing else about it.

    Only in the main thread, as Python has it. What was there before is put back at the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], *, wanted: bool) -> None:
        self._loop = loop
        self._on_signal = on_signal
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS if self._wanted else ():
            before = signal.getsignal(number)
            if not _is_default(before):
                continue
            try:
                self._loop.add_signal_handler(number, self._on_signal)
            except (NotImplementedError, RuntimeError):  # Windows, or a loop that cannot
                continue
            self._before[number] = before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before)


def _is_default(handler: Any) -> bool:
    """Whether it is Python's own, or that of `asyncio.run`, which cancels the main task at Ctrl-C."""
    by_asyncio = getattr(getattr(handler, "func", handler), "__qualname__", "") == "Runner._on_sigint"
    return by_asyncio or handler in (signal.SIG_DFL, signal.default_int_handler)
