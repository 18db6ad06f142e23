"""The testing kit for asyncio: the same methods, awaited.

Each calls the method of the blocking kit in a thread, so that a wait does not block the event loop on which the clients
under test run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from muster.testing.kit import DEFAULT_TIMEOUT_S, Fault, Group, GroupClock, Kafka, Replay

B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")


class _Face(Generic[B]):
    """The asyncio interface of an object of the blocking kit."""

    def __init__(self, blocking: B) -> None:
        self.blocking = blocking
        """The blocking object."""


async def _entered_in_thread(enter: Callable[[], R], leave: Callable[[R], object]) -> R:
    """Call `enter` in a thread. If the task is cancelled meanwhile, `leave` is called after it."""
    entering = asyncio.ensure_future(asyncio.to_thread(enter))
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        await asyncio.wait([entering])
        if entering.exception() is None:
            await asyncio.to_thread(leave, entering.result())
        raise


def _awaited(
    method: Callable[Concatenate[B, P], R],
) -> Callable[Concatenate[_Face[B], P], Coroutine[Any, Any, R]]:
    """The same method as a coroutine function."""

    @wraps(method)
    async def call(self: _Face[B], /, *args: P.args, **more: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.blocking, *args, **more)

    return call


def _entered(
    method: Callable[Concatenate[B, P], AbstractContextManager[R]],
) -> Callable[Concatenate[_Face[B], P], AbstractAsyncContextManager[R]]:
    """The same context manager for `async with`."""

    @wraps(method)
    @asynccontextmanager
    async def enter(self: _Face[B], /, *args: P.args, **more: P.kwargs) -> AsyncIterator[R]:
        block = method(self.blocking, *args, **more)
        value = await _entered_in_thread(block.__enter__, lambda _: block.__exit__(None, None, None))
        try:
            yield value
        except BaseException as error:
            if not await asyncio.to_thread(block.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await asyncio.to_thread(block.__exit__, None, None, None)

    return enter


def _of_fault(
    method: Callable[Concatenate[Kafka, P], Fault],
) -> Callable[Concatenate[_Face[Kafka], P], ComingFault]:
    """The same method; its fault is awaited, or used in `async with`."""

    @wraps(method)
    def call(self: _Face[Kafka], /, *args: P.args, **more: P.kwargs) -> ComingFault:
        return ComingFault(partial(method, self.blocking, *args, **more))

    return call


class AsyncFault(_Face[Fault]):
    """A fault, active until it is removed."""

    @property
    def name(self) -> str:
        """Its name in stories."""
        return self.blocking.name

    async def seen(self) -> int:
        """How many requests it has matched."""
        return await asyncio.to_thread(lambda: self.blocking.seen)

    async def struck(self) -> int:
        """How many times it has struck."""
        return await asyncio.to_thread(lambda: self.blocking.struck)

    async def held(self) -> int:
        """How many requests it is holding."""
        return await asyncio.to_thread(lambda: self.blocking.held)

    release = _awaited(Fault.release)
    remove = _awaited(Fault.remove)
    wait_struck = _awaited(Fault.wait_struck)


class ComingFault(Awaitable[AsyncFault]):
    """A fault that is added when it is awaited, or for an `async with` block."""

    def __init__(self, add: Callable[[], Fault]) -> None:
        self._add = add
        self._fault: AsyncFault

    async def _added(self) -> AsyncFault:
        self._fault = AsyncFault(await _entered_in_thread(self._add, Fault.remove))
        return self._fault

    def __await__(self) -> Generator[Any, None, AsyncFault]:
        return self._added().__await__()

    async def __aenter__(self) -> AsyncFault:
        return await self._added()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fault.remove()


class AsyncGroup(_Face[Group]):
    """A consumer group, of any clients."""

    now = _awaited(Group.now)
    expire = _awaited(Group.expire)
    rebalance = _awaited(Group.rebalance)
    fence = _awaited(Group.fence)
    reload = _awaited(Group.reload)


class AsyncReplay(_Face[Replay]):
    """A recording that is being replayed on a broker."""

    now = _awaited(Replay.now)
    until_over = _awaited(Replay.until_over)

    async def differences(self) -> list[str]:
        """See `Replay.differences`."""
        return await asyncio.to_thread(lambda: self.blocking.differences)


class AsyncGroupClock(_Face[GroupClock]):
    """The groups' clock."""

    advance = _awaited(GroupClock.advance)


