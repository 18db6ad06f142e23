"""The codecs: round trips, both forms of snappy, and the limit on the decompressed size."""

import contextlib
import gzip
import zlib

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Compression, compress, decompress, decompress_into

PACKED = [codec for codec in Compression if codec]
TEXT = b"".join(b'{"carrier":"UA","flight":%d}' % i for i in range(20_000))
NOISE = b"".join(zlib.crc32(b"%d" % i).to_bytes(4, "big") for i in range(60_000))


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    "data", [b"", b"x", TEXT, NOISE, bytes(500_000)], ids=["empty", "one", "text", "noise", "zeros"]
)
def test_round_trip(codec, data):
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert decompress(codec, packed, max_size=len(data)) == data
    assert decompress(codec, compress(codec, memoryview(bytearray(data)))) == data


@given(data=st.binary(max_size=5_000), codec=st.sampled_from(Compression))
def test_round_trip_of_anything(data, codec):
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_levels(codec):
    low, high = compress(codec, TEXT, 1), compress(codec, TEXT, 9)
    assert decompress(codec, low) == decompress(codec, high) == TEXT
    assert len(low) != len(high)


@pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.name)
def test_a_bomb_is_refused(codec):
    bomb = compress(codec, bytes(20_000_000))
    with pytest.raises(CorruptRecordError, match="1000000"):
        decompress(codec, bomb, max_size=1_000_000)


def test_a_bomb_that_does_not_declare_its_size_is_refused():
    for codec, module in ((Compression.ZSTD, cramjam.zstd), (Compression.LZ4, cramjam.lz4)):
        compressor = module.Compressor()
        compressor.compress(bytes(20_000_000))
        bomb = bytes(compressor.finish())
        assert len(decompress(codec, bomb)) == 20_000_000
        with pytest.raises(CorruptRecordError, match="1000000"):
            decompress(codec, bomb, max_size=1_000_000)


@pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.name)
@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_a_stream_that_is_cut_off(codec, cut):
    packed = bytes(compress(codec, TEXT))
    with pytest.raises(CorruptRecordError):
        decompress(codec, packed[: int(len(packed) * cut)])


@given(garbage=st.binary(min_size=1, max_size=300), codec=st.sampled_from(PACKED))
def test_garbage_is_an_error_or_bytes(garbage, codec):
    with contextlib.suppress(CorruptRecordError):
        assert len(decompress(codec, garbage, max_size=100_000)) <= 100_000


def test_both_forms_of_snappy():
    framed = aiokafka_codec.snappy_encode(TEXT, xerial_compatible=True)
    raw = aiokafka_codec.snappy_encode(TEXT, xerial_compatible=False)
    assert decompress(Compression.SNAPPY, framed) == decompress(Compression.SNAPPY, raw) == TEXT
    assert bytes(compress(Compression.SNAPPY, TEXT)) == framed


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"\0\0", "block's length"),
        (b"\0\0\0\x09abc", "declares 9 bytes"),
        (b"\xff\xff\xff\xffabc", "declares -1 bytes"),
    ],
)
def test_broken_frames_of_snappy(block, message):
    with pytest.raises(CorruptRecordError, match=message):
        decompress(Compression.SNAPPY, bytes(compress(Compression.SNAPPY, b"abc")) + block)


def test_gzip_of_several_members():
    assert decompress(Compression.GZIP, gzip.compress(TEXT) + gzip.compress(b"end")) == TEXT + b"end"


def test_gzip_whose_last_member_is_empty_is_read_whole():
    # Its trailer says 0 bytes, which is no size to start from.
    assert decompress(Compression.GZIP, gzip.compress(TEXT) + gzip.compress(b"")) == TEXT


def test_a_wrong_checksum_is_damage_and_not_too_much():
    packed = bytearray(gzip.compress(TEXT))
    packed[-8] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum") as refused:
        decompress(Compression.GZIP, packed)
    assert refused.type is CorruptRecordError


def test_an_lz4_frame_that_declares_its_size_is_read():
    frame = "04224d1868402c01000000000000840e0000003f6162630300ff1250626361626300000000"
    assert decompress(Compression.LZ4, bytes.fromhex(frame)) == b"abc" * 100


def test_lz4_frames_with_dependent_blocks_and_checksums_are_read():
    assert decompress(Compression.LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT


def test_lz4_frames_have_the_header_that_java_writes():
    assert bytes(compress(Compression.LZ4, TEXT))[:7].hex() == "04224d18604082"


def into(codec, packed, room):
    """What `decompress_into` writes into a room of this size, next to bytes that it must not touch; None if it returns
    None."""
    target = bytearray(b"\xee" * (room + 2))
    count = decompress_into(codec, packed, memoryview(target)[1:-1])
    assert (target[0], target[-1]) == (0xEE, 0xEE)
    return None if count is None else bytes(target[1 : 1 + count])


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, bytes(500_000)], ids=len)
def test_bytes_come_into_a_buffer_as_they_come_out(codec, data):
    packed = compress(codec, data)
    assert into(codec, packed, len(data)) == into(codec, packed, len(data) + 100_000) == data
    if data:
        assert into(codec, packed, len(data) - 1) is None


@given(
    data=st.binary(max_size=2_000), codec=st.sampled_from(PACKED), where=st.integers(0, 5_000), byte=st.integers(0, 255)
)
def test_what_is_damaged_comes_into_a_buffer_only_where_it_comes_out(data, codec, where, byte):
    packed = bytearray(compress(codec, data))
    packed[where % len(packed)] = byte
    found = into(codec, packed, 10_000)
    try:
        reported = decompress(codec, packed)
    except CorruptRecordError:
        reported = None
    assert found is None or found == reported


@pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.name)
@pytest.mark.parametrize("cut", [1, 4, 9, 0.5])
def test_what_is_cut_off_does_not_come_into_a_buffer(codec, cut):
    packed = compress(codec, TEXT)
    packed = packed[: -cut if isinstance(cut, int) else int(len(packed) * cut)]
    try:
        reported = decompress(codec, packed)
    except CorruptRecordError:
        reported = None
    assert into(codec, packed, len(TEXT)) in (None, reported)


def test_lz4_of_two_frames_and_with_blocks_that_are_longer_than_their_frame_says():
    packed = bytes(compress(Compression.LZ4, NOISE))
    assert into(Compression.LZ4, packed + packed, 2 * len(NOISE)) in (None, NOISE + NOISE)
    block = b"\0" * 70_000
    long = packed[:7] + (len(block) | 0x80000000).to_bytes(4, "little") + block + bytes(4)
    assert into(Compression.LZ4, long, 100_000) is None
    block = bytes(cramjam.lz4.compress_block(bytes(70_000), store_size=False))
    long = packed[:7] + len(block).to_bytes(4, "little") + block + bytes(4)
    assert into(Compression.LZ4, long, 100_000) is None
