"""muster's own broker for tests: in this process, or as `muster serve` in a separate one that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, TypeVar

from muster.broker.broker import Broker
from muster.broker.config import BrokerConfig
from muster.broker.topics.catalogue import Topic
from muster.log import DISK, Files, PartitionLog
from muster.protocol import framing
from muster.protocol.primitives import Request, Response
from tests.support.peers import free_ports

R = TypeVar("R", bound=Response)

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 300.0
READY = re.compile(r"^muster \S+ ready on (\S+) \(cluster ([\w-]+), data in (.+)\)$")
_LENGTH = Struct(">i")

FAST: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
"""Settings of every broker here: an empty group does not wait three seconds for more members."""


def broker_config(folder: Path, settings: Mapping[str, object] | None = None) -> BrokerConfig:
    """Settings of a broker on a free port."""
    return BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), **FAST, **(settings or {})})


def log_of(broker: Broker, topic: str = "t", partition: int = 0) -> PartitionLog:
    """The log of a partition, which must exist."""
    found = broker.partitions.get(topic, partition)
    assert found is not None
    return found


def topic_of(broker: Broker, name: str = "t") -> Topic:
    """A topic, which must exist."""
    found = broker.topics.get(name)
    assert found is not None
    return found


@contextlib.asynccontextmanager
async def running(
    folder: Path, settings: Mapping[str, object] | None = None, files: Files = DISK
) -> AsyncIterator[Broker]:
    """A broker on this event loop; `broker.bootstrap` is its address. `files` is its disk (see `FaultyDisk`)."""
    async with Broker(broker_config(folder, settings), files) as broker:
        yield broker


@contextlib.contextmanager
def beside(folder: Path, settings: Mapping[str, object] | None = None) -> Iterator[str]:
    """A broker in a thread of this process, for blocking clients; returns its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-broker", daemon=True)
    thread.start()
    broker = Broker(broker_config(folder, settings))
    asyncio.run_coroutine_threadsafe(broker.__aenter__(), loop).result(START_TIMEOUT_S)
    try:
        yield broker.bootstrap
    finally:
        asyncio.run_coroutine_threadsafe(broker.__aexit__(None, None, None), loop).result(STOP_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class BrokerProcess:
    """`muster serve` in its own process. Start and kill it as often as you like: it keeps folder and port.

    No other test gets the port. A port chosen by the system (port 0) is in the range of outgoing connections: while the
    broker is down, one of those may take it.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        fsync: str = "interval",
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._prefix = prefix
        self.host = "127.0.0.1"
        self.port = 0
        self.cluster_id = ""
        self._settings = {**FAST, **(settings or {})}
        self._fsync = fsync
        self._process: subprocess.Popen[str] | None = None
        self._log = folder.parent / f"{folder.name}.log"

    @property
    def bootstrap(self) -> str:
        """The address, in the form of `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process, which must be running."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What the broker has written to standard error since it was first started."""
        return self._log.read_text()

    def start(self) -> None:
        """Start it and wait until it reports that it is ready."""
        self.port = self.port or free_ports(1)[0]
        command = [*self._prefix, sys.executable, "-m", "muster", "serve", "--port", str(self.port)]
        command += ["--data-dir", str(self.folder), "--fsync", self._fsync]
        for name, value in self._settings.items():
            command += ["-o", f"{name}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        ready = READY.match(line)
        if ready is None:
            self.kill()
            raise AssertionError(f"the broker did not start: {line!r}\n{self.log()[-2000:]}")
        self.cluster_id = ready[2]

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code of a process that ends on its own."""
        return self._end(None)

    def _end(self, number: signal.Signals | None) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if number is not None:
            process.send_signal(number)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError("the broker did not stop") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGKILL if error is not None else signal.SIGTERM)


class RawClient:
    """One blocking connection that sends and reads messages: for tests of the wire protocol, from outside the
    broker."""

    def __init__(self, bootstrap: str, timeout_s: float = 300.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def ask(self, request: Request[R], version: int, client_id: str | None = "raw") -> R:
        """Send a request and read its answer. EOFError: the broker closed the connection instead."""
        self.send(request, version, client_id)
        return self.receive(type(request), version)

    def send(self, request: Request[Any], version: int, client_id: str | None = "raw") -> int:
        """Send a request; returns its correlation id."""
        self._correlation_id += 1
        self.socket.sendall(b"".join(framing.encode_request(request, version, self._correlation_id, client_id)))
        return self._correlation_id

    def receive(self, request: type[Request[R]], version: int) -> R:
        """Read the answer to a request of this kind."""
        return framing.decode_response(self.receive_frame(), request, version)

    def poke(self, data: bytes) -> bytes:
        """Send bytes and shut down sending; returns what the broker sent until it closed the connection."""
        answer = b""
        try:
            self.socket.sendall(data)
            self.socket.shutdown(socket.SHUT_WR)
            while part := self.socket.recv(65_536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer

    def receive_frame(self) -> bytes:
        """Read one frame, without its length."""
        return self._exactly(_LENGTH.unpack(self._exactly(4))[0])

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise EOFError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def closed(self) -> bool:
        """Wait whether the broker closes the connection."""
        with contextlib.suppress(ConnectionResetError):
            return self.socket.recv(1) == b""
        return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def in_thread(call: Any, *arguments: Any) -> Any:
    """Run a blocking client's call while a broker runs on this event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)
