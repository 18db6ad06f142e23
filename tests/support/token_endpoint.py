"""A small token endpoint (RFC 6749, 4.4), and its unsigned tokens, which a broker accepts unless configured
otherwise."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs


def token(expires_in_s: float = 600) -> str:
    """A token without a signature."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + expires_in_s}
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return f"{'.'.join(texts)}."


class TokenEndpoint(ThreadingHTTPServer):
    """Listens on a free port of this machine, with TLS. `asked` has the ids and secrets of the clients."""

    daemon_threads = True

    def __init__(self, pair: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[tuple[str, str]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: TokenEndpoint

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if "Authorization" in self.headers:
            pair = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            client_id, _, secret = pair.partition(":")
        else:
            [client_id], [secret] = form["client_id"], form["client_secret"]
        self.server.asked.append((client_id, secret))
        assert form["grant_type"] == ["client_credentials"]
        body = json.dumps({"access_token": token(), "token_type": "Bearer", "expires_in": 600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Writes nothing to standard error."""


@contextmanager
def token_endpoint(pair: Path) -> Iterator[TokenEndpoint]:
    """An endpoint while the block runs; `pair` is its key and its certificates."""
    with TokenEndpoint(pair) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
