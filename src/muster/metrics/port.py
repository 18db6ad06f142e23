"""A port for pages of numbers: GET over HTTP, in a thread of its own.

The thread has an event loop of its own, so that it answers also while the loop of a broker is busy, and says so. Peers
are not trusted: a request has DEADLINE_S to arrive and its answer as long to be taken, its head may have MOST_BYTES,
and MOST_AT_ONCE of them are under way at a time. A connection has one request and is closed after the answer.

A page is a coroutine function that is given the request's header Accept. Of a page that is asked for several times at
once, or again within a second, one answer is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from muster.errors import MusterError
from muster.metrics.exposition import Page, text_page

log = logging.getLogger("muster.metrics")

DEADLINE_S = 10.0
MOST_BYTES = 16 * 1024
MOST_AT_ONCE = 64
KEPT_S = 1.0
"""How long an answer is given again."""
_LINGER_S = 1.0
_START_S = 30.0

MakePage = Callable[[str], Awaitable[Page]]


class MalformedError(MusterError):
    """A request that is none, and its status."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Asked(NamedTuple):
    """The parts of a request that matter here."""

    method: str
    path: str
    accept: str


def parse(head: bytes) -> Asked:
    """The head of a request, up to its empty line.

    Raises:
        MalformedError: it is none.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not (words[0].isascii() and words[0].isalpha()) or not words[2].startswith("HTTP/"):
        raise MalformedError(HTTPStatus.BAD_REQUEST, "this port speaks HTTP/1.1: GET /metrics")
    if not words[2].startswith("HTTP/1."):
        raise MalformedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port speaks HTTP/1.1")
    accept = ""
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if line and not colon:
            raise MalformedError(HTTPStatus.BAD_REQUEST, "a header without a colon")
        if name.strip().lower() == "accept":
            accept = value.strip()
    return Asked(words[0], words[1].partition("?")[0], accept)


def head_of(page: Page) -> bytes:
    """The head of an answer."""
    status = HTTPStatus(page.status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Connection: close",
    ]
    if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class _Kept:
    """A page, made once for all that ask at a time."""

    def __init__(self, make: MakePage) -> None:
        self._make = make
        self._making: dict[str, asyncio.Task[Page]] = {}
        self._made: dict[str, tuple[float, Page]] = {}

    async def get(self, accept: str) -> Page:
        made = self._made.get(accept)
        if made is not None and time.monotonic() < made[0] + KEPT_S:
            return made[1]
        making = self._making.get(accept)
        if making is None:
            making = self._making[accept] = asyncio.ensure_future(self._make_page(accept))
        return await asyncio.shield(making)

    async def _make_page(self, accept: str) -> Page:
        try:
            page = await self._make(accept)
        finally:
            del self._making[accept]
        self._made = {accept: (time.monotonic(), page)}
        return page


class MetricsPort:
    """Serves pages by their paths from `start` to `stop`."""

    def __init__(self, host: str, port: int, pages: Mapping[str, MakePage]) -> None:
        self.host = host
        self.port = port
        """After `start` the one that is open, also where 0 was asked for."""
        self._pages = {path: _Kept(make) for path, make in pages.items()}
        self._thread = threading.Thread(target=self._run, name="muster-metrics", daemon=True)
        self._started = threading.Event()
        self._failed: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self) -> None:
        """Open the port.

        Raises:
            MusterError: it cannot be opened.
        """
        self._thread.start()
        self._started.wait(_START_S)
        if self._failed is not None:
            number = self._failed.errno or 0
            reason = os.strerror(number) if number > 0 else self._failed.strerror or self._failed
            raise MusterError(f"cannot serve metrics on {self.address}: {reason}") from None

    def stop(self) -> None:
        """Close the port. A second call does nothing."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    # ------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("metrics are served no more")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        try:
            server = await asyncio.start_server(self._accepted, self.host or None, self.port, limit=MOST_BYTES)
        except OSError as error:
            self._failed = error
            return
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._over.wait()
        server.close()
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._one(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the peer has gone, or does not go on
        except asyncio.CancelledError:
            pass  # at the end; there is nothing behind this task that would have to know
        finally:
            self._under_way.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = "GET"
        writer.transport.set_write_buffer_limits(0)  # `drain` then waits until the system has all of the answer
        try:
            if len(self._under_way) > MOST_AT_ONCE:
                raise MalformedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
            asked = await self._head(reader)
            method = asked.method
            page = await self._answer(asked)
        except MalformedError as error:
            page = text_page(error.status, str(error))
        writer.write(head_of(page))
        if method != "HEAD":
            writer.write(page.body)
        async with asyncio.timeout(DEADLINE_S):
            await writer.drain()
            writer.write_eof()
            # Closed with something unread, the connection would be reset, and the answer might be lost on its way.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while await reader.read(MOST_BYTES):
                        pass

    async def _head(self, reader: asyncio.StreamReader) -> Asked:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return parse(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            text = f"the head of a request has at most {MOST_BYTES} bytes"
            raise MalformedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text) from None
        except TimeoutError:
            raise MalformedError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time") from None

    async def _answer(self, asked: Asked) -> Page:
        kept = self._pages.get(asked.path)
        if kept is None:
            raise MalformedError(HTTPStatus.NOT_FOUND, f"there is {' and '.join(self._pages)}")
        if asked.method not in ("GET", "HEAD"):
            raise MalformedError(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD")
        try:
            return await kept.get(asked.accept if asked.path == "/metrics" else "")
        except Exception:
            log.exception("the page %s could not be made", asked.path)
            raise MalformedError(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be made") from None


def check_port(port: int) -> None:
    """Refuse what is no port, before anything is started. Raises MusterError."""
    if not 0 <= port <= 65_535:
        raise MusterError(f"--metrics-port is 0 to 65535, not {port}")


__all__ = ["MetricsPort", "Page", "check_port", "text_page"]
