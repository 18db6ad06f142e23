"""The base of both producers: a core, its driver, and reporting the outcome of each record.

The outcome of each accepted record is reported exactly once: by the broker's answer, a timeout, the close, or, if the
cores' loop ends in any other way, by `_watch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.checks import MAX_INT, check_number, check_text, check_topic
from muster.client.core.produce.accumulator import Completion, OutgoingRecord
from muster.client.core.produce.partitioner import Partitioner
from muster.client.delivery import DeliveryFuture, Headers, Receipt
from muster.client.metrics import Metrics, of_producer
from muster.client.producer.producer_loop import ProducerLoop
from muster.client.serde import Serializers, as_bytes
from muster.clock import wall_clock_ms
from muster.errors import ClosedError, MusterError
from muster.model import RecordMetadata
from muster.protocol.records.record_batch import record_size

log = logging.getLogger("muster.client.producer")

_MAX_TIMESTAMP = 2**63 - 1
_UNSEEN = 1_000

_Future = Future[RecordMetadata] | asyncio.Future[RecordMetadata]


UNCLOSED_MS = 10_000
"""How long a producer that was not closed continues sending at interpreter shutdown, or once it was dropped."""

_INTERRUPTED_MS = 1_000
_FAILED_MS = 5_000


def exit_timeout_ms(error: BaseException | None) -> int | None:
    """How long an exception that leaves `with` may wait for acknowledgements: it must not be delayed for long."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return UNCLOSED_MS
    return _FAILED_MS if isinstance(error, Exception) else _INTERRUPTED_MS


def check_callable(what: str, function: Any) -> None:
    """Raise TypeError if an argument of the caller is neither None nor callable."""
    if function is not None and not callable(function):
        raise TypeError(f"{what} is {function!r}, which cannot be called")


