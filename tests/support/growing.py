"""For messages that come only after a timeout and describe what happened before it: a busy machine gets a longer
one."""

from __future__ import annotations

import re
from collections.abc import Callable

_MOST_MS = 128_000


def until_said(pattern: str, what: Callable[[int], str], first_ms: int = 2_000) -> str:
    """The message after a timeout of this many milliseconds, if it matches; otherwise after four times as many, and so
    on.

    So the test takes as long as an idle machine needs, and its outcome does not depend on how busy this one is.
    """
    limit_ms = first_ms
    while True:
        said = what(limit_ms)
        if re.search(pattern, said):
            return said
        assert limit_ms < _MOST_MS, f"{pattern!r} is not said: {said}"
        limit_ms *= 4
