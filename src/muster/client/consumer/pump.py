"""What both faces of a consumer share: polling the core, the user's callbacks, raising the core's errors, waiting."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from muster.client.consumer.listener import RebalanceListener
from muster.client.core.checks import check_timeout
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import CallbackKind, Fatal, RebalanceCallback
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ErrorCode, KafkaError, MusterError, WakeupError
from muster.model import OffsetAndMetadata, TopicPartition

log = logging.getLogger("muster.client.consumer")

T = TypeVar("T")

Offsets = dict[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, MusterError | None], Any]


async def call_here(function: Callable[..., Any], *arguments: Any) -> None:
    """Call the user's function in this task; it may be a coroutine."""
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


class _UserCall:
    """One call of the user's code. If an interrupt comes before it starts, the call is made later."""

    __slots__ = ("arguments", "begun", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.begun = False

    def __call__(self) -> Any:
        self.begun = True
        return self.function(*self.arguments)


class ConsumerPump:
    """Runs one consumer core on the running event loop. `call_user` calls the user's functions."""

    def __init__(self, core: ConsumerCore) -> None:
        self.core = core
        self.config = core.config
        self.driver = Driver(core.config, core.metadata)
        self.loop = CoreLoop(self.driver, [core.metadata, core], self._on_turn)
        self.listener: RebalanceListener | None = None
        self.call_user: Callable[..., Awaitable[None]] = call_here
        self.woken = False
        """Whether the user has called `wakeup`, and no call has raised its error yet."""
        self.in_callback = False
        """Whether the user's code is running in a callback."""
        self._left = asyncio.Event()
        """Set when the last `leave` has finished."""
        self._left.set()
        self._completed: deque[_UserCall] = deque()
        """The callbacks of finished commits, in the order of the commits."""

    # --- polling -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Let the core do what is due now, not in the loop's next round: the caller handles its events next."""
        self.driver.dispatch(self.core.poll(self.driver.now()))
        self.loop.wakeup()

    def _on_turn(self, now: int) -> None:
        for event in self.core.take_events(for_user=False):
            self.loop.attend(event, log)

    @property
    def has_news(self) -> bool:
        """Whether there is something for a poll to handle."""
        return bool(self.core.events or self._completed or self.core.has_records)

    # --- the user's callbacks ----------------------------------------------------------------------------------------

    async def handle_events(self) -> bool:
        """Run the listener for rebalances, raise the core's errors. Returns whether a listener was run."""
        ran = False
        while self.core.events:
            event = self.core.events.pop(0)
            if isinstance(event, Fatal):
                raise event.error
            if isinstance(event, RebalanceCallback):
                ran = True
                await self._call_listener(event)
            else:
                self.loop.attend(event, log)
        return ran

    async def _call_listener(self, event: RebalanceCallback) -> None:
        call = _UserCall(self._method(event.kind), list(event.partitions))
        try:
            await self._call_user(call)
        finally:
            if call.begun:
                self.core.callback_done(event.token, self.driver.now())
                self.loop.wakeup()
            else:
                self.core.events.insert(0, event)

    def _method(self, kind: CallbackKind) -> Callable[[list[TopicPartition]], Any]:
        listener = RebalanceListener() if self.listener is None else self.listener
        return {
            CallbackKind.ASSIGNED: listener.on_partitions_assigned,
            CallbackKind.REVOKED: listener.on_partitions_revoked,
            CallbackKind.LOST: listener.on_partitions_lost,
        }[kind]

    async def _call_user(self, call: _UserCall) -> None:
        before, self.in_callback = self.in_callback, True
        try:
            await self.call_user(call)
        finally:
            self.in_callback = before

    def commit_ended(self, callback: CommitCallback | None, offsets: Offsets, error: MusterError | None) -> None:
        """An asynchronous commit has finished: its callback is due at the user's next call."""
        if callback is not None:
            self._completed.append(_UserCall(callback, offsets, error))
        elif error is not None:
            log.error("offsets of group %s were not committed: %s", self.config.group_id, error)
        if isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_INSTANCE_ID:
            self.core.events.append(Fatal(error))

    async def run_commit_callbacks(self) -> None:
        """Run the callbacks that are due, in the order of the commits."""
        while self._completed:
            call = self._completed[0]
            if call.begun:  # here, or in a call from inside the callback
                self._completed.popleft()
            else:
                await self._call_user(call)

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, until: int) -> None:
        """Give up all partitions, call the listener, and leave the group. Then raise what the listener raised."""
        left, before = asyncio.Event(), self._left
        has_left = not self.core.subscription.group_managed
        self.core.unsubscribe(self.driver.now(), left.set, reason)
        if has_left and not before.is_set():
            left = before  # an interrupt ended the wait for LeaveGroup, which is in progress
        self._left = left
        raised: Exception | None = None
        while not left.is_set():
            self.turn()
            self._put_errors_aside()
            try:
                await self.handle_events()
            except Exception as error:  # from the listener: the member leaves its group regardless
                raised = raised or error
            if not await self.wait(lambda: left.is_set() or bool(self.core.events), until):
                break
        if raised is not None:
            raise raised

    def _put_errors_aside(self) -> None:
        """Log the errors that the next poll would have raised: they must not keep the consumer from leaving."""
        for event in [event for event in self.core.events if isinstance(event, Fatal)]:
            self.core.events.remove(event)
            log.warning("%s", event.error)

    # --- errors and waiting ------------------------------------------------------------------------------------------

    @property
    def has_fatal(self) -> bool:
        """Whether there is an error for the user."""
        return self.core.events.has_fatal

    def raise_fatal(self) -> None:
        """Raise the first error for the user, if there is one."""
        for event in list(self.core.events):
            if isinstance(event, Fatal):
                self.core.events.remove(event)
                raise event.error

    def until(self, timeout_ms: int | None) -> int:
        """The time at which a call ends: after `timeout_ms`, or `default_api_timeout_ms` if that is None."""
        within_ms = self.config.default_api_timeout_ms if timeout_ms is None else check_timeout(timeout_ms)
        return self.driver.now() + within_ms

    async def wait(self, predicate: Callable[[], bool], until: int) -> bool:
        """Wait until the predicate holds. Returns False if it does not by `until`."""
        remaining = until - self.driver.now()
        if remaining <= 0:
            return predicate()
        return await self.loop.wait_for(predicate, remaining)

    async def wait_awake(self, predicate: Callable[[], bool], until: int | None) -> bool:
        """`wait` for the user, whose `wakeup` ends it: if the predicate does not hold, this raises WakeupError."""
        if predicate():
            return True
        if not self.woken:
            if until is None:
                await self.loop.wait_for(lambda: self.woken or predicate())
            else:
                await self.wait(lambda: self.woken or predicate(), until)
        if predicate():
            return True
        self.raise_wakeup()
        return False

    def raise_wakeup(self) -> None:
        """Raise the pending WakeupError, if there is one."""
        if self.woken:
            self.woken = False
            raise WakeupError("wakeup() was called")

    async def outcome(self, future: asyncio.Future[T]) -> T:
        """Wait for a future that a callback of the core settles."""
        await self.wait_awake(future.done, None)
        return future.result()


def settle(outcome: asyncio.Future[Any], result: Any, now: int) -> None:
    """A callback for the core that settles a future."""
    if not outcome.done():
        outcome.set_result(result)
