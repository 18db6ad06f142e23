"""A port for metrics: GET and HEAD over HTTP, by the standard library's server in its own threads.

It therefore responds even while a broker's event loop is busy. Peers are not trusted: a connection serves one request,
stays open for at most DEADLINE_S, and at most MOST_AT_ONCE are served at a time.

A page is a function of the request's Accept header. Concurrent requests for a page, and those within a second, share
one response.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from muster.errors import MusterError
from muster.metrics.exposition import Page, text_page

log = logging.getLogger("muster.metrics")

DEADLINE_S = 20.0
MOST_AT_ONCE = 32
CACHE_S = 1.0
"""How long a response is reused."""
_CHECK_INTERVAL_S = 0.25
"""How often the server checks for connections past their deadline, and for its shutdown."""

MakePage = Callable[[str], Page]


class _CachedPage:
    """A page, rendered once for concurrent requests."""

    def __init__(self, make: MakePage) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, Page]] = {}

    def get(self, accept: str) -> Page:
        with self._lock:
            made = self._made.get(accept)
            if made is not None and time.monotonic() < made[0] + CACHE_S:
                return made[1]
            page = self._make(accept)
            self._made = {accept: (time.monotonic(), page)}
            return page


class _MetricsHandler(BaseHTTPRequestHandler):
    server: _MetricsServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # so that every response has a header
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s: %(explain)s\n"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        cached = self.server.pages.get(path)
        if cached is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"there is {' and '.join(self.server.pages)}")
            return
        try:
            page = cached.get(self.headers.get("Accept", "").strip() if path == "/metrics" else "")
        except Exception:
            log.exception("the page %s could not be made", path)
            page = text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be made")
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def version_string(self) -> str:
        return "muster"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _MetricsServer(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, pages: Mapping[str, _CachedPage]) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        self.pages = pages
        self.under_way: dict[socket.socket, float] = {}
        """The connections and their deadlines."""
        super().__init__(address[:2], _MetricsHandler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.under_way) >= MOST_AT_ONCE:
            with suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        self.under_way[request] = time.monotonic() + DEADLINE_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.under_way.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.end(before=time.monotonic())

    def end(self, before: float) -> None:
        """Close the connections whose deadline has passed, so that their threads stop waiting."""
        for request, until in list(self.under_way.items()):
            if until <= before:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection to the port for metrics failed: %r", sys.exception())


class MetricsPort:
    """Serves pages by their paths from `start` to `stop`."""

    def __init__(self, host: str, port: int, pages: Mapping[str, MakePage]) -> None:
        self.host = host
        self.port = port
        """After `start` the actual port, even if 0 was requested."""
        self._pages = {path: _CachedPage(make) for path, make in pages.items()}
        self._server: _MetricsServer | None = None
        self._thread: threading.Thread

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self) -> None:
        """Open the port.

        Raises:
            MusterError: it cannot be opened.
        """
        try:
            self._server = _MetricsServer(self.host, self.port, self._pages)
        except OSError as error:
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or error
            raise MusterError(f"cannot serve metrics on {self.address}: {reason}") from None
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CHECK_INTERVAL_S,), name="muster-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port. A second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()
            server.end(before=float("inf"))


__all__ = ["MetricsPort", "Page", "text_page"]
