"""The port for metrics: valid requests are answered, and invalid ones cost only their connection."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from muster.errors import MusterError
from muster.metrics import port as module
from muster.metrics.exposition import Page, text_page
from muster.metrics.port import MetricsPort

PATIENCE_S = 120.0
"""Only in case of a hang."""

LARGE, HUGE = b"x" * 8_000_000, b"x" * 30_000_000


class Pages:
    def __init__(self) -> None:
        self.made = 0
        self.accepted: list[str] = []
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def metrics(self, accept: str) -> Page:
        self.made += 1
        self.accepted.append(accept)
        return text_page(200, f"page {self.made}")

    def slow(self, accept: str) -> Page:
        self.made += 1
        self.begun.set()
        self.go_on.wait(PATIENCE_S)
        return text_page(200, "at last")

    def large(self, accept: str) -> Page:
        return Page(200, "text/plain", LARGE)

    def huge(self, accept: str) -> Page:
        return Page(200, "text/plain", HUGE)

    def broken(self, accept: str) -> Page:
        raise ValueError("a defect")


@contextlib.contextmanager
def open_port(pages: Pages) -> Iterator[MetricsPort]:
    made = (pages.metrics, pages.slow, pages.large, pages.huge, pages.broken)
    paths = {f"/{page.__name__}": page for page in made}
    port = MetricsPort("127.0.0.1", 0, paths)
    port.start()
    try:
        yield port
    finally:
        pages.go_on.set()
        port.stop()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may delay each side for seconds: if a test needs a deadline to pass, it sets a short one
    itself."""
    monkeypatch.setattr(module, "DEADLINE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(module, "CACHE_S", 10 * PATIENCE_S)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def port(pages: Pages) -> Iterator[MetricsPort]:
    with open_port(pages) as port:
        yield port


def under_way(port: MetricsPort) -> dict[socket.socket, float]:
    assert port._server is not None
    return port._server.under_way


def let_deadlines_pass(port: MetricsPort) -> None:
    """The open connections."""
    for request in list(under_way(port)):
        under_way(port)[request] = 0


def connect(port: MetricsPort) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port.port), PATIENCE_S)


def rest(peer: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(1 << 16):
            found += part
    return found


def ask(port: MetricsPort, request: bytes) -> bytes:
    with connect(port) as peer:
        with contextlib.suppress(OSError):  # the server may have closed the connection already, refusing the request
            peer.sendall(request)
            peer.shutdown(socket.SHUT_WR)
        return rest(peer)


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode("latin-1")


def test_a_page_is_answered(port: MetricsPort, pages: Pages) -> None:
    head, _, body = ask(port, get("/metrics?name[]=a", "aCCept:  text/plain ")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"page 1\n"
    assert f"Content-Length: {len(body)}".encode() in head
    assert pages.accepted == ["text/plain"]


def test_head_has_no_body(port: MetricsPort) -> None:
    answer = ask(port, get("/metrics", method="HEAD"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


def test_a_large_page_arrives_whole_at_a_slow_peer(port: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_INTERVAL_S", 0.01)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        peer.settimeout(PATIENCE_S)
        peer.connect(("127.0.0.1", port.port))
        peer.sendall(get("/large"))
        assert rest(peer).endswith(LARGE)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/nothing"), 404),
        (get("/metrics", method="POST"), 501),
        (get("/metrics", method="DELETE"), 501),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03 and more\r\n\r\n", 400),
        (b"G\xffT /metrics HTTP/1.1\r\n\r\n", 501),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (get("/metrics", "X: " + "a" * 66_000), 431),
        (get("/metrics", *["X: y"] * 200), 431),
        (b"a" * 66_000, 414),
    ],
)
def test_what_is_not_a_request_for_a_page_gets_the_reason(
    port: MetricsPort, pages: Pages, request_bytes: bytes, status: int
) -> None:
    assert ask(port, request_bytes).startswith(f"HTTP/1.1 {status} ".encode())
    assert pages.made == 0
    assert b"page 1" in ask(port, get("/metrics"))


@pytest.mark.parametrize("start", [b"", b"GET"])
def test_a_peer_that_ends_early_is_let_go(port: MetricsPort, start: bytes) -> None:
    assert b" 200 OK" not in ask(port, start)
    assert b"page 1" in ask(port, get("/metrics"))


def test_a_request_that_drips_is_ended(port: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as soon:
        soon.setattr(module, "DEADLINE_S", 0.05)
        with connect(port) as peer:
            with contextlib.suppress(OSError):  # the connection may be closed before this is sent
                peer.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert rest(peer) == b""
    assert b"page 1" in ask(port, get("/metrics"))


def test_an_answer_that_is_not_taken_is_given_up(port: MetricsPort) -> None:
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(PATIENCE_S)
        peer.connect(("127.0.0.1", port.port))
        peer.sendall(get("/huge"))
        assert peer.recv(10) == b"HTTP/1.1 2"
        let_deadlines_pass(port)
        while under_way(port):
            threading.Event().wait(0.005)
        assert len(rest(peer)) < len(HUGE)


def test_many_at_once_share_one_page(port: MetricsPort, pages: Pages) -> None:
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(port, get("/slow")))) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert pages.begun.wait(PATIENCE_S)
    while len(under_way(port)) < len(threads):
        threading.Event().wait(0.005)
    pages.go_on.set()
    for thread in threads:
        thread.join()
    assert pages.made == 1
    assert all(answer.endswith(b"at last\n") for answer in answers)


def test_a_page_is_made_again_when_the_last_is_old(port: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"page 1" in ask(port, get("/metrics"))
    assert b"page 1" in ask(port, get("/metrics"))
    monkeypatch.setattr(module, "CACHE_S", 0)
    assert b"page 2" in ask(port, get("/metrics"))


def test_of_too_many_at_once_some_are_refused(port: MetricsPort, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    idle = [connect(port) for _ in range(3)]
    while len(under_way(port)) < len(idle):
        threading.Event().wait(0.005)
    assert ask(port, get("/metrics")).startswith(b"HTTP/1.1 503 ")
    for peer in idle:
        peer.close()
    while under_way(port):
        threading.Event().wait(0.005)
    assert b"page 1" in ask(port, get("/metrics"))


def test_a_page_that_cannot_be_made_is_logged(port: MetricsPort, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "muster.metrics"):
        assert ask(port, get("/broken")).startswith(b"HTTP/1.1 500 ")
    assert "a defect" in caplog.text
    assert b"page 1" in ask(port, get("/metrics"))


def test_a_port_that_is_taken_is_reported_in_a_sentence(port: MetricsPort, pages: Pages) -> None:
    other = MetricsPort("127.0.0.1", port.port, {"/metrics": pages.metrics})
    with pytest.raises(MusterError, match=rf"cannot serve metrics on 127\.0\.0\.1:{port.port}: Address already in use"):
        other.start()
    other.stop()


def test_an_invalid_host_is_reported_in_a_sentence(pages: Pages) -> None:
    with pytest.raises(MusterError, match="cannot serve metrics on no such host:"):
        MetricsPort("no such host", 0, {"/metrics": pages.metrics}).start()


def test_stop_ends_those_under_way(pages: Pages) -> None:
    with open_port(pages) as port:
        peer = connect(port)
        while not under_way(port):
            threading.Event().wait(0.005)
        port.stop()
        port.stop()
        assert rest(peer) == b""
        peer.close()
        with pytest.raises(ConnectionRefusedError):
            connect(port)