class AsyncKafka(_Face[Kafka]):
    """`Kafka` for asyncio: an asynchronous context manager with the same methods, awaited.

        async with muster.testing.AsyncKafka() as kafka:
            topic = await kafka.topic(partitions=2)
            await kafka.until_assigned("billing", members=2)

    A fault can be awaited, or active for a block: `async with kafka.hold("JoinGroup") as fault`. The arguments are
    those of `muster.testing.kafka`. `AsyncKafka.of(kafka)` wraps brokers that are running already.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        folder: Path | str | None = None,
        *,
        brokers: int = 1,
        in_process: bool = False,
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        super().__init__(Kafka(settings, folder, brokers=brokers, in_process=in_process, seed=seed, strict=strict))

    @classmethod
    def of(cls, kafka: Kafka) -> Self:
        """The asyncio interface of running brokers."""
        face = cls.__new__(cls)
        _Face.__init__(face, kafka)
        return face

    async def __aenter__(self) -> Self:
        await _entered_in_thread(self.blocking.__enter__, lambda kafka: kafka.__exit__(None, None, None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.blocking.__exit__, kind, error, trace)

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, for `bootstrap.servers`."""
        return self.blocking.bootstrap

    @property
    def clock(self) -> AsyncGroupClock:
        """The groups' clock."""
        return AsyncGroupClock(self.blocking.clock)

    def group(self, group_id: str) -> AsyncGroup:
        """A group, to inspect or disturb it."""
        return AsyncGroup(self.blocking.group(group_id))

    begin = _awaited(Kafka.begin)
    members = _awaited(Kafka.members)
    clean_up = _awaited(Kafka.clean_up)
    revive = _awaited(Kafka.revive)
    heal = _awaited(Kafka.heal)
    reset = _awaited(Kafka.reset)

    kill = _awaited(Kafka.kill)
    stop = _awaited(Kafka.stop)
    start = _awaited(Kafka.start)
    freeze = _awaited(Kafka.freeze)
    thaw = _awaited(Kafka.thaw)

    topic = _awaited(Kafka.topic)
    produce = _awaited(Kafka.produce)
    recreate = _awaited(Kafka.recreate)
    fence_producer = _awaited(Kafka.fence_producer)
    delete_records = _awaited(Kafka.delete_records)
    records = _awaited(Kafka.records)
    until_records = _awaited(Kafka.until_records)

    until_assigned = _awaited(Kafka.until_assigned)
    until_stable = _awaited(Kafka.until_stable)
    until_committed = _awaited(Kafka.until_committed)
    until_lag_zero = _awaited(Kafka.until_lag_zero)
    until_empty = _awaited(Kafka.until_empty)
    until = _awaited(Kafka.until)

    assert_no_rebalance = _entered(Kafka.assert_no_rebalance)

    fault = _of_fault(Kafka.fault)
    fail = _of_fault(Kafka.fail)
    delay = _of_fault(Kafka.delay)
    hold = _of_fault(Kafka.hold)
    lose_request = _of_fault(Kafka.lose_request)
    lose_answer = _of_fault(Kafka.lose_answer)
    disk = _awaited(Kafka.disk)
    disconnect = _awaited(Kafka.disconnect)
    refuse_connections = _entered(Kafka.refuse_connections)

    record = _entered(Kafka.record)

    @asynccontextmanager
    async def replay(
        self,
        path: Path | str,
        *,
        client: str | None = None,
        group: str | None = None,
        pace: float = 1.0,
        patience_s: float = DEFAULT_TIMEOUT_S,
    ) -> AsyncIterator[AsyncReplay]:
        """See `Kafka.replay`."""
        more = {"client": client, "group": group, "pace": pace, "patience_s": patience_s}
        async with _entered(partial(Kafka.replay, **more))(self, path) as replay:  # type: ignore[arg-type]
            yield AsyncReplay(replay)

    requests = _awaited(Kafka.requests)
    view = _awaited(Kafka.view)
    groups = _awaited(Kafka.groups)
    story = _awaited(Kafka.story)
    account = _awaited(Kafka.account)
