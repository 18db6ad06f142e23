"""An event loop's clock that only waiting advances: for timeouts that should pass, however busy the machine is.

Arriving data takes no time, and if nothing arrives for a moment, the next timeout is due. So a process that is delayed
by seconds loses nothing, and a timeout of a minute passes at once. It is for tests in which everything happens in one
loop.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest

_QUIET_S = 0.05
"""Everything on the loopback interface arrives sooner."""


def skip_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test, for the running loop and for the clients in it."""
    loop: Any = asyncio.get_running_loop()
    selector: selectors.BaseSelector = loop._selector
    select, now = selector.select, loop.time()

    def skipping(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        nonlocal now
        if timeout is None or timeout <= 0:
            return select(timeout)
        found = select(_QUIET_S)
        if not found:
            now += timeout
        return found

    monkeypatch.setattr(selector, "select", skipping)
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr("muster.client.net.driver.monotonic_ms", lambda: int(now * 1000))
