"""The four codecs of record batches, through one package (`cramjam`), with a bound on the decompressed size.

The form of each codec's bytes inside a batch:

gzip
    An ordinary gzip stream, perhaps of several members.
snappy
    Java frames it as xerial's SnappyOutputStream does: a header of 16 bytes, then blocks, each with its length
    in four bytes. librdkafka writes one raw block. Both are read; the framed form, which all clients read, is written.
lz4
    The LZ4 frame format with a correct header checksum (KIP-57), blocks of 64 KB that do not depend on each other:
    Java's reader refuses dependent blocks. Written without a content checksum, as by Java.
zstd
    One zstd frame or several (KIP-110).

A few bytes can decompress to gigabytes, so the caller says how many bytes it accepts (`max_size`). The output goes into
a buffer of known size, and a frame that does not fit is refused. The size is what the frame declares; if it declares
none, the buffer grows until the output fits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum

import cramjam

from muster.errors import CorruptRecordError

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_SIZE = 128 * 1024 * 1024
"""The most bytes that one batch may decompress to, unless the caller says otherwise."""


class BatchTooLargeError(CorruptRecordError):
    """A batch would decompress to more than the caller allows. Whether it is otherwise valid is unknown."""


class Compression(IntEnum):
    """The codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes | memoryview:
    """`data` in the codec's form. `level` is the codec's own scale (gzip 1-9, zstd to 22; the others have none)."""
    match codec:
        case Compression.NONE:
            return data if isinstance(data, bytes) else memoryview(data)
        case Compression.GZIP:
            return memoryview(cramjam.gzip.compress(data, level=6 if level is None else level))
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            return _compress_lz4(data)
        case Compression.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))


