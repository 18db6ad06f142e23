"""A proxy to a broker that can be slow, or cut: the broker has a separate listener for it, which advertises the proxy's
port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType


class Road:
    """Carries bytes between clients and a broker's port; a context manager. Its event loop runs in its own thread."""

    def __init__(self, port: int, to_port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self.delay_s = 0.0
        """The delay added to each answer."""
        self._port, self._to_port = port, to_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def alone(self, delay_s: float = 0.0) -> Iterator[Road]:
        """Reserve the road for one script: as slow as this, and mended afterwards."""
        with self._one_at_a_time:
            self.delay_s = delay_s
            try:
                yield self
            finally:
                self.delay_s = 0.0
                self.mend()

    def cut(self) -> None:
        """Carry nothing from now on; connections stay open."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        """Carry bytes again, beginning with those held back."""
        self._loop.call_soon_threadsafe(self._open.set)

    def __enter__(self) -> Road:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        for source, sink, slow in ((reader, back, False), (there, writer, True)):
            task = self._loop.create_task(self._carry(source, sink, slow))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, slow: bool) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while piece := await source.read(65_536):
                if slow and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                sink.write(piece)
                await sink.drain()
