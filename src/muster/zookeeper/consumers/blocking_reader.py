"""What the blocking consumers of schemes 1 and 2 share: an `AsyncAssignedReader` on a loop thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from muster.client.consumer.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS
from muster.client.consumer.blocking import BlockingReader
from muster.client.core.checks import check_timeout
from muster.client.net.loop import LoopThread
from muster.errors import ClosedError, IllegalStateError, MusterError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from muster.zookeeper.consumers.assigned_reader import AsyncAssignedReader


async def call_in_thread(function: Callable[..., Any], *arguments: Any) -> None:
    """Call the user's function in a separate thread, from which it may call the consumer, and raise its exception. A
    BaseException such as that of sys.exit() would end the loop's thread, and is raised as the cause of a
    MusterError."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()
    context = copy_context()

    def settle(found: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(found)  # not as its exception: a future refuses StopIteration

    def call() -> None:
        found: BaseException | None = None
        try:
            result = context.run(function, *arguments)
            if asyncio.iscoroutine(result):
                result.close()
                raise IllegalStateError("a listener of a blocking consumer has plain functions, not coroutines")
        except BaseException as error:
            found = error
        with suppress(RuntimeError):  # the listener has closed the consumer
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=call, name="muster-listener", daemon=True).start()
    found = await ended
    if found is not None and not isinstance(found, Exception):
        raise MusterError(f"the listener ended with {found!r}") from found
    if found is not None:
        raise found


class AssignedReader(BlockingReader):
    """A blocking consumer. It is a member of its group from the first call that waits until `close`, in a background
    thread. Only one thread may use it at a time, except for `close` and `wakeup`. The effects of `seek` and `pause`
    last until the next rebalance."""

    _consumer: AsyncAssignedReader

    def __init__(self, consumer: AsyncAssignedReader, thread_name: str) -> None:
        self._consumer = consumer
        consumer._call_user = call_in_thread
        super().__init__(LoopThread(thread_name, consumer._hang_up), consumer._take_back)

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, and leave the group. Records returned to this thread count as processed."""
        self._close(check_timeout(timeout_ms), handled=True)

    # --- reading -----------------------------------------------------------------------------------------------------

    def __next__(self) -> ConsumerRecord:
        try:
            return self._read(self._consumer._next)
        except ClosedError:
            raise StopIteration from None

    # --- committing --------------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return self._run(self._consumer.committed, partitions)
