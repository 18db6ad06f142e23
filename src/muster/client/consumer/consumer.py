"""`Consumer`: the blocking consumer.

It runs an `AsyncConsumer` in a loop thread. Each call is passed to that thread, and the caller waits for it.
Heartbeats, fetches and joins continue in the loop thread while the caller does other things. The user's callbacks run
in the caller's thread, inside the call, as in Kafka's own client. Records are handed over in batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from muster.client.consumer.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS, AsyncConsumer, OffsetsToCommit
from muster.client.consumer.blocking import BlockingReader, blocking, in_loop
from muster.client.core.checks import check_timeout
from muster.client.hooks import ConsumerHooks
from muster.client.net.loop import LoopThread, in_caller
from muster.client.serde import DeserializerLike
from muster.errors import ClosedError
from muster.model import (
    ConsumerRecord,
)

if TYPE_CHECKING:
    from muster.client.typed_settings import ConsumerKeywords


class Consumer(BlockingReader):
    """Reads records, alone or as a member of a group. `AsyncConsumer` documents each method.

        with Consumer(bootstrap_servers="localhost:9092", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    One thread uses it at a time, except for `close` and `wakeup`, which end another thread's poll. After a fork the
    child process must create its own consumer.
    """

    _consumer: AsyncConsumer

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_deserializer: DeserializerLike | None = None,
        value_deserializer: DeserializerLike | None = None,
        hooks: Sequence[ConsumerHooks] = (),
        **more: Unpack[ConsumerKeywords],
    ) -> None:
        self._consumer = AsyncConsumer(
            settings,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            hooks=hooks,
            **more,
        )
        self._consumer._pump.call_user = in_caller
        self._consumer._closed_by_loop = True
        self._handout = self._consumer._handout
        thread = LoopThread("muster-consumer", self._consumer._close_abruptly)
        super().__init__(thread, self._handout.take_back)

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, call the listener, leave the group, close the connections.

        Calling `close` means that all records handed out are handled: they are committed. Records that iteration has
        not reached are not. If a thread other than the one that got the last records calls `close`, or an exception
        leaves `with`, these are not committed.
        """
        self._close(check_timeout(timeout_ms), handled=True)

    # --- subscribing -------------------------------------------------------------------------------------------------

    subscribe = in_loop(AsyncConsumer.subscribe)
    assign = in_loop(AsyncConsumer.assign)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)
    subscription = in_loop(AsyncConsumer.subscription)

    # --- reading -----------------------------------------------------------------------------------------------------

    def __next__(self) -> ConsumerRecord:
        if self._last_read.returned and not self._thread.forked:
            record = self._handout.next()
            if record is not None:
                return record
        return self._next_of_more()

    def _next_of_more(self) -> ConsumerRecord:
        while True:
            try:
                self._read(self._consumer._fill)
            except ClosedError:
                raise StopIteration from None
            record = self._handout.next()
            if record is not None:
                return record

    current_lag = in_loop(AsyncConsumer.current_lag)

    # --- committing --------------------------------------------------------------------------------------------------

    commit_async = in_loop(AsyncConsumer.commit_async)

    def store_offsets(self, offsets: OffsetsToCommit | ConsumerRecord) -> None:
        """Store offsets for the next commit, or the offset after a handled record: with `enable_auto_offset_store` off,
        nothing else is committed.
        """
        self._consumer.store_offsets(offsets)  # called for each record: not in the loop's thread

    handled = in_loop(AsyncConsumer.handled)
    committed = blocking(AsyncConsumer.committed)

    # --- queries -----------------------------------------------------------------------------------------------------

    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    partitions_for = blocking(AsyncConsumer.partitions_for)
    list_topics = blocking(AsyncConsumer.list_topics)
    metrics = in_loop(AsyncConsumer.metrics)

    # --- the group ---------------------------------------------------------------------------------------------------

    group_metadata = in_loop(AsyncConsumer.group_metadata)
    enforce_rebalance = in_loop(AsyncConsumer.enforce_rebalance)