def decompress(codec: Compression, data: Buffer, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Undoes `compress`. Raises CorruptRecordError for a broken stream or an output of more than `max_size` bytes."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return _grow(cramjam.gzip.decompress_into, codec, data, _gzip_size(data), max_size, ratio=1_040)
        case Compression.SNAPPY:
            return _decompress_snappy(data, max_size)
        case Compression.LZ4:
            return _grow(cramjam.lz4.decompress_into, codec, data, _lz4_size(data), max_size, ratio=256)
        case Compression.ZSTD:
            if not data:
                return b""  # a stream without any frame is valid too
            return _grow(cramjam.zstd.decompress_into, codec, data, _zstd_size(data), max_size, ratio=None)


def decompress_into(codec: Compression, data: Buffer, target: memoryview) -> int | None:
    """Like `decompress`, but straight into the beginning of `target`; returns the number of bytes.

    None if the output does not fit or the data is broken: only `decompress` can distinguish the two. `target` is then
    undefined.
    """
    try:
        match codec:
            case Compression.GZIP:
                return int(cramjam.gzip.decompress_into(data, target))
            case Compression.SNAPPY:
                return _snappy_into(memoryview(data), target)
            case Compression.LZ4:
                found = _lz4_blocks_into(memoryview(data), target)
                return int(cramjam.lz4.decompress_into(data, target)) if found is None else found
            case Compression.ZSTD:
                return int(cramjam.zstd.decompress_into(data, target)) if data else 0
            case Compression.NONE:
                target[: len(data)] = data
                return len(data)
    except (cramjam.DecompressionError, CorruptRecordError, ValueError):
        return None


def _grow(
    decompress_into: Callable[[Buffer, bytearray], int],
    codec: Compression,
    data: Buffer,
    declared: int | None,
    max_size: int,
    *,
    ratio: int | None,
) -> bytes:
    """Decompresses into a buffer of the declared size, or, without one, into ever larger ones, until the output fits or
    the limit is reached.

    cramjam raises one error for a buffer that is too small and for a broken stream. If the text can only mean a broken
    stream, it is one; otherwise a larger buffer is tried. `ratio`, the codec's best possible compression, bounds that.
    """
    limit = max_size if ratio is None else min(max_size, len(data) * ratio + 1_024)
    size = min(limit, 4 * len(data) + 4_096) if declared is None else declared
    name = codec.name.lower()
    exceeded = BatchTooLargeError if limit == max_size else CorruptRecordError
    if size > limit:
        raise exceeded(f"{name} data declares {size} bytes, more than the {limit} allowed")
    while True:
        target = bytearray(size)
        try:
            written = decompress_into(data, target)
        except cramjam.DecompressionError as error:
            if any(text in str(error) for text in _BROKEN):
                raise CorruptRecordError(f"{name} data is broken: {error}") from None
            if size >= limit:
                raise exceeded(f"{name} data is broken or holds more than {limit} bytes: {error}") from None
            size = min(limit, max(size * 4, 4_096))
            continue
        return bytes(memoryview(target)[:written])


_BROKEN = (
    "invalid gzip header",
    "unexpected end of file",
    "corrupt deflate stream",
    "lz4: ",
    "Unknown frame descriptor",
    "incomplete frame",
)


def _gzip_size(data: Buffer) -> int | None:
    """The size in the last member's trailer, if plausible. With several members it is too small: then the buffer
    grows."""
    if len(data) < 18:
        return None
    size: int = struct.unpack_from("<I", data, len(data) - 4)[0]
    return size if size <= len(data) * 1_032 else None


_LZ4_MAGIC = 0x184D2204
_LZ4_JAVA_HEADER = bytes.fromhex("04224d18604082")  # version 1, independent blocks, 64 KB, header checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_U32_LE = struct.Struct("<I")


def _lz4_size(data: Buffer) -> int | None:
    """The content size that an lz4 frame declares, if any."""
    if len(data) < 15 or _U32_LE.unpack_from(data)[0] != _LZ4_MAGIC or not data[4] & 0x08:
        return None
    size: int = struct.unpack_from("<Q", data, 6)[0]
    return size


def _lz4_blocks_into(view: memoryview, target: memoryview) -> int | None:
    """Decompresses a frame of the form that producers write, block by block, in a third of the frame decoder's time.
    None for any other form, which may be valid."""
    position, at = len(_LZ4_JAVA_HEADER), 0
    if view[:position] != _LZ4_JAVA_HEADER:
        return None
    while len(view) - position >= 4:
        (size,) = _U32_LE.unpack_from(view, position)
        position += 4
        if size == 0:
            return at if position == len(view) else None
        stored, size = size & _LZ4_STORED, size & ~_LZ4_STORED
        if size > _LZ4_BLOCK:
            return None
        block, position = view[position : position + size], position + size
        if stored:
            target[at : at + size] = block
            at += size
        else:
            room = target[at : at + _LZ4_BLOCK]
            at += cramjam.lz4.decompress_block_into(block, room, len(room))
    return None


def _compress_lz4(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_LZ4_JAVA_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        block = view[start : start + _LZ4_BLOCK]
        packed = memoryview(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (_U32_LE.pack(len(packed)), packed)
        else:
            parts += (_U32_LE.pack(len(block) | _LZ4_STORED), block)
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _zstd_size(data: Buffer) -> int | None:
    """The content size that a zstd frame declares (RFC 8878, 3.1.1.1), if any."""
    if len(data) < 6 or _U32_LE.unpack_from(data)[0] != 0xFD2FB528:
        return None
    descriptor = data[4]
    single_segment = descriptor & 0x20
    position = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    field = bytes(data[position : position + width])
    if not width or len(field) < width:
        return None
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)


_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_I32 = struct.Struct(">i")


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        packed = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_I32.pack(len(packed)), packed)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    framed = bytes(view[:8]) == _XERIAL_MAGIC
    parts = []
    left = max_size
    try:
        for block in _xerial_blocks(view) if framed else (view,):
            if (size := cramjam.snappy.decompress_raw_len(block)) > left:
                raise BatchTooLargeError(f"snappy data holds more than the {max_size} bytes allowed")
            left -= size
            parts.append(memoryview(cramjam.snappy.decompress_raw(block)))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"snappy data is broken: {error}") from None
    return b"".join(parts)


def _snappy_into(view: memoryview, target: memoryview) -> int:
    at = 0
    for block in _xerial_blocks(view) if bytes(view[:8]) == _XERIAL_MAGIC else (view,):
        at += cramjam.snappy.decompress_raw_into(block, target[at:])
    return at


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptRecordError("snappy data ends within its header")
    while position < len(view):
        if len(view) - position < 4:
            raise CorruptRecordError("snappy data ends within a block's length")
        size = _I32.unpack_from(view, position)[0]
        position += 4
        if not 0 < size <= len(view) - position:
            raise CorruptRecordError(f"a snappy block declares {size} bytes, but {len(view) - position} are left")
        yield view[position : position + size]
        position += size
