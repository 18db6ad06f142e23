"""For what is said only after a time limit, of what came within it: a busy machine has more time for the same."""

from __future__ import annotations

import re
from collections.abc import Callable

_MOST_MS = 128_000


def until_said(pattern: str, what: Callable[[int], str], first_ms: int = 2_000) -> str:
    """What is said after a limit of so many milliseconds, where it matches; else after four times as many, and so on.

    So the time that the test takes is that of an idle machine, and no outcome hangs on how busy this one is.
    """
    limit_ms = first_ms
    while True:
        said = what(limit_ms)
        if re.search(pattern, said):
            return said
        assert limit_ms < _MOST_MS, f"{pattern!r} is not said: {said}"
        limit_ms *= 4
