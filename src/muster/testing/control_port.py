"""The control port: `Control.ask` over HTTP with JSON, for tests in any language and for brokers in another process.

It listens on the loopback interface and requires the token that was printed when it was opened, since a page in a
browser on the same machine could send requests to it too.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Ask = Callable[[str, str, Mapping[str, Any] | None], Awaitable[tuple[int, dict[str, Any]]]]

MOST_BYTES = 1 << 20


class ControlPort:
    """Serves `ask`, a coroutine function of the running loop, from `start` to `stop`."""

    def __init__(self, ask: Ask, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(16)
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._wanted_port = port
        self._server: _ControlServer

    @property
    def port(self) -> int:
        """The port, after `start`."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Open the port. Raises OSError."""
        self._server = _ControlServer(("127.0.0.1", self._wanted_port), _ControlHandler)
        self._server.port = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="muster-control", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """Run a command on the broker's loop; called in a thread of the port."""
        work = self._ask(method, path, body)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]


class _ControlServer(ThreadingHTTPServer):
    daemon_threads = True
    port: ControlPort

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a client has closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _ControlHandler(BaseHTTPRequestHandler):
    server: _ControlServer
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        status, answer = self._answered()
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the library's names

    def _answered(self) -> tuple[int, dict[str, Any]]:
        port = self.server.port
        length = int(self.headers.get("Content-Length") or 0)
        if length > MOST_BYTES:
            self.close_connection = True
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"the body has more than {MOST_BYTES} bytes"}
        text = self.rfile.read(length)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token.encode(), port.token.encode()):
            return HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or wrong: send Authorization: Bearer TOKEN"}
        try:
            body = json.loads(text) if text else None
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"the body is not JSON: {error}"}
        if body is not None and not isinstance(body, dict):
            return HTTPStatus.BAD_REQUEST, {"error": "the body is not a JSON object"}
        return port.answer(self.command, self.path, body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
