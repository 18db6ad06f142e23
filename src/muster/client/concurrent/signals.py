"""Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


_listening: dict[signal.Signals, list[Signals]] = {}
"""All runs that react to a signal, in one event loop: the first installs the handler, the last removes it."""
_previous_handlers: dict[signal.Signals, Any] = {}


class Signals:
    """Calls a function in the event loop for either signal, unless the program has its own handler.

    Only in the main thread, as Python requires. The previous handlers are restored at the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], *, wanted: bool) -> None:
        self.loop = loop
        self.on_signal = on_signal
        self._wanted = wanted and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        for number in _SIGNALS if self._wanted else ():
            others = _listening.get(number)
            if others is not None:
                if others[0].loop is self.loop:
                    others.append(self)
                continue
            before = signal.getsignal(number)
            if not _is_default(before):
                continue
            try:
                self.loop.add_signal_handler(number, _dispatch, number)
            except (NotImplementedError, RuntimeError):  # Windows, or a loop without support
                continue
            _listening[number], _previous_handlers[number] = [self], before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, listening in list(_listening.items()):
            if self in listening:
                listening.remove(self)
                if not listening:
                    del _listening[number]
                    self.loop.remove_signal_handler(number)
                    signal.signal(number, _previous_handlers.pop(number))


def _dispatch(number: signal.Signals) -> None:
    for each in list(_listening.get(number, ())):
        each.on_signal()


def _is_default(handler: Any) -> bool:
    """Whether the handler is Python's own, `asyncio.run`'s (it cancels the main task at Ctrl-C) or a Spark session's
    (it raises KeyboardInterrupt wherever the program is).
    """
    handler = getattr(handler, "func", handler)
    name, module = getattr(handler, "__qualname__", ""), getattr(handler, "__module__", None) or ""
    by_spark = module.startswith("pyspark.") and name == "SparkContext._do_init.<locals>.signal_handler"
    return by_spark or name == "Runner._on_sigint" or handler in (signal.SIG_DFL, signal.default_int_handler)
