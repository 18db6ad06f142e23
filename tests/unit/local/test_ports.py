"""Free ports, and ports that are not."""

from __future__ import annotations

import socket

import pytest

from muster.errors import ConfigError
from muster.local.ports import check_free, free_ports


def test_free_ports_are_different_and_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        check_free(port, "a server")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_port_that_another_listens_on_is_refused_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sentence = f"port {port} for broker 2 is not available: Address already in use"
        with pytest.raises(ConfigError, match=sentence):
            check_free(port, "broker 2")


def test_connections_that_an_ended_server_left_do_not_count():
    (port,) = free_ports(1)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
    accepted.close()  # the server closes first: its side of the connection stays in TIME_WAIT
    client.close()
    check_free(port, "a server")


def test_a_number_that_is_not_a_port_is_refused():
    with pytest.raises(ConfigError, match=r"port 65536 .* the highest port is 65535"):
        check_free(65_536, "broker 3")
