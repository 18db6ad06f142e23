"""How long a test may take before its run is ended, with the stacks of all threads: a few minutes for a quick test.

The limit for all others is in pyproject.toml. `make soak` has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

QUICK_S = 300
"""They take seconds at most; a machine that is busy with other things is not a failure."""

_UNITS = Path(__file__).resolve().parents[1] / "unit"


def limit_quick_tests(items: Iterable[pytest.Item]) -> None:
    """Give a limit to those tests in tests/unit that have no marker about their time."""
    for item in items:
        if item.path.is_relative_to(_UNITS) and not any(map(item.get_closest_marker, ("slow", "soak", "timeout"))):
            item.add_marker(pytest.mark.timeout(QUICK_S))
