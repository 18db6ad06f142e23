"""Records of `__consumer_offsets`, against bytes that Apache Kafka 4.2.0 wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.group_records import (
    GroupMetadataRecord,
    OffsetCommitRecord,
    OffsetCommits,
    UnknownRecord,
    append_records,
    decode_coordinated,
    decode_record,
    encode_record,
    most_bytes,
)
from muster.protocol.records.record_batch import BatchBuilder

SUBSCRIPTION = bytes.fromhex("0003000000010006636f6f7264740000000000000000ffffffff0000")
ASSIGNMENT = bytes.fromhex("0000000000010006636f6f726474000000040000000000000001000000020000000300000000")

FROM_KAFKA = {
    "a group that is seen for the first time": (
        "0002000d676f6c64656e2d737461746963",
        "0003000000000000ffffffff000001a1fca7b18100000000",
        GroupMetadataRecord(
            m.GroupMetadataKey("golden-static"), m.GroupMetadataValue("", 0, None, None, 1795240210817, [])
        ),
    ),
    "a stable group with a static member": (
        "0002000d676f6c64656e2d737461746963",
        "00030008636f6e73756d657200000001000572616e6765002b696e73742d312d32653536393237322d323431322d346562612d383865"
        "632d383333613162663730366161000001a1fca7b18200000001002b696e73742d312d32653536393237322d323431322d346562612d"
        "383865632d3833336131626637303661610006696e73742d310003636c69000a2f3132372e302e302e310000ea60000027100000001c"
        "0003000000010006636f6f7264740000000000000000ffffffff0000000000260000000000010006636f6f7264740000000400000000"
        "00000001000000020000000300000000",
        GroupMetadataRecord(
            m.GroupMetadataKey("golden-static"),
            m.GroupMetadataValue(
                "consumer",
                1,
                "range",
                "inst-1-2e569272-2412-4eba-88ec-833a1bf706aa",
                1795240210818,
                [
                    m.MemberMetadata(
                        "inst-1-2e569272-2412-4eba-88ec-833a1bf706aa",
                        "inst-1",
                        "cli",
                        "/127.0.0.1",
                        60000,
                        10000,
                        SUBSCRIPTION,
                        ASSIGNMENT,
                    )
                ],
            ),
        ),
    ),
    "a group that became empty": (
        "00020006676f6c64656e",
        "00030008636f6e73756d657200000002ffffffff000001a1fca7b14300000000",
        GroupMetadataRecord(
            m.GroupMetadataKey("golden"), m.GroupMetadataValue("consumer", 2, None, None, 1795240210755, [])
        ),
    ),
    "a commit": (
        "0001000d676f6c64656e2d7374617469630006636f6f72647400000000",
        "00040000000000000005ffffffff01000001a1fca7b21200",
        OffsetCommitRecord(
            m.OffsetCommitKey("golden-static", "coordt", 0), m.OffsetCommitValue(5, -1, "", 1795240210962)
        ),
    ),
}


@pytest.mark.parametrize(("key", "value", "record"), FROM_KAFKA.values(), ids=FROM_KAFKA.keys())
def test_bytes_of_kafka(key, value, record):
    assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == record
    assert tuple(part.hex() for part in encode_record(record) if part is not None) == (key, value)


@pytest.mark.parametrize("record", [FROM_KAFKA["a commit"][2], FROM_KAFKA["a group that became empty"][2]])
def test_tombstones(record):
    gone = record._replace(value=None)
    key, value = encode_record(gone)
    assert value is None
    assert decode_record(key, None) == gone


@pytest.mark.parametrize(
    ("version", "tail", "expected"),
    [
        (0, "0000000000000064", m.OffsetCommitValue(9, -1, "n", 100)),
        (1, "00000000000000640000000000000fff", m.OffsetCommitValue(9, -1, "n", 100, 4095)),
        (2, "0000000000000064", m.OffsetCommitValue(9, -1, "n", 100)),
    ],
)
@pytest.mark.parametrize("kind", ["0000", "0001"], ids=["before Kafka 0.9", "since"])
def test_commits_of_older_kafkas(kind, version, tail, expected):
    key = bytes.fromhex(kind + "000167000174" + "00000002")
    value = bytes.fromhex(f"{version:04x}" + "0000000000000009" + "00016e" + tail)
    assert decode_record(key, value) == OffsetCommitRecord(m.OffsetCommitKey("g", "t", 2), expected)


@pytest.mark.parametrize("expire_timestamp", [-1, 0, 1])
@pytest.mark.parametrize("metadata", ["", "é", "x" * 126, "x" * 127, "é" * 63, "é" * 64])
def test_a_commit_is_read_as_it_was_written(metadata, expire_timestamp):
    value = m.OffsetCommitValue(5, 3, metadata, 1_000, expire_timestamp)
    if expire_timestamp != -1:
        value.leader_epoch = -1  # version 1 has no field for it
    record = OffsetCommitRecord(m.OffsetCommitKey("g", "t", 0), value)
    assert decode_record(*encode_record(record)) == record


def test_a_commit_that_expires_by_itself_is_written_in_version_1():
    record = OffsetCommitRecord(m.OffsetCommitKey("g", "t", 2), m.OffsetCommitValue(9, -1, "n", 100, 4095))
    key, value = encode_record(record)
    assert value == bytes.fromhex("0001" + "0000000000000009" + "00016e" + "0000000000000064" + "0000000000000fff")
    assert decode_record(key, value) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\x09\0\1g", None),  # a kind that no Kafka has released
        (b"\0\x03\0\1g", b"\0\x01\0\0\0\7\0"),  # another group's kind in a future version
        (b"\x7f\xff", None),  # a future kind
        (b"\0\2\0\1g", b"\0\x63whatever"),  # a known kind in a future version
    ],
)
def test_what_is_not_known_is_kept_as_it_is(key, value):
    record = decode_record(key, value)
    assert record == UnknownRecord(int.from_bytes(key[:2], "big"), key, value)
    assert encode_record(record) == (key, value)


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"\0", None), (b"\0\1\0\5g", None), (b"\0\2\0\1g", b"\0")])
def test_broken_records(key, value):
    with pytest.raises(ProtocolError):
        decode_record(key, value)


@given(st.binary(max_size=64), st.none() | st.binary(max_size=64))
def test_any_bytes_are_a_record_or_broken(key, value):
    try:
        record = decode_coordinated(b"\0" + key, value)
    except ProtocolError:
        return
    assert decode_coordinated(*encode_record(record)) is not None


OFFSETS = st.builds(
    OffsetCommitRecord,
    st.builds(m.OffsetCommitKey, st.text(), st.text(), st.integers(0, 2**31 - 1)),
    st.none()
    | st.builds(
        m.OffsetCommitValue,
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.text() | st.text(min_size=100, max_size=200),
        st.integers(-1, 2**63 - 1),
        st.just(-1),
        st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
    ),
)


@given(OFFSETS)
def test_commits_are_written_as_the_general_codec_writes_them(record):
    key, value = encode_record(record)
    assert decode_record(key, value) == record
    assert key == b"\0\1" + codec.encode(record.key, 0)
    assert value == (None if record.value is None else b"\0\4" + codec.encode(record.value, 4))


VALUES = st.tuples(
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "", "m", "x" * 200]),
    st.integers(-1, 2**63 - 1),
    st.sampled_from([-1, -1, 0, 4095]),
    st.sampled_from([bytes(16), bytes(16), b"t" * 16]),
)
PLAIN = st.tuples(
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.just(""),
    st.integers(-1, 2**63 - 1),
    st.just(-1),
    st.just(bytes(16)),
)
PARTITIONS = st.integers(0, 2**31 - 1)


@given(
    st.text(),
    st.text(),
    st.lists(st.tuples(PARTITIONS, VALUES), min_size=1) | st.lists(st.tuples(PARTITIONS, PLAIN), min_size=1),
    st.sampled_from([1, 62, 63, 64, 65, 4_000, 4_090, 4_095, 4_096, 8_191, 8_192]),
)
def test_commits_of_one_request_are_written_as_one_by_one(group, topic, values, before):
    """In one step, because most records are commits: the bytes are the same, even after other records."""
    commits = OffsetCommits(group, topic, values)
    together, one_by_one = BatchBuilder(), BatchBuilder()
    for batch in (together, one_by_one):
        batch.append_at(before - 1, 100, b"key", None)
    append_records(together, 103, commits)
    for record in commits.records():
        append_records(one_by_one, 103, record)
    assert together.build() == one_by_one.build()
    assert (together.size, together.count) == (one_by_one.size, one_by_one.count)
    assert together.append(104, None, b"next") == len(values) + before


@pytest.mark.parametrize("count", [1, 2, 3, 65])
@pytest.mark.parametrize("last", [61, 62, 63, 64, 65, 66, 4_094, 4_095, 4_096, 4_097, 8_190, 8_191, 8_192, 8_193])
def test_plain_commits_around_offsets_that_take_a_byte_more(last, count):
    commits = OffsetCommits("g", "t", [(number, (number, -1, "", 103, -1, bytes(16))) for number in range(count)])
    together, one_by_one = BatchBuilder(), BatchBuilder()
    for batch in (together, one_by_one):
        if last >= count:
            batch.append_at(last - count, 100, b"key", None)
    append_records(together, 103, commits)
    for record in commits.records():
        append_records(one_by_one, 103, record)
    assert together.build() == one_by_one.build()
    assert (together.size, together.count) == (one_by_one.size, one_by_one.count)


members = st.builds(
    lambda client, instance, reported, share: m.MemberMetadata(
        f"{instance or client}-{'0' * 36}", instance, client, "/127.0.0.1", 60_000, 10_000, reported, share
    ),
    st.text(max_size=300),
    st.none() | st.text(max_size=300),
    st.binary(max_size=3_000),
    st.binary(max_size=3_000),
)


@given(st.text(max_size=500), st.text(max_size=500), st.none() | st.text(max_size=500), st.lists(members, max_size=20))
def test_a_group_takes_no_more_bytes_than_was_reckoned_with(group_id, protocol_type, protocol, members):
    leader = members[0].member_id if members else None
    value = m.GroupMetadataValue(protocol_type, 1, protocol, leader, 0, members)
    record = GroupMetadataRecord(m.GroupMetadataKey(group_id), value)
    batch = BatchBuilder()
    append_records(batch, 0, record)
    assert batch.size <= most_bytes(record)
