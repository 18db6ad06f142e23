"""Keys and values of `__transaction_state`, as Apache Kafka 4.2 writes them.

A record's key begins with an int16, the kind of the record, which is 0; the message after it has version 0. The value
begins with its own version, an int16 too, or is null: a tombstone, which removes the transactional id.

Kafka 4.2 leaves some of a transaction's fields out of its records, and so forgets them when a partition moves: the
previous and next producer ids (KAFKA-20310) and the last epoch (KAFKA-20357). muster writes them; Kafka reads the first
two, and ignores the last.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol.primitives import Buffer
from muster.protocol.transaction_messages import TransactionLogKey, TransactionLogValue

TRANSACTION_LOG = 0
"""The one kind of record."""

_INT16 = Struct(">h")
_KIND = _INT16.pack(TRANSACTION_LOG)


class TransactionRecord(NamedTuple):
    """What is known about a transactional id; `value` None is a tombstone."""

    key: TransactionLogKey
    value: TransactionLogValue | None


def value_version(transaction_version: int) -> int:
    """The version of values that a broker of this `transaction.version` writes."""
    return 1 if transaction_version >= 1 else 0


def encode_record(record: TransactionRecord, version: int) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    key = b"".join((_KIND, *codec.encode_parts(record.key, 0)))
    if record.value is None:
        return key, None
    return key, b"".join((_INT16.pack(version), *codec.encode_parts(record.value, version)))


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """The record of a key and a value, None for a kind that a newer Kafka writes.

    Raises:
        ProtocolError: the bytes are broken, or there is no key.
        UnsupportedVersionError: a newer Kafka wrote the value.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError("a record of __transaction_state has no key, or one without a kind")
    if _INT16.unpack_from(key)[0] != TRANSACTION_LOG:
        return None
    transactional_id = codec.decode(TransactionLogKey, 0, key, 2)
    return TransactionRecord(
        transactional_id, None if value is None else codec.decode_versioned(TransactionLogValue, value)
    )
