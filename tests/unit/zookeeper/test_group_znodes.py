"""Names and contents of the znodes of groups: any text is a group id, and a znode may contain anything."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import BatchBuilder, read_header
from muster.zookeeper.base.operations import GetData, check_request
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.cluster import group_znodes
from muster.zookeeper.cluster.group_znodes import (
    COMPRESS_ABOVE,
    MAX_ZNODE_BYTES,
    NAME_CHARACTERS,
    encode_records,
    fits,
    group_name,
    groups_path,
    offsets_name,
    read_name,
    read_znode,
)

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("group_id", "name"),
    [
        ("orders-2.eu_west", "orders-2.eu_west"),
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E."),
        ("a/b", "a%2Fb"),
        ("/", "%2F"),
        ("a~0", "a%7E0"),
        ("a%2Fb", "a%252Fb"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("\0\n", "%00%0A"),
    ],
)
def test_names(group_id, name):
    assert group_name(group_id) == name


@given(st.text(), st.text())
def test_each_group_has_a_name_of_its_own_that_zookeeper_takes(one, other):
    assert (group_name(one) == group_name(other)) is (one == other)
    check_request(GetData(f"{groups_path(63)}/{offsets_name(group_name(one), 99)}"))
    assert read_name(group_name(one)) == (group_name(one), None, None)
    assert read_name(offsets_name(group_name(one), 7)) == (group_name(one), 7, None)


def test_long_names_are_cut_and_stay_different():
    names = {group_name("x" * length) for length in (*range(190, 210), 8_000, 65_536)}
    names |= {group_name("ü" * 8_000 + end) for end in "ab"}
    assert len(names) == 24
    assert max(map(len, names)) <= NAME_CHARACTERS


@given(st.dictionaries(st.binary(min_size=1), st.binary()).filter(bool))
def test_what_is_written_is_read(records):
    assert read_znode("/x", encode_records(records, NOW)) == records


def test_large_ones_are_compressed():
    small, large = {b"k": b"x" * 1_000}, {b"k": b"x" * COMPRESS_ABOVE}
    assert read_header(encode_records(small, NOW)).compression is Compression.NONE
    data = encode_records(large, NOW)
    assert read_header(data).compression is Compression.GZIP
    assert len(data) < 1_000
    assert read_znode("/x", data) == large


GOOD = encode_records({b"k": b"v"}, NOW)


@pytest.mark.parametrize(
    "data", [None, b"", b"x" * 80, GOOD[:-1], GOOD + b"x", GOOD[:-2] + b"xx", GOOD[:16] + b"\1" + GOOD[17:]]
)
def test_what_is_damaged_is_reported(data):
    assert isinstance(read_znode("/x", data), Unreadable)


def test_a_record_without_a_value_belongs_to_no_group():
    batch = BatchBuilder()
    batch.append(NOW, b"k", None)
    assert isinstance(read_znode("/x", bytes(batch.build())), Unreadable)


def test_what_could_not_be_read_again_does_not_fit(monkeypatch):
    monkeypatch.setattr(group_znodes, "MAX_UNPACKED_BYTES", 3_000_000)
    for size in (2_900_000, 2_998_900, 2_999_000, 3_000_000, 5_000_000):
        again = read_znode("/x", encode_records({b"k": bytes(size)}, NOW))
        assert not fits(b"k", bytes(size)) or again == {b"k": bytes(size)}, size
    assert fits(b"k", bytes(2_900_000))
    assert not fits(b"k", bytes(5_000_000))


def test_what_fits():
    noise = Random(1).randbytes(MAX_ZNODE_BYTES)
    assert fits(b"k", noise[: MAX_ZNODE_BYTES - 1_100])
    assert not fits(b"k", noise)
    assert fits(b"k", bytes(5_000_000))
    for value in (noise[: MAX_ZNODE_BYTES - 1_100], bytes(5_000_000)):
        assert len(encode_records({b"k": value}, NOW)) <= MAX_ZNODE_BYTES
