"""Ports of the loopback interface: free ones, and whether one is free."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
import sys

from muster.errors import ConfigError

LOOPBACK = "127.0.0.1"

_reserved = contextlib.ExitStack()
atexit.register(_reserved.close)


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, below those that the system uses for outgoing connections.

    On Linux they stay reserved for this process as long as it lives, so that no other caller, here or in another
    process, gets one before its server listens, or while that is killed and restarted. Each is bound to a socket that
    does not listen: connections are refused, and a server that sets SO_REUSEADDR, as Java's, asyncio's and muster's do,
    can listen there.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), k=1_000):
        probe = socket.socket()
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            probe.close()
            continue
        if sys.platform == "linux":
            # Set after the bind, which must fail if another socket has the port, whatever options that socket has.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _reserved.enter_context(probe)
        else:
            probe.close()
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports on the loopback interface")


def check_free(port: int, whose: str) -> None:
    """Refuse a port where another process listens.

    Raises:
        ConfigError: it is taken, or not a valid port.
    """
    with socket.socket() as probe:
        # A server that ended a moment ago leaves connections behind, which do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "the highest port is 65535"
            raise ConfigError(f"port {port} for {whose} is not available: {why}") from None
