"""KeyboardInterrupt at the n-th instruction or line of a call, in the thread that makes the call."""

from __future__ import annotations

import dis
import gc
import itertools
import linecache
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

import muster

T = TypeVar("T")
OURS = muster.__path__[0]


class InterruptAt:
    """Runs a function, and raises KeyboardInterrupt before the n-th instruction within some modules.

    The interpreter itself checks for signals only after calls of C functions, at the beginning of Python functions, and
    at backward jumps. `possible` says whether it would have checked here. Elsewhere an interrupt may lose what the very
    next instructions would have returned, but must break nothing either.
    """

    def __init__(self, number: int, *modules: ModuleType) -> None:
        self.number = number
        self.count = 0
        self.where = ""
        self.possible = False
        self._files = {module.__file__ for module in modules}
        self._before: dict[FrameType, str] = {}
        self._operations: dict[CodeType, dict[int, str]] = {}

    @property
    def happened(self) -> bool:
        """Whether an n-th instruction was reached."""
        return self.count >= self.number

    def run(self, function: Callable[[], T]) -> T:
        """Call the function. Garbage from other tests is not collected meanwhile: a client in it that warns that it was
        never closed would take the interrupt, and the function would continue without it."""
        collects = gc.isenabled()
        gc.disable()
        sys.settrace(self._on_call)
        try:
            return function()
        finally:
            sys.settrace(None)
            self._before.clear()
            if collects:
                gc.enable()

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_back is not None:
            self._before.pop(frame.f_back, None)  # called a Python function: no signal is checked at its return
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_instruction

    def _on_instruction(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "opcode":
            return self._on_instruction
        operation = self._operation(frame)
        before = self._before.get(frame, "")
        self._before[frame] = operation
        self.count += 1
        if self.count == self.number:
            sys.settrace(None)
            self.possible = before.startswith("CALL") or before == "RESUME" or "JUMP_BACKWARD" in before
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} before {operation}, after {before or 'a call'}"
            raise KeyboardInterrupt
        return self._on_instruction

    def _operation(self, frame: FrameType) -> str:
        code = frame.f_code
        if code not in self._operations:
            self._operations[code] = {found.offset: found.opname for found in dis.get_instructions(code)}
        return self._operations[code][frame.f_lasti]


def interrupted(at: int, action: Callable[[], object]) -> bool:
    """Run an action, raising KeyboardInterrupt at muster's line with this number; returns whether it got there.

    At the end of a `with` block Python reports its first line again, outside of what the block protects. No signal is
    checked there, so no interrupt must be raised there.
    """
    lines = itertools.count()
    begun: set[tuple[FrameType, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or in_finalizer(frame):
            return None
        if event == "line":
            place = (frame, frame.f_lineno)
            if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
                if place in begun:
                    return trace
                begun.add(place)
            if next(lines) == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether a finalizer is running, perhaps for another producer: Python suppresses interrupts in finalizers."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
