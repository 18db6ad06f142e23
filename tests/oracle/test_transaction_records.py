"""Records of `__transaction_state` compared with the classes of Kafka's own transaction coordinator.

Kafka's deserializer reads the same fields from muster's records, its coordinator loads the same transaction from them,
and a record that Kafka's classes write from these fields equals muster's, byte for byte, except for muster's own field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.transactions.entry import Transaction, TransactionState
from muster.errors import ProtocolError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol.transaction_messages import TransactionLogKey
from muster.protocol.transaction_records import TransactionRecord, decode_record, encode_record
from tests.oracle.test_group_records import Oracle, started
from tests.support.message_strategies import message
from tests.support.scale import examples

PROGRAM = Path(__file__).parent / "java" / "TransactionOracle.java"


@pytest.fixture(scope="module")
def oracle(java: str) -> Iterator[Oracle]:
    yield from started(PROGRAM)


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _json(value: Any, *, version: int) -> dict[str, Any]:
    """A value as Kafka's converter writes it: tagged fields with their default are left out."""
    found: dict[str, Any] = {_camel(name): getattr(value, name) for name in value.__slots__}
    del found["lastProducerEpoch"]
    if found["transactionPartitions"] is not None:
        found["transactionPartitions"] = [
            {"topic": each.topic, "partitionIds": each.partition_ids} for each in found["transactionPartitions"]
        ]
    defaults = {"previousProducerId": -1, "nextProducerId": -1, "nextProducerEpoch": -1, "clientTransactionVersion": 0}
    return {name: each for name, each in found.items() if name not in defaults or (version and each != defaults[name])}


@pytest.mark.parametrize("version", [0, 1])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kafka_reads_what_we_write_and_writes_what_we_read(oracle: Oracle, version: int, data: Any) -> None:
    record = TransactionRecord(
        data.draw(message("TransactionLogKey", 0)), data.draw(message("TransactionLogValue", version))
    )
    assert record.value is not None
    key, value = encode_record(record, version)
    assert decode_record(key, value) == record
    said = oracle.ask(key, value)
    assert said["key"] == {"transactionalId": record.key.transactional_id}
    assert said["value"] == _json(record.value, version=version)
    assert said["keyBytes"] == key.hex()
    record.value.last_producer_epoch = -1
    assert said["valueBytes"] == (encode_record(record, version)[1] or b"").hex()
    tombstone = encode_record(TransactionRecord(record.key, None), version)
    assert tombstone == (key, None)
    assert "value" not in oracle.ask(*tombstone)
    assert decode_record(*tombstone) == TransactionRecord(record.key, None)


_I64, _I16 = st.integers(0, 2**63 - 1), st.integers(-1, 2**15 - 1)
TRANSACTIONS = st.builds(
    Transaction,
    producer_id=_I64,
    producer_epoch=_I16,
    timeout_ms=st.integers(1, 2**31 - 1),
    last_update_ms=_I64,
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(st.builds(TopicPartition, st.text(max_size=8), st.integers(0, 99)), max_size=5),
    start_ms=st.integers(-1, 2**63 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    last_producer_epoch=_I16,
    client_version=st.integers(0, 2),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(it=TRANSACTIONS)
def test_kafka_loads_the_same_transaction(oracle: Oracle, it: Transaction) -> None:
    key, value = encode_record(TransactionRecord(TransactionLogKey("x"), it.value()), 1)
    loaded = oracle.ask(key, value)["loaded"]
    partitions = frozenset[TopicPartition]() if it.state is TransactionState.EMPTY else it.partitions
    assert loaded == {
        "state": it.state.kafka_name,
        "pid": it.producer_id,
        "previous": it.previous_producer_id,
        "epoch": it.producer_epoch,
        "timeout": it.timeout_ms,
        "start": it.start_ms,
        "update": it.last_update_ms,
        "client": it.client_version,
        "partitions": len(partitions),
    }
    read = decode_record(key, value)
    assert read is not None
    assert read.value is not None
    found = Transaction.of(read.value)
    assert (found.partitions, found.last_producer_epoch) == (partitions, it.last_producer_epoch)


@pytest.mark.parametrize(
    ("key", "value", "error", "ours"),
    [
        ("0001000161", None, "UnknownRecordTypeException", None),
        ("0000000161", "0002" + "00" * 40, "UnknownRecordVersionException", UnsupportedVersionError),
        ("0000000161", "0001", "RuntimeException", ProtocolError),
        ("0000000161", "00", "RuntimeException", ProtocolError),
        ("0000", None, "RuntimeException", ProtocolError),
    ],
)
def test_what_is_unknown_or_broken_to_kafka_is_so_to_us(
    oracle: Oracle, key: str, value: str | None, error: str, ours: type[Exception] | None
) -> None:
    data = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert error in oracle.ask(*data)["error"]
    if ours is None:
        assert decode_record(*data) is None
    else:
        with pytest.raises(ours):
            decode_record(*data)
