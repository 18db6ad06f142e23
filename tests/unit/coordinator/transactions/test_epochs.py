"""The coordinator epoch of markers: partitions refuse one that is older than they have seen."""

from __future__ import annotations

import pytest

from muster.coordinator.shards.log_store import ShardLogStore
from muster.coordinator.shards.shards import ShardHost
from muster.coordinator.transaction_runtime import TransactionRuntime
from muster.coordinator.transactions.config import TransactionConfig
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import TransactionLogKey
from muster.protocol.transaction_records import TransactionRecord, encode_record
from tests.support.memory_log import MemoryLog


@pytest.mark.parametrize(("written", "led", "sent"), [(7, 0, 7), (7, 9, 9), (None, 9, 9)])
def test_markers_have_the_newest_epoch_that_the_log_knows(written: int | None, led: int, sent: int) -> None:
    """The log may move from a cluster to a standalone broker that leads everything with epoch 0."""
    log = MemoryLog()
    if written is not None:
        batch = BatchBuilder()
        batch.append(0, *encode_record(TransactionRecord(TransactionLogKey("gone"), None), 1))
        log.append(batch.build(), now=0, leader_epoch=written)
    runtime = TransactionRuntime(
        TransactionConfig(transaction_state_log_num_partitions=1),
        ShardLogStore(lambda _: log, alone=True),
        ShardHost(lambda: 0, print),
        new_id=lambda: 1,
        send_markers=print,
    )
    runtime.load_all(epoch=led)
    assert runtime.epoch_of("x") == sent
