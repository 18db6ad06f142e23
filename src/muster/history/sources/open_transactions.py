"""Where read_committed consumers have to wait: partitions whose last stable offset is before their end, and the
transactions that hold it there.

The producers of a partition are looked up only if the two differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from muster.client.admin.admin import Admin
from muster.client.core.admin.partitions import ProducerState
from muster.client.core.admin.transactions import HangingTransaction, hanging_transactions, open_transactions
from muster.errors import KafkaError, MusterError
from muster.history.model import OpenTransaction
from muster.history.model import TopicPartition as PlainPartition
from muster.history.sources.cluster_limits import max_transaction_timeout_ms
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP

LATE_BUFFER_MS = 300_000
"""After `transaction.max.timeout.ms`: the coordinator has had time to abort what has timed out (KIP-664)."""


def oldest_open(
    admin: Admin, ends: Mapping[PlainPartition, int], now_ms: int, warnings: ReaderWarnings
) -> dict[PlainPartition, OpenTransaction]:
    """The oldest open transaction of each of these partitions, if it has any. `ends` are the high watermarks."""
    try:
        stable = _held_back(admin, {TopicPartition(*place): end for place, end in ends.items()})
        return _oldest(admin, stable, now_ms) if stable else {}
    except MusterError as error:  # a broker that is too old, denies access or does not answer: report the rest
        warnings.add(f"whether transactions are open is not known: {error}")
        return {}


def _held_back(admin: Admin, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The last stable offsets that are before the ends of their partitions."""
    if not ends:
        return {}
    times = dict.fromkeys(sorted(ends), LATEST_TIMESTAMP)
    answers = admin.list_offsets(times, isolation_level="read_committed", raise_errors=False)
    return {
        place: answer.offset
        for place, answer in answers.items()
        if isinstance(answer, OffsetAndTimestamp) and answer.offset < ends[place]
    }


def _oldest(admin: Admin, stable: dict[TopicPartition, int], now_ms: int) -> dict[PlainPartition, OpenTransaction]:
    answers = admin.describe_producers(list(stable), raise_errors=False)
    first = oldest_of({place: found for place, found in answers.items() if not isinstance(found, KafkaError)}, now_ms)
    if not first:
        return {}
    listed = admin.list_transactions(producer_ids=sorted({each.producer_id for each in first.values()}))
    described = admin.describe_transactions([each.transactional_id for each in listed], raise_errors=False)
    unknown = hanging_transactions(first.values(), listed, described)
    return with_verdict(first, stable, unknown, max_transaction_timeout_ms(admin))


def oldest_of(
    producers: Mapping[TopicPartition, Iterable[ProducerState]], now_ms: int
) -> dict[TopicPartition, HangingTransaction]:
    """The first of the open transactions of each partition."""
    first: dict[TopicPartition, HangingTransaction] = {}
    for each in open_transactions(producers, -now_ms, now_ms):
        place = TopicPartition(each.topic, each.partition)
        if place not in first or each.start_offset < first[place].start_offset:
            first[place] = each
    return first


def with_verdict(
    first: Mapping[TopicPartition, HangingTransaction],
    stable: Mapping[TopicPartition, int],
    unknown: Collection[HangingTransaction],
    max_timeout_ms: int,
) -> dict[PlainPartition, OpenTransaction]:
    """The oldest open transactions, and whether they hang. One in `unknown`, which its coordinator does not know,
    hangs if the coordinator would have aborted it by now."""
    late_ms = max_timeout_ms + LATE_BUFFER_MS
    return {
        place: OpenTransaction(
            stable[place],
            each.start_offset,
            each.producer_id,
            each.producer_epoch,
            each.transactional_id,
            each.last_timestamp,
            each in unknown and each.duration_ms > late_ms,
        )
        for place, each in first.items()
    }
