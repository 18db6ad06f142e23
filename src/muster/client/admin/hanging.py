"""Finds hanging transactions, with the same requests in the same order as `kafka-transactions.sh find-hanging`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.client.admin.admin import Admin
from muster.client.core.admin.transactions import HangingTransaction, hanging_transactions, open_transactions
from muster.errors import KafkaError
from muster.model import TopicPartition

_AT_ONCE = 500
"""Partitions per request."""


class HangingSearch(NamedTuple):
    """The transactions that were found, and why some partitions could not be searched."""

    found: list[HangingTransaction]
    errors: dict[TopicPartition, KafkaError]


def find_hanging(
    admin: Admin, partitions: Sequence[TopicPartition], longer_than_ms: int, now_ms: int, *, broker: int | None = None
) -> HangingSearch:
    """The hanging transactions in these partitions whose last batch is older than `longer_than_ms`, which must be
    more than the longest `transaction.timeout.ms`: until then a transaction may end on its own. With `broker`, its
    replicas are asked instead of the leaders.

    Raises:
        KafkaError: a coordinator did not report its transactions, and any open transaction may be one of them.
    """
    candidates: list[HangingTransaction] = []
    errors: dict[TopicPartition, KafkaError] = {}
    for first in range(0, len(partitions), _AT_ONCE):
        some = partitions[first : first + _AT_ONCE]
        answers = admin.describe_producers(some, broker=broker, raise_errors=False)
        errors |= {place: each for place, each in answers.items() if isinstance(each, KafkaError)}
        producers = {place: each for place, each in answers.items() if not isinstance(each, KafkaError)}
        candidates += open_transactions(producers, longer_than_ms, now_ms)
    if not candidates:
        return HangingSearch([], errors)
    listed = admin.list_transactions(producer_ids=sorted({each.producer_id for each in candidates}))
    described = admin.describe_transactions([each.transactional_id for each in listed], raise_errors=False)
    return HangingSearch(hanging_transactions(candidates, listed, described), errors)
