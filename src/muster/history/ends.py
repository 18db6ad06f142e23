"""Where the logs of what groups have committed begin and end now, and what lies between: samples for the lag.

Offsets are no records: transaction markers take some, compaction leaves holes. So what is behind a committed offset is
counted by the headers of its batches, as far as a bounded look goes; where that does not reach the end, only offsets
are known. What is read is thrown away: nothing is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from muster.arrow import Fetched
from muster.client.admin import Admin
from muster.client.core.admin import TopicDescription
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import DataLossError, FetchSettings, RangeReader
from muster.errors import CorruptRecordError, KafkaConnectionError, KafkaError
from muster.history.engine import CommittedOf
from muster.history.model import LagSample
from muster.history.model import TopicPartition as Name
from muster.history.remarks import Remarks
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.compression import Buffer
from muster.protocol.record_batch import BatchHeader, check_batch, iter_headers, read_records

LOOK_BYTES = 1 << 20
"""How much of one partition is looked at for one group."""
_LOOKS = 400
"""How many such looks there are at most."""
_WIDTH = 4
_PATIENCE_S = 10.0
_NOTHING = pa.RecordBatch.from_pydict({})


class _Ends(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Look:
    """What is to be counted: records of a partition between two offsets."""

    group: str
    place: TopicPartition
    ends: _Ends
    first: int


def lag_samples(
    admin: Admin, bootstrap: tuple[str, ...], committed: CommittedOf, at_ms: int, remarks: Remarks
) -> list[LagSample]:
    """A sample for each partition that a group has committed, as the cluster is now."""
    names = {name for places in committed.values() for name in places}
    ends = _ends(admin, names, remarks)
    looks = [
        _Look(group, TopicPartition(*name), ends[name], max(position.offset, ends[name].start))
        for group, places in sorted(committed.items())
        for name, position in sorted(places.items())
        if name in ends
    ]
    behind = [look for look in looks if look.first < look.ends.end]
    if len(behind) > _LOOKS:
        remarks.add(f"the lag of {len(behind) - _LOOKS} partitions is told in offsets, which may be more than records")
    settings = FetchSettings(
        bootstrap, "muster-history", fail_on_data_loss=True, timeout_s=_PATIENCE_S, max_bytes=LOOK_BYTES
    )
    counted = _count_all(settings, behind[:_LOOKS])
    return [_sample(look, counted.get(look), at_ms) for look in looks]


def _sample(look: _Look, counted: tuple[int | None, int | None] | None, at_ms: int) -> LagSample:
    records, oldest_ms = counted or (0 if look.first >= look.ends.end else None, None)
    place, ends = look.place, look.ends
    return LagSample(at_ms, look.group, place.topic, place.partition, ends.start, ends.end, records, oldest_ms)


def _ends(admin: Admin, names: Iterable[Name], remarks: Remarks) -> dict[Name, _Ends]:
    topics = admin.describe_topics(sorted({topic for topic, _ in names})) if names else {}
    led = {
        TopicPartition(name, part.partition)
        for name, topic in topics.items()
        if isinstance(topic, TopicDescription)
        for part in topic.partitions
        if part.leader_id >= 0
    }
    for name, topic in sorted(topics.items()):
        if isinstance(topic, KafkaError):
            remarks.add(f"the lag in topic {name} is not known: {topic.code.name}")
    places = [place for place in sorted(TopicPartition(*name) for name in names) if place in led]
    starts = admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
    found: dict[Name, _Ends] = {}
    for place in places:
        start, end = starts[place], ends[place]
        if isinstance(start, OffsetAndTimestamp) and isinstance(end, OffsetAndTimestamp):
            found[place.topic, place.partition] = _Ends(start.offset, end.offset)
        else:
            remarks.add(f"the lag in {place} is not known: its ends cannot be had")
    return found


def _count_all(settings: FetchSettings, looks: list[_Look]) -> dict[_Look, tuple[int | None, int | None]]:
    def some(first: int) -> dict[_Look, tuple[int | None, int | None]]:
        try:
            return {look: _count(settings, look) for look in looks[first::_WIDTH]}
        finally:
            disconnect()

    with ThreadPoolExecutor(_WIDTH, thread_name_prefix="muster-history") as pool:
        found: dict[_Look, tuple[int | None, int | None]] = {}
        for part in pool.map(some, range(min(_WIDTH, len(looks)))):
            found |= part
    return found


def _count(settings: FetchSettings, look: _Look) -> tuple[int | None, int | None]:
    """How many records there are, and the time of the first: None where the look does not reach."""
    reader = _Counting(settings, look.place, look.first, look.ends.end)
    try:
        for _ in reader.batches():
            if reader.counter.size >= LOOK_BYTES:
                break
    except (DataLossError, CorruptRecordError, KafkaError, KafkaConnectionError):
        return None, reader.counter.oldest_ms
    counter = reader.counter
    return (counter.records if counter.next_offset >= look.ends.end else None), counter.oldest_ms


class _Counter:
    """Takes the place of a decoder: counts the records from an offset on."""

    def __init__(self) -> None:
        self.records = self.size = self.next_offset = 0
        self.oldest_ms: int | None = None

    def decode(self, buffer: Buffer, start: int, end: int, aborted: object = None, check_crcs: bool = True) -> Fetched:
        """Count what is fetched; there is nothing to hand out but a sign that something came."""
        following = start
        for position, header in iter_headers(buffer):
            if header.base_offset >= end:
                following = max(following, end)
                break
            if check_crcs:
                check_batch(buffer, position, header)
            following = max(following, header.next_offset)
            if header.last_offset >= start and header.record_count and not header.is_control:
                self._count(buffer, position, header, start, end)
        self.size += len(buffer)
        self.next_offset = following
        return Fetched(iter([_NOTHING]), following)

    def _count(self, buffer: Buffer, position: int, header: BatchHeader, start: int, end: int) -> None:
        if header.base_offset >= start and header.last_offset < end and self.oldest_ms is not None:
            self.records += header.record_count
            return
        wanted = [record for record in read_records(buffer, position, header) if start <= record.offset < end]
        self.records += len(wanted)
        if wanted and self.oldest_ms is None:
            self.oldest_ms = wanted[0].timestamp if wanted[0].timestamp >= 0 else None


class _Counting(RangeReader):
    """Counts the records of a range instead of decoding them."""

    def __init__(self, settings: FetchSettings, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(settings, partition, start, end)
        self.counter = _Counter()
        self._decoder = self.counter  # type: ignore[assignment]
