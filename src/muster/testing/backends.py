"""The brokers of a kit, in a thread of this process or in processes of their own, and commands to their controls."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import muster
from muster.errors import MusterError
from muster.local.broker import LocalBroker
from muster.local.cluster import LocalCluster

if TYPE_CHECKING:  # not needed, and slow to import, if the broker has its own process
    from muster.broker.broker import Broker
    from muster.testing.control import Answer, Control

_CONTROL = re.compile(r"^control on (\S+), token (\S+)$", re.MULTILINE)
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 600.0
"""The timeout of any command; a test's wait has its own timeout, in its request."""


class BrokerAwayError(MusterError):
    """A broker's process is not running, or has not started yet."""


class Backend(Protocol):
    """The brokers of a kit."""

    bootstrap: str

    def ask(self, broker: int, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """Send a command to the broker with this index (`Control.ask`)."""

    def servers(self) -> list[LocalBroker]:
        """The brokers' processes; empty if the broker runs in a thread."""

    def count(self) -> int:
        """How many brokers there are."""


class BrokerThread:
    """One broker on an event loop in a thread of this process, from `start` to `stop`."""

    def __init__(self, folder: Path, settings: Mapping[str, object], seed: int) -> None:
        from muster.broker.config import BrokerConfig

        listeners = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)}
        self._config = BrokerConfig({**listeners, **settings})
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="muster-test-broker", daemon=True)
        self._broker: Broker
        self._control: Control
        self.bootstrap = ""

    def start(self) -> None:
        """Start it. Returns when it accepts connections."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)
        except BaseException:
            self._end_loop()
            raise
        self.bootstrap = self._broker.bootstrap

    async def _start(self) -> None:
        from muster.broker.broker import Broker
        from muster.testing.control import Control
        from muster.testing.disk import FaultyDisk

        disk = FaultyDisk()
        self._broker = Broker(self._config, disk)
        self._control = Control(self._broker, disk, self._seed)
        await self._broker.start()
        self._control.attach()

    def stop(self) -> None:
        """Stop it. Returns when it has stopped."""
        asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result(START_TIMEOUT_S)
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, broker: int, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """See `Backend.ask`."""
        answer = asyncio.run_coroutine_threadsafe(self._control.ask(method, path, body), self._loop)
        try:
            return answer.result(ANSWER_TIMEOUT_S)
        except BaseException:  # an interrupt: nothing waits for the answer now
            answer.cancel()
            raise

    def servers(self) -> list[LocalBroker]:
        """See `Backend.servers`."""
        return []

    def count(self) -> int:
        """See `Backend.count`."""
        return 1


class TestBroker(LocalBroker):
    """A broker that `muster test-broker` runs."""

    COMMAND = "test-broker"
    __test__ = False  # pytest would collect a class with this name

    def launch(self) -> None:
        """Start it without waiting, and import the clients in the meantime: a second processor may be free."""
        super().launch()
        _ = muster.Admin, muster.Consumer, muster.Producer

    def control(self) -> tuple[str, str]:
        """The address of its control port, and the token."""
        line = _CONTROL.search(self.log)
        if line is None:
            raise BrokerAwayError(f"{self.name} has not opened its control port; its last output:\n{self.last_words()}")
        return line[1], line[2]

    def is_ready(self) -> bool:
        """Whether it has reported that it is ready."""
        return _CONTROL.search(self.log) is not None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """`Control.ask` over the control port."""
        if self.is_frozen:
            raise MusterError(f"{self.name} is frozen and cannot answer: thaw it first")
        address, token = self.control()
        data = None if body is None else json.dumps(body, default=_not_json).encode()
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://{address}/{path.lstrip('/')}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except (OSError, HTTPException) as error:
            raise BrokerAwayError(f"{self.name} does not answer on its control port: {error}") from None


def _not_json(value: object) -> object:
    raise MusterError(f"{value!r} cannot be sent to a broker: use text, numbers, or lists of these")


class BrokerProcesses:
    """One broker in a process of its own, or several with their ZooKeeper, from `start` to `stop`."""

    def __init__(self, folder: Path, settings: Mapping[str, object], brokers: int) -> None:
        self._whole: TestBroker | LocalCluster
        if brokers == 1:
            self._whole = TestBroker(folder, settings=settings)
        else:
            self._whole = LocalCluster(folder, brokers, settings=settings, fsync=False, kind=TestBroker)
        self.bootstrap = ""

    def start(self) -> None:
        """Start them. Returns when all accept connections."""
        self._whole.__enter__()
        self.bootstrap = self._whole.bootstrap

    def stop(self) -> None:
        """Stop them. Returns when all have stopped."""
        self._whole.__exit__(None, None, None)

    def servers(self) -> list[LocalBroker]:
        """See `Backend.servers`."""
        return [self._whole] if isinstance(self._whole, TestBroker) else list(self._whole.brokers.values())

    def count(self) -> int:
        """See `Backend.count`."""
        return len(self.servers())

    def ask(self, broker: int, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """See `Backend.ask`."""
        server = self.servers()[broker]
        assert isinstance(server, TestBroker)
        return server.ask(method, path, body)


def start_backend(
    block: ExitStack, *, brokers: int, in_process: bool, settings: Mapping[str, object], folder: Path | None, seed: int
) -> BrokerThread | BrokerProcesses:
    """Start brokers that run until a block ends. Without `folder`, their data are in a temporary one."""
    if folder is None:
        folder = Path(block.enter_context(tempfile.TemporaryDirectory(prefix="muster-")))
    backend: BrokerThread | BrokerProcesses
    if in_process:
        if brokers != 1:
            raise MusterError("several brokers run in processes of their own: leave in_process out")
        backend = BrokerThread(folder, settings, seed)
    else:
        backend = BrokerProcesses(folder, settings, brokers)
    backend.start()
    block.callback(backend.stop)
    return backend
