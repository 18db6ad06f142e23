"""A running cluster as a source of the history: every partition of `__consumer_offsets` from its log start to its end
at the time of the request.

It reads like a consumer with `assign`: it joins no group and commits nothing. It reads up to the last stable offset,
without aborted records: offsets committed in a transaction count once it is committed, as for the coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from muster.client.admin.admin import Admin
from muster.client.config import AdminConfig, ClientConfig
from muster.client.core.admin.admin import TopicDescription
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import (
    CorruptRecordError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    MusterError,
    UnsupportedVersionError,
)
from muster.history.sources.log_ends import OffsetBounds, log_bounds
from muster.history.sources.raw_records import DECODER_COLUMNS, to_raw
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED
from muster.protocol.group_partitions import group_partition

_PATIENCE_S = 30.0
"""How long a partition is read without progress."""
_REFUSALS = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig(AdminConfig):
    """The settings of a reader: those of an admin client, and those for fetching."""

    max_partition_fetch_bytes: int = 4 << 20
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True

    def fetching(self) -> FetchSettings:
        """The settings for reading ranges of a log."""
        return FetchSettings(
            self.narrowed(ClientConfig),
            max_bytes=max(self.max_partition_fetch_bytes, 1),
            max_wait_ms=self.fetch_max_wait_ms,
            check_crcs=self.check_crcs,
        )


class TopicRefusedError(MusterError):
    """The topic does not exist, or reading it is not permitted: only the admin API is left."""


class LiveTopic:
    """The partitions of one topic of a cluster, as of the time of the request."""

    def __init__(
        self, admin: Admin, config: ReaderConfig, topic: str, warnings: ReaderWarnings, groups: Collection[str] = ()
    ) -> None:
        """With `groups`, which requires `__consumer_offsets`, only the partitions of these groups are read.

        Raises TopicRefusedError, and KafkaTimeoutError or KafkaConnectionError if no broker answers.
        """
        self._topic = topic
        self._warnings = warnings
        found = admin.describe_topics([topic], raise_errors=False)[topic]
        if isinstance(found, KafkaError):
            raise _refused(found, topic)
        self._topic_id = found.topic_id
        self.is_internal = found.is_internal
        """Whether the topic is internal to the brokers."""
        if groups:
            keep = {group_partition(group, len(found.partitions)) for group in groups}
            found = replace(found, partitions=[part for part in found.partitions if part.partition in keep])
        self._spans = _spans(admin, found, warnings)
        self._settings = replace(
            config.fetching(),
            columns=DECODER_COLUMNS,
            isolation_level=READ_COMMITTED,
            fail_on_data_loss=False,
            timeout_s=_PATIENCE_S,
        )

    @property
    def records(self) -> dict[int, int]:
        """The number of offsets in each partition, an upper bound on the number of its records."""
        return {partition: span.end - span.start for partition, span in sorted(self._spans.items())}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """One partition's records, in order of offset, as batches of schema RAW. May be called from any thread.

        Records that have been removed in the meantime, or cannot be fetched, are reported as warnings.

        Raises: TopicRefusedError: the topic does not exist, or reading it is not permitted.
        """
        span = self._spans[partition]
        place = TopicPartition(self._topic, partition)
        reader = _Reader(self._settings, place, span.start, span.end, self._topic_id)
        reader.warnings = self._warnings
        try:
            for batch in reader.batches():
                yield to_raw(batch, partition)
        except KafkaConnectionError as error:
            self._warnings.add(f"{place} was not read to its end, so rows of its groups are missing: {error}")
        except CorruptRecordError as error:
            self._warnings.add(f"{place} was not read beyond a damaged record: {error}")
        except KafkaError as error:
            raise _refused(error, self._topic) from error
        except UnsupportedVersionError as error:  # before Kafka 0.11
            raise TopicRefusedError(f"the brokers are too old to read {self._topic} from them ({error})") from error
        finally:
            disconnect()


class _Reader(RangeReader):
    """A reader that skips lost records, and reports them as warnings instead of in the log."""

    warnings: ReaderWarnings

    def _lose(self, what: str, position: int, *, by_retention: bool = False) -> None:
        self.warnings.add(what)
        self._position = position
        self._retry.reset()

    def _lose_damaged(self, what: str, error: CorruptRecordError) -> None:
        self.warnings.add(f"{what}; they are skipped")


def _refused(error: KafkaError, topic: str) -> MusterError:
    if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicRefusedError(f"not authorized to read {topic} ({error.code.name})")
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return TopicRefusedError(f"topic {topic} does not exist yet, or describing it is not permitted")
    return error


def _spans(admin: Admin, topic: TopicDescription, warnings: ReaderWarnings) -> dict[int, OffsetBounds]:
    for part in topic.partitions:
        if part.leader_id < 0:
            warnings.add(f"partition {part.partition} of {topic.name} has no leader: its groups are missing")
    found: dict[int, OffsetBounds] = {}
    whole = log_bounds(admin, [topic])  # first, so that records written in between do not look like an open transaction
    for place, bounds in sorted(log_bounds(admin, [topic], "read_committed").items()):
        ends = whole.get(place)
        if isinstance(ends, OffsetBounds) and isinstance(bounds, OffsetBounds) and bounds.end < ends.end:
            warnings.add(
                f"{place} is read up to offset {bounds.end}, not to its end at {ends.end}: an open transaction holds "
                "back what all groups have written since"
            )
        if isinstance(bounds, KafkaError):
            if bounds.code in _REFUSALS:
                raise _refused(bounds, topic.name)
            warnings.add(
                f"{place} is missing, and so are its groups: its start and end offsets are not known ({bounds})"
            )
        elif bounds.end > bounds.start:
            found[place.partition] = bounds
    return found
