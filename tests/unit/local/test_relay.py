"""The relay: bytes pass in order, delayed or held, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import muster.local.relay
from muster.local.ports import free_ports
from muster.local.relay import Relay


@pytest.fixture
def pair() -> Iterator[tuple[Relay, socket.socket, socket.socket]]:
    """A relay with one connection: the client's end, and the far end at the target."""
    with socket.create_server(("127.0.0.1", 0)) as server, Relay(server.getsockname()[1]) as relay:
        near = socket.create_connection(("127.0.0.1", relay.port))
        far, _ = server.accept()
        with near, far:
            yield relay, near, far


def exactly(one: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := one.recv(count - len(found))):
        found += data
    return found


def test_bytes_pass_both_ways(pair: tuple[Relay, socket.socket, socket.socket]):
    _, near, far = pair
    near.sendall(b"there")
    assert exactly(far, 5) == b"there"
    data = bytes(range(256)) * 4_000
    sender = threading.Thread(target=far.sendall, args=(data,))
    sender.start()
    assert exactly(near, len(data)) == data
    sender.join()


def test_what_is_held_passes_afterwards_and_the_other_way_is_open(pair: tuple[Relay, socket.socket, socket.socket]):
    relay, near, far = pair
    relay.hold()
    far.sendall(b"held")
    near.sendall(b"ask")
    assert exactly(far, 3) == b"ask"
    far.sendall(b", too")
    far.close()
    near.settimeout(0.5)
    with pytest.raises(TimeoutError):
        near.recv(1)
    near.settimeout(None)
    relay.release()
    assert exactly(near, 100) == b"held, too", "and then its end"


def test_what_is_held_at_a_cut_is_lost_and_new_connections_are_free():
    with socket.create_server(("127.0.0.1", 0)) as server, Relay(server.getsockname()[1]) as relay:
        with socket.create_connection(("127.0.0.1", relay.port)) as near, server.accept()[0] as far:
            relay.hold()
            near.sendall(b"ask")
            assert exactly(far, 3) == b"ask"
            far.sendall(b"lost")
            relay.cut()
            assert near.recv(4) == b""
            assert far.recv(4) == b""
        with socket.create_connection(("127.0.0.1", relay.port)) as near, server.accept()[0] as far:
            far.sendall(b"passes")
            assert exactly(near, 6) == b"passes"


def test_without_patience_a_connection_ends_where_nothing_listens():
    [port] = free_ports(1)
    with Relay(port, patience_s=0) as relay, socket.create_connection(("127.0.0.1", relay.port)) as near:
        assert near.recv(1) == b""


def test_an_end_passes_to_the_target_at_once(pair: tuple[Relay, socket.socket, socket.socket]):
    relay, near, far = pair
    relay.hold()
    near.close()
    assert far.recv(1) == b""


def test_a_target_that_listens_a_moment_later_is_reached():
    (port,) = free_ports(1)
    with Relay(port, patience_s=300) as relay, socket.create_connection(("127.0.0.1", relay.port)) as near:
        near.sendall(b"early")
        near.settimeout(0.2)
        with pytest.raises(TimeoutError):
            near.recv(1)
        with socket.create_server(("127.0.0.1", port)) as server:
            far, _ = server.accept()
            with far:
                assert exactly(far, 5) == b"early"


@pytest.mark.slow
def test_where_nothing_comes_to_listen_the_connection_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(muster.local.relay, "_PATIENCE_S", 0.1)
    (port,) = free_ports(1)
    with Relay(port) as relay:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", relay.port)) as near:
                assert exactly(near, 1) == b""


def test_its_end_ends_connections_held_or_not(pair: tuple[Relay, socket.socket, socket.socket]):
    relay, near, far = pair
    near.sendall(b"a")
    assert exactly(far, 1) == b"a"
    relay.hold()
    threads = [thread for thread in threading.enumerate() if thread.name == "muster-relay"]
    assert threads
    relay.close()
    assert near.recv(1) == b""
    assert far.recv(1) == b""
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port))
