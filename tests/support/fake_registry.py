"""A minimal schema registry: it gives each schema a number, and returns the schema for a number."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeRegistry(ThreadingHTTPServer):
    """Listens on a free port of this machine. `asked` has the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[str] = []
        self.asked: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        if schema not in self.server.schemas:
            self.server.schemas.append(schema)
        self._answer(200, {"id": self.server.schemas.index(schema) + 1})

    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2])
        if 0 < number <= len(self.server.schemas):
            self._answer(200, {"schema": self.server.schemas[number - 1]})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, status: int, content: object) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Writes nothing to standard error."""


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """A registry while the block runs."""
    with FakeRegistry() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
