"""The numbers of records: zigzag varints of up to 64 bits, as protobuf has them.

A zigzag number is the signed one with its sign in the lowest bit: 0, -1, 1, -2 are 0, 1, 2, 3. It is encoded seven bits
a byte, the lowest first; all bytes but the last have their high bit set. (Messages have unsigned varints, without a
sign and of up to 32 bits: primitives.py.)

The two loops over every record of a batch, in `record_decode.py` and in `log/batches/record_walk.py`, read numbers of
one and two bytes in place, because a call for each would take half as long again; all longer ones come here.
"""

from __future__ import annotations

from muster.errors import CorruptRecordError
from muster.protocol.primitives import uvarint
from muster.protocol.records.compression import Buffer


def signed(zigzag: int) -> int:
    """The number that a zigzag number stands for."""
    return (zigzag >> 1) ^ -(zigzag & 1)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A number and the position after it.

    Raises:
        IndexError: `data` ends before the number does.
        CorruptRecordError: the bytes are not a valid number.
    """
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = read_zigzag(data, position)
    return (value >> 1) ^ -(value & 1), position


def read_zigzag(data: Buffer, position: int) -> tuple[int, int]:
    """Like `read_varint`, but returns the zigzag number."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise CorruptRecordError("a varint of more than 64 bits")
            return value, position
        shift += 7
        if shift > 63:
            raise CorruptRecordError("a varint of more than 10 bytes")


_SMALL = tuple(uvarint(zigzag) for zigzag in range(1 << 13))
_SMALL_LIMIT = len(_SMALL)


def varint(value: int) -> bytes:
    """The encoding of `value`, a signed number of up to 64 bits."""
    zigzag = (value << 1) ^ (value >> 63)
    return _SMALL[zigzag] if zigzag < _SMALL_LIMIT else uvarint(zigzag)
