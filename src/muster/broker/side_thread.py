"""A thread for what would keep the loop from everybody else: it looks into costly batches, one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("muster.broker")


class SideThread:
    """One thread beside the loop. It starts when it is first needed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "muster-side")
        self._running: set[asyncio.Future[None]] = set()

    def run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Do `work` in the thread, and then call `done` in the loop. If `work` raises, that is logged."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._running.add(future)

        def finish(future: asyncio.Future[None]) -> None:
            self._running.discard(future)
            if future.cancelled():
                return
            if future.exception() is not None:
                log.error("work beside the loop failed", exc_info=future.exception())
            done()

        future.add_done_callback(finish)

    def stop(self) -> None:
        """End when the work under way is done; what waits behind it is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
