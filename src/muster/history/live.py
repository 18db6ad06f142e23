"""A running cluster as a source of the history: every partition of `__consumer_offsets` from where its log begins to
where it ended when it was asked.

It reads as `assign` does: it is no member of a group, and commits nothing. Up to the last stable offset, and without
what was aborted: offsets that were committed in a transaction count once it is committed, as for the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from muster.client.admin import Admin
from muster.client.core.admin import TopicDescription
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import CorruptRecordError, ErrorCode, KafkaConnectionError, KafkaError, MusterError
from muster.history.raw import DECODED, to_raw
from muster.history.remarks import Remarks
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED

_REFUSALS = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class RefusedError(MusterError):
    """The cluster does not let the topic be read, or has none: only its admin API can be asked then."""


@dataclass(frozen=True, slots=True)
class _Span:
    """What there is to read of a partition."""

    start: int
    end: int


class LiveTopic:
    """The partitions of one topic of a cluster, as they were when it was asked."""

    def __init__(
        self, admin: Admin, bootstrap: tuple[str, ...], topic: str, remarks: Remarks, timeout_s: float = 30.0
    ) -> None:
        """Raises RefusedError, and KafkaTimeoutError or KafkaConnectionError where no broker answers."""
        self._topic = topic
        self._remarks = remarks
        found = admin.describe_topics([topic])[topic]
        if isinstance(found, KafkaError):
            raise _refused(found, topic)
        self._topic_id = found.topic_id
        self._spans = _spans(admin, found, remarks)
        self._settings = FetchSettings(
            bootstrap,
            client_id="muster-history",
            columns=DECODED,
            isolation_level=READ_COMMITTED,
            fail_on_data_loss=False,
            timeout_s=timeout_s,
            max_bytes=4 << 20,
        )

    @property
    def records(self) -> dict[int, int]:
        """How many offsets each partition has, which is at least as many records."""
        return {partition: span.end - span.start for partition, span in sorted(self._spans.items())}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """One partition's records, in order of offset, as batches of schema RAW. May be called from any thread.

        What is gone meanwhile, or cannot be fetched, is remarked.

        Raises:
            RefusedError: the topic may not be read.
        """
        span = self._spans[partition]
        place = TopicPartition(self._topic, partition)
        reader = _Reader(self._settings, place, span.start, span.end, self._topic_id)
        reader.remarks = self._remarks
        try:
            for batch in reader.batches():
                yield to_raw(batch, partition)
        except KafkaConnectionError as error:
            self._remarks.add(f"{place} was not read to its end, so rows of its groups are missing: {error}")
        except CorruptRecordError as error:
            self._remarks.add(f"{place} was not read behind damage: {error}")
        except KafkaError as error:
            raise _refused(error, self._topic) from error
        finally:
            disconnect()


class _Reader(RangeReader):
    """A reader that goes on behind what is gone, and says so to people rather than to the log."""

    remarks: Remarks

    def _lose(self, what: str, position: int) -> None:
        self.remarks.add(what)
        self._position = position
        self._retry.reset()

    def _lose_damaged(self, what: str, error: CorruptRecordError) -> None:
        self.remarks.add(f"{what}; they are passed over")


def _refused(error: KafkaError, topic: str) -> MusterError:
    if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return RefusedError(f"the cluster does not let {topic} be read ({error.code.name})")
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return RefusedError(f"the cluster has no topic {topic} yet, or does not show it")
    return error


def _spans(admin: Admin, topic: TopicDescription, remarks: Remarks) -> dict[int, _Span]:
    places = []
    for part in topic.partitions:
        if part.leader_id >= 0:
            places.append(TopicPartition(topic.name, part.partition))
        else:
            remarks.add(f"partition {part.partition} of {topic.name} has no leader: its groups are missing")
    starts = admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP), isolation_level="read_committed")
    found: dict[int, _Span] = {}
    for place in places:
        start, end = starts[place], ends[place]
        for answer in (start, end):
            if isinstance(answer, KafkaError) and answer.code in _REFUSALS:
                raise _refused(answer, topic.name)
        if start is None or end is None or isinstance(start, KafkaError) or isinstance(end, KafkaError):
            remarks.add(f"{place} is missing: its ends are not known ({start if start is not None else end})")
        elif end.offset > start.offset:
            found[place.partition] = _Span(start.offset, end.offset)
    return found
