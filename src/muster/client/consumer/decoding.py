"""Hands out deserialized records.

Theory. Records stay as fetched until they are handed out, so a record that is taken back, or whose deserializer failed,
is deserialized again. Iteration deserializes one record before its mark moves (`handout.py`): if that fails, the same
record is the next one again.

A poll deserializes everything that it is about to return, in the caller's thread (`PollDecoding`). A partition stops
before a record that fails, and its position returns there; the other partitions continue. The poll raises the error if
it has nothing else to return; otherwise the next one does, as in Kafka's client. Then the partition is fetched again in
its turn: it does not keep the others waiting, and nothing after the record is handed out until the record is, or until
a `seek`.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.client.consumer.handout import Handout, Records
from muster.client.core.subscription_state import PartitionState, SubscriptionState
from muster.errors import RecordDeserializationError
from muster.model import ConsumerRecord, TopicPartition

Deserialize = Callable[[ConsumerRecord], ConsumerRecord]


class PollDecoding:
    """Deserializes the records of one poll. Called once."""

    def __init__(self, raw: Records, read: Deserialize) -> None:
        self._raw = raw
        self._read = read
        self.records: Records = {}
        self.failures: list[RecordDeserializationError] = []
        """At most one error for each partition."""

    def __bool__(self) -> bool:
        return bool(self._raw)

    def __call__(self) -> None:
        for partition, records in self._raw.items():
            done: list[ConsumerRecord] = []
            try:
                for record in records:
                    done.append(self._read(record))  # noqa: PERF401 (keeps those before a failure)
            except RecordDeserializationError as error:
                self.failures.append(error)
            if done:
                self.records[partition] = done


class DecodingHandout(Handout):
    """Hands records out as `read` returns them."""

    def __init__(self, subscription: SubscriptionState, read: Deserialize) -> None:
        super().__init__(subscription)
        self._read = read
        self._failed: tuple[PartitionState, RecordDeserializationError] | None = None
        """What the next poll must raise."""

    def next(self) -> ConsumerRecord | None:
        """The next record, for iteration.

        Raises:
            RecordDeserializationError: it cannot be deserialized, and remains the next one.
        """
        run = self._current
        if run is None or not run.has_more:
            run = self._first()
            if run is None:
                return None
        run.handled = run.index
        record = self._read(run.records[run.index])
        run.index += 1  # no call may follow: once the mark has moved, the caller gets the record
        return record

    def raise_failure(self) -> None:
        """Raise the error that the previous poll could not raise."""
        failed, self._failed = self._failed, None
        if failed is not None and _still_fails(*failed):
            raise failed[1]

    def begin(self, limit: int) -> PollDecoding:
        """Hand out up to `limit` records for deserialization."""
        return PollDecoding(self.hand_out(limit), self._read)

    def settle(self, decoding: PollDecoding) -> Records:
        """What a poll returns after decoding.

        Raises:
            RecordDeserializationError: nothing could be deserialized.
        """
        for error in decoding.failures:
            self._go_back(error.partition, error.offset)
        if not decoding.records and decoding.failures:
            raise decoding.failures[0]
        if decoding.failures:
            error = decoding.failures[0]
            state = self._subscription.find(error.partition)
            self._failed = (state, error) if state is not None else None
        return decoding.records

    def _go_back(self, partition: TopicPartition, offset: int) -> None:
        """Let a partition continue at a record that was handed out but did not reach the user. All records that
        were taken from it are in one run, because the core is asked for more only when nothing is left."""
        for run in self._runs:
            index = next((index for index, one in enumerate(run.records) if one.offset == offset), None)
            if run.partition == partition and index is not None:
                position = run.position_before(index)
                run.records, run.size, run.index = run.records[:index], index, index
                if run.state.assigned:
                    self._subscription.seek(partition, position)


def _still_fails(state: PartitionState, error: RecordDeserializationError) -> bool:
    """Whether the position is still at the failed record: not after `seek`, `pause` or a rebalance."""
    return state.assigned and not state.paused and not state.pending_revocation and state.position == error.offset
