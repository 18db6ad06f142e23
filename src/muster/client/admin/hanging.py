"""Finding transactions that hang, with the requests and in the order of `kafka-transactions.sh find-hanging`."""

from __future__ import annotations

from collections.abc import Sequence

from muster.client.admin.admin import Admin
from muster.client.core.admin.transactions import HangingTransaction, hanging_transactions, open_transactions
from muster.model import TopicPartition

_AT_ONCE = 500
"""Partitions in one request."""


def find_hanging(
    admin: Admin, partitions: Sequence[TopicPartition], longer_than_ms: int, now_ms: int, *, broker: int | None = None
) -> list[HangingTransaction]:
    """The transactions that hang in these partitions and whose last batch is older than `longer_than_ms`, which must be
    more than the longest `transaction.timeout.ms`: until then a transaction may end by itself. `broker` asks a replica
    there instead of the leaders.

    Raises:
        AdminError: a partition, or a transactional id, cannot be described.
    """
    candidates: list[HangingTransaction] = []
    for first in range(0, len(partitions), _AT_ONCE):
        producers = admin.describe_producers(partitions[first : first + _AT_ONCE], broker=broker)
        candidates += open_transactions(producers, longer_than_ms, now_ms)
    if not candidates:
        return []
    listed = admin.list_transactions(producer_ids=sorted({each.producer_id for each in candidates}))
    described = admin.describe_transactions([each.transactional_id for each in listed], raise_errors=False)
    return hanging_transactions(candidates, listed, described)
