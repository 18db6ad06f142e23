"""A disk whose syncs can be delayed or made to fail, beneath a broker of this process, and calls to its handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from muster.broker import handlers
from muster.broker.broker import Broker
from muster.broker.net.calls import Api, Sliced, at_once
from muster.log import Files
from muster.protocol.primitives import Request, Response


class HeldDisk:
    """Every sync of a segment passes through here. (For a store alone, see `faulty_disk`.)"""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sync = Files.sync
        self._gate = threading.Event()
        self._gate.set()
        self._error: OSError | None = None
        monkeypatch.setattr(Files, "sync", lambda files, fd: self._gated(files, fd))

    def _gated(self, files: Files, descriptor: int) -> None:
        if threading.current_thread() is threading.main_thread():
            self._sync(files, descriptor)  # of the catalogue, by the loop: holding it would block the test
            return
        self._gate.wait()
        if self._error is not None:
            raise self._error
        self._sync(files, descriptor)

    def hold(self) -> None:
        """From now on no sync completes."""
        self._gate.clear()

    def release(self) -> None:
        """The held syncs complete, and all later ones."""
        self._gate.set()

    def fail(self) -> None:
        """The held syncs fail, and all later ones."""
        self._error = OSError(5, "Input/output error")
        self._gate.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDisk]:
    """A disk that a test can hold."""
    held = HeldDisk(monkeypatch)
    yield held
    held.release()


class Asked:
    """A request passed to its handler, without a connection: `answer` is None until it comes."""

    client_host = "/127.0.0.1"
    peer = "127.0.0.1:1"
    on_cancel = None

    @property
    def connection(self) -> Asked:
        """What a handler asks its connection, this object answers itself."""
        return self

    def __init__(
        self,
        broker: Broker | None,
        request: Request[Any],
        version: int,
        client_id: str = "asker",
        apis: Mapping[int, Api] | None = None,
    ) -> None:
        """`apis` are the requests of a listener other than the broker's own."""
        self.version = version
        self.client_id = client_id
        self.blocks = False
        self.answer: Any = None
        self._answered = asyncio.Event()
        if apis is None:
            assert broker is not None
            apis = handlers.table(broker.parts())
        api = apis[type(request).API_KEY]
        answer = api.handle(request, self)  # type: ignore[arg-type]
        if answer is not None:
            self.reply(answer)
        if broker is not None:
            broker._turn_done()  # like the server after the requests of one read

    def reply(self, response: Response | Sliced) -> None:
        """A handler calls this once."""
        assert self.answer is None, "a request is answered twice"
        self.answer = response if isinstance(response, Response) else at_once(response)
        self._answered.set()

    async def answered(self) -> Any:
        """The answer, which must come."""
        await asyncio.wait_for(self._answered.wait(), 300)
        return self.answer