class ProducerEngine(ProducerLoop):
    """Everything but `encode` belongs to the event loop. `on_reported` is called after each round of reports."""

    def __init__(
        self,
        config: ProducerConfig,
        serializers: Serializers,
        partitioner: Partitioner | None,
        on_reported: Callable[[], None],
        *,
        in_callers_loop: bool,
    ) -> None:
        check_callable("partitioner", partitioner)
        super().__init__(config, partitioner)
        self._serializers = serializers or None
        self._on_reported = on_reported
        self._in_callers_loop = in_callers_loop
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failed: list[tuple[_Future, MusterError]] = []
        """Failures that the caller has probably not seen: the record has no callback, and its future was not read."""
        self._failed_besides = 0
        self._giving_up = False

    # --- records -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> OutgoingRecord:
        """Serialize and check a record: an error concerns only its sender. Used from any thread."""
        if topic.__class__ is not str or topic not in self.metadata.topics:  # known topics were checked before
            check_topic(topic)
        if partition is not None:
            partition = check_number("partition", partition, 0, MAX_INT)
        if timestamp_ms is None:
            timestamp_ms = wall_clock_ms()
        else:
            timestamp_ms = check_number("timestamp_ms", timestamp_ms, 0, _MAX_TIMESTAMP)
        pairs = () if headers is None else _pairs(headers)
        if self._serializers is not None:
            more = list(pairs)
            key, value = self._serializers.write(topic, key, value, more)
            pairs = _pairs(more) if more else ()
        key_bytes = None if key is None else as_bytes("key", key)
        value_bytes = as_bytes("value", value)
        size = record_size(key_bytes, value_bytes, pairs)
        if size > self.core.largest_record and (error := self.core.check_size(topic, size)) is not None:
            raise error
        return OutgoingRecord(topic, partition, key_bytes, value_bytes, pairs, timestamp_ms, None, size)

    def take(self, record: OutgoingRecord, now: int) -> None:
        """`append` for a record whose `send` has returned: an error is reported as the record's outcome."""
        try:
            self.append(record, now)
        except BaseException as error:  # a user's partitioner may raise anything
            failure = error if isinstance(error, MusterError) else MusterError(f"the partitioner failed: {error!r}")
            self._report(record.receipt, None, failure)

    def measured(self, taken: int) -> Metrics:
        """This producer's metrics, with this much of its buffer in use. Used from any thread."""
        room = self.config.buffer_memory, taken
        return of_producer(self.config.client_id, self.core.metrics, self.driver, room, self.driver.now())

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start polling the core, in the running event loop."""
        await self.loop.start()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Settle the remaining records when the cores' loop ends with an error, or when the event loop ends."""
        try:
            await self.loop.wait_for(lambda: False)
        except asyncio.CancelledError:
            self._give_up(ClosedError("the producer's event loop has ended"))
            raise
        except Exception as error:
            if not self._is_hurried:
                self._give_up(MusterError(f"the producer failed: {error!r}"))

    async def close(self) -> None:
        """Flush until `hurry` is called, give up the rest, and close the connections. A transaction is not flushed but
        aborted."""
        try:
            await self.end_transactions()
            await self.flush()
        except Exception:
            log.debug("the last flush of a producer failed", exc_info=True)
        finally:
            self._is_hurried = self._giving_up = True
            why = f": {self.metadata.last_error}" if self.metadata.last_error else ""
            self._give_up(ClosedError(f"the producer was closed before the record was acknowledged{why}"))
            await self.loop.close()

    def close_unattended(self, timeout_ms: int) -> None:
        """Close a producer that was dropped; runs in the event loop."""
        self._closing = asyncio.create_task(self._close_and_warn())
        asyncio.get_running_loop().call_later(timeout_ms / 1000, self.hurry)

    async def _close_and_warn(self) -> None:
        await self.close()
        self.warn_of_unseen()

    # --- reporting ---------------------------------------------------------------------------------------------------

    def _give_up(self, error: MusterError) -> None:
        try:
            self.core.abort(error)
        finally:
            self._report_outcomes()

    def _report_outcomes(self) -> None:
        completions = self.core.take_events()
        if not completions:
            return
        for completion in completions:
            for receipt, metadata, error in _outcomes(completion):
                self._report(receipt, metadata, error)
        self._on_reported()

    def _report(self, receipt: _Future | Receipt, metadata: RecordMetadata | None, error: MusterError | None) -> None:
        """Settle a record. If a user's callback raises, the other records are still settled."""
        future = receipt.future if isinstance(receipt, Receipt) else receipt
        try:
            if metadata is not None:
                future.set_result(metadata)
            elif error is not None:
                future.set_exception(error)
                self._on_failed(future, error, isinstance(receipt, Receipt) and receipt.notifies_caller)
        except (InvalidStateError, asyncio.InvalidStateError):
            pass  # the caller has cancelled it, perhaps just now
        except BaseException as raised:  # from a callback of the future
            self._on_raised(raised)
        if isinstance(receipt, Receipt):
            try:
                receipt.on_delivery(metadata, error)
            except BaseException as raised:
                self._on_raised(raised)

    def _on_raised(self, raised: BaseException) -> None:
        log.error("a delivery callback failed", exc_info=raised)
        if self._in_callers_loop and isinstance(raised, KeyboardInterrupt | SystemExit):
            asyncio.get_running_loop().call_soon(_raise, raised)  # raised in the caller's loop, after all are reported

    def _on_failed(self, future: _Future, error: MusterError, notified: bool) -> None:
        # What fails in a transaction is reported by its commit.
        if self.core.transactions is not None or (notified and not self._giving_up):
            if not isinstance(future, DeliveryFuture):
                future.exception()  # otherwise asyncio would log that it was never retrieved
            return
        if len(self._failed) >= _UNSEEN:
            self._failed = [(future, error) for future, error in self._failed if not _is_seen(future)]
        if len(self._failed) < _UNSEEN:
            self._failed.append((future, error))
        else:
            self._failed_besides += 1

    def take_unseen(self) -> MusterError | None:
        """The first unreported failure, with a note of how many there are. Each is returned once."""
        unseen = [(future, error) for future, error in self._failed if not _is_seen(future)]
        for future, _ in unseen:
            future.exception()  # it is reported now
        count = len(unseen) + self._failed_besides if unseen else 0
        self._failed, self._failed_besides = [], 0
        if not unseen:
            return None
        error = unseen[0][1]
        if count > 1:
            error.add_note(f"the first of {count} records that were not delivered")
        return error

    def warn_of_unseen(self) -> None:
        """Log the unreported failures."""
        error = self.take_unseen()
        if error is not None:
            log.warning("records were not delivered: %s", "; ".join([str(error), *getattr(error, "__notes__", ())]))


def _outcomes(completion: Completion) -> Iterator[tuple[Any, RecordMetadata | None, MusterError | None]]:
    topic, partition = completion.partition
    error, base, appended = completion.error, completion.base_offset, completion.log_append_time_ms
    if error is not None:
        for index, receipt in enumerate(completion.receipts):
            yield receipt, None, completion.record_errors.get(index, error)
        return
    offset, step = (base, 1) if base >= 0 else (-1, 0)
    new = tuple.__new__  # the class does the same, but in Python
    for receipt, timestamp in zip(completion.receipts, completion.timestamps, strict=True):
        fields = (topic, partition, offset, appended if appended >= 0 else timestamp)
        yield receipt, new(RecordMetadata, fields), None
        offset += step


def _raise(error: BaseException) -> None:
    raise error


def _is_seen(future: _Future) -> bool:
    if isinstance(future, DeliveryFuture):
        return future.seen
    return not getattr(future, "_log_traceback", False)  # asyncio's own flag


def _pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    items: Any = headers.items() if isinstance(headers, Mapping) else headers
    try:
        pairs: list[tuple[Any, Any]] = [(name, content) for name, content in items]
    except (TypeError, ValueError):
        raise TypeError(f"headers are {headers!r}, neither a mapping nor pairs of a name and bytes") from None
    for index, (name, content) in enumerate(pairs):
        if not isinstance(name, str):
            raise TypeError(f"a header's name is {name!r}, not str")
        check_text("a header's name", name)
        if isinstance(content, bytearray | memoryview):
            pairs[index] = name, bytes(content)
        elif content is not None and not isinstance(content, bytes):
            raise TypeError(f"the header {name!r} is {type(content).__name__}, not bytes: encode it")
    return pairs
