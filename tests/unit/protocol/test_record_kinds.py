"""Records of groups that muster does not coordinate: typed for readers, skipped by the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.shard import GroupShard
from muster.errors import ProtocolError
from muster.protocol import group_messages as g
from muster.protocol.group_records import UnknownRecord, decode_coordinated, decode_record, encode_record
from muster.protocol.record_kinds import CLASSES, RecordKind, TypedRecord, kind_name
from tests.support.group_harness import FakeTopics
from tests.support.message_strategies import message
from tests.support.scale import examples
from tests.support.written import encode_typed

KINDS = sorted(CLASSES)
MEMBER_KEY = bytes.fromhex("0005" + "000167" + "00016d")
MEMBER_START = bytes.fromhex("0000" + "00" + "00" + "02" + "63" + "02" + "68" + "01" + "00" + "ffffffff" + "00")


def typed_records(kind: int) -> st.SearchStrategy[TypedRecord]:
    known, key, value = CLASSES[kind]
    keys, values = message(key.__name__, 0), message(value.__name__, 0)
    return st.builds(TypedRecord, st.just(known), keys, st.none() | values)


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
@settings(max_examples=examples(30, quick=3), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_kind_is_read_as_it_was_written(kind: int, data: Any) -> None:
    record = data.draw(typed_records(kind))
    key, value = encode_typed(record)
    assert decode_record(key, value) == record
    assert decode_record(memoryview(key), None if value is None else memoryview(value)) == record
    unknown = decode_coordinated(key, value)
    assert unknown == UnknownRecord(kind, key, value)
    assert encode_record(unknown) == (key, value)


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
@settings(max_examples=examples(30, quick=3), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_broken_bytes_are_an_error_to_readers_alone(kind: int, data: Any) -> None:
    """The coordinator skips them like all of that kind: nothing is raised, nothing is counted as broken."""
    key, value = encode_typed(data.draw(typed_records(kind)))
    cut = key[: data.draw(st.integers(2, len(key) - 1))]
    with pytest.raises(ProtocolError):
        decode_record(cut, value)
    if value is not None:
        value = value[: data.draw(st.integers(0, len(value) - 1))]
        with pytest.raises(ProtocolError):
            decode_record(key, value)
    shard = GroupShard(GroupConfig(), FakeTopics())
    shard.replay(key, value, 0)
    shard.replay(cut, value, 0)
    assert not shard.groups


@given(st.sampled_from([*KINDS, 9, 18, 24]), st.binary(max_size=64), st.none() | st.binary(max_size=64))
def test_any_bytes_are_a_record_or_broken(kind: int, key: bytes, value: bytes | None) -> None:
    key = kind.to_bytes(2, "big") + key
    try:
        record = decode_record(key, value)
    except ProtocolError:
        return
    if isinstance(record, TypedRecord):
        assert decode_record(*encode_typed(record)) == record
    else:
        assert record == UnknownRecord(kind, key, value)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("01" + "00" + "01" + "00", None),  # what Kafka writes for a member of the new protocol: null is sent
        ("00", g.ClassicMemberMetadata()),  # fields that are not sent have their defaults, in Kafka's own classes too
        ("01" + "00" + "07" + "01" + "00001388" + "01" + "00", g.ClassicMemberMetadata(5_000)),
        ("01" + "07" + "02" + "ffff", g.ClassicMemberMetadata()),  # a future tag
    ],
)
def test_a_tagged_structure_that_may_be_null(tags: str, expected: g.ClassicMemberMetadata | None) -> None:
    value = MEMBER_START + bytes.fromhex(tags)
    record = decode_record(MEMBER_KEY, value)
    assert isinstance(record, TypedRecord)
    assert isinstance(record.value, g.ConsumerGroupMemberMetadataValue)
    assert record.value.classic_member_metadata == expected
    if tags[2:4] != "07":
        assert encode_typed(record) == (MEMBER_KEY, value)


@pytest.mark.parametrize(
    ("tags", "epochs"), [("00", []), ("01" + "00" + "01" + "00", None), ("010005" + "02" + "00000007", [7])]
)
def test_a_tagged_array_that_may_be_null(tags: str, epochs: list[int] | None) -> None:
    task = "02" + "73" + "02" + "00000003" + tags
    value = bytes.fromhex("0000" + "00000002" + "00000001" + "01" + "02" + task + "0101010101" + "00")
    key = bytes.fromhex("0016" + "000167" + "00016d")
    record = decode_record(key, value)
    assert isinstance(record, TypedRecord)
    assert isinstance(record.value, g.StreamsGroupCurrentMemberAssignmentValue)
    assert [task.assignment_epochs for task in record.value.active_tasks] == [epochs]
    assert encode_typed(record) == (key, value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(0, "LegacyOffsetCommit"), (1, "OffsetCommit"), (3, "ConsumerGroupMetadata"), (9, "kind 9"), (-1, "kind -1")],
)
def test_names_of_kinds(kind: int, name: str) -> None:
    assert kind_name(kind) == name


def test_kinds_that_compare_as_numbers() -> None:
    assert RecordKind(16) is RecordKind.CONSUMER_GROUP_REGULAR_EXPRESSION
    assert {kind for kind in range(24) if kind not in KINDS} == {0, 1, 2, 9, 18}
