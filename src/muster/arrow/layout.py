"""What the kernel and its caller agree on: statuses, and how a span table is laid out. Imports no numba."""

from __future__ import annotations

from muster.protocol.records.record_batch import COMPRESSION_MASK, CONTROL_FLAG, TRANSACTIONAL_FLAG

OK = 0
CUT_OFF = 1
BAD_VARINT = 2
BAD_FIELD = 3
BAD_HEADERS = 4
WRONG_LENGTH = 5
LEFT_OVER = 6

REASONS = {
    CUT_OFF: "is cut off",
    BAD_VARINT: "has a varint of more than 64 bits",
    BAD_FIELD: "has a field of impossible length",
    BAD_HEADERS: "has impossible headers",
    WRONG_LENGTH: "has a length other than the one it states",
    LEFT_OVER: "is followed by bytes that belong to no record",
}

NULL_TIMESTAMP = -(2**63)
"""Marks a timestamp that does not fit into 64 bits of microseconds; it becomes null."""

MAX_MS = (2**63 - 1) // 1000
"""The largest timestamp in milliseconds that fits in microseconds."""

ROOM_BYTES = 8 * 1024 * 1024
"""The size of the memory into which batches are decompressed, one after the other. It is reused, so its pages stay
allocated; a batch that does not fit gets memory of its own."""

FLUSH_BYTES = 32 * 1024 * 1024
"""A piece of decoding ends when its decompressed records reach this many bytes: one fetch may hold gigabytes."""

KEY, VALUE, HEADERS_AT = 0, 2, 4
"""Columns of a span table: position and length of the key, of the value, position of the headers."""

SPAN_COLUMNS = 5

FARTHEST_OFFSET = 2**62
"""Up to this value a sum of offsets cannot overflow 64 bits."""

SEGMENT_COLUMNS = 10
"""Columns of a segment table; the kernel's `parse` describes them."""

LEADER_EPOCH_AT, TRANSACTIONAL_AT, ROWS_AT = 7, 8, 9
"""Three of them: the leader's epoch, whether the batch is transactional, and the number of rows that `parse` made of
the segment."""

MIN_RECORD_SIZE = 7

NOT_PLAIN = COMPRESSION_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG
"""Attributes of a batch that needs more than finding its records."""
