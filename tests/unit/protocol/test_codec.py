"""What the generated codecs guarantee beyond the bytes: defaults, refusals, buffers that are not copied."""

from __future__ import annotations

import linecache
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.protocol import admin_messages, codec, draft_messages, group_messages, sasl_messages, transaction_messages
from muster.protocol import messages as m
from muster.protocol.definitions import class_source, schema
from muster.protocol.primitives import long_uvarint, read_uvarint, uvarint
from tests.support.message_strategies import message
from tests.support.scale import examples
from tools.compiled import MODULES

_ALL = [name for table in schema.TABLES.values() for name in schema.message_names(table)]


@pytest.mark.parametrize("name", _ALL)
@settings(max_examples=examples(8, quick=2), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_encoded_is_decoded_in_every_version(name: str, data: Any) -> None:
    versions = schema.message(name).versions
    for version in range(versions.first, versions.last + 1):
        sent = data.draw(message(name, version), f"version {version}")
        encoded = codec.encode(sent, version)
        read = codec.decode(type(sent), version, encoded)
        # As in Java, a tagged structure with only default values is not sent: compare what is written, then what is
        # read.
        assert codec.encode(read, version) == encoded
        assert codec.decode(type(sent), version, memoryview(b"before" + encoded), 6) == read


def test_all_classes_of_messages_are_compiled_or_none() -> None:
    """They inherit from a compiled class: one that is not compiled could not be created."""
    assert {file.removesuffix(".py") for file in schema.TABLES} <= set(MODULES["protocol"].split())


@pytest.mark.parametrize("version", [0, 3])
def test_a_text_that_kafka_would_refuse_is_not_sent(version: int) -> None:
    """In a compact string the length could be encoded, but Kafka closes the connection when it reads it."""
    longest = codec.encode(m.FindCoordinatorRequest("x" * 32_767), version)
    assert codec.decode(m.FindCoordinatorRequest, version, longest).key == "x" * 32_767
    with pytest.raises((ValueError, struct.error)):
        codec.encode(m.FindCoordinatorRequest("x" * 32_768), version)


def test_fields_that_a_version_lacks_have_their_defaults() -> None:
    sent = m.JoinGroupRequest("g", 10_000, 300_000, "", None, "consumer", [m.JoinGroupRequestProtocol("range", b"x")])
    read = codec.decode(m.JoinGroupRequest, 0, codec.encode(sent, 0))
    assert read.rebalance_timeout_ms == -1
    assert read.protocols == sent.protocols


def test_a_request_that_a_version_cannot_carry_is_refused() -> None:
    request = m.JoinGroupRequest(group_id="g", group_instance_id="one")
    codec.encode(request, 5)
    with pytest.raises(UnsupportedVersionError, match="group_instance_id"):
        codec.encode(request, 4)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="0 to 4, not 5"):
        codec.encode(m.HeartbeatRequest(), 5)


def test_a_null_where_there_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="group_id"):
        codec.decode(m.HeartbeatRequest, 0, b"\xff\xff\0\0\0\0\0\0")


def test_unknown_tagged_fields_are_skipped() -> None:
    encoded = codec.encode(m.HeartbeatResponse(throttle_time_ms=7), 4)
    assert encoded.endswith(b"\0")
    extended = encoded[:-1] + b"\x01\x63\x02hi"
    assert codec.decode(m.HeartbeatResponse, 4, extended) == m.HeartbeatResponse(throttle_time_ms=7)


def test_record_batches_are_not_copied() -> None:
    batches = [bytearray(b"first"), bytearray(b"second")]
    data = m.PartitionProduceData(index=1, records=list(batches))
    request = m.ProduceRequest(topic_data=[m.TopicProduceData(name="t", partition_data=[data])])
    parts = codec.encode_parts(request, 9)
    assert any(part is batches[0] for part in parts)
    assert any(part is batches[1] for part in parts)
    read = codec.decode(m.ProduceRequest, 9, memoryview(b"".join(parts)))
    records = read.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert bytes(records) == b"firstsecond"


@pytest.mark.interpreted
def test_the_source_of_a_codec_can_be_read_in_a_traceback() -> None:
    codec.encode(m.HeartbeatRequest(), 3)
    assert "def encode" in "".join(linecache.getlines("<muster codec HeartbeatRequest v3>"))


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "module", [m, admin_messages, draft_messages, group_messages, sasl_messages, transaction_messages]
)
def test_the_checked_in_messages_are_fresh(module: ModuleType) -> None:
    path = Path(module.__file__ or "")
    assert path.read_text() == class_source.messages_source(path.name)


@given(st.integers(0, 2**32 - 1))
def test_varints_come_back(value: int) -> None:
    assert read_uvarint(uvarint(value), 0) == (value, len(uvarint(value)))


@pytest.mark.parametrize("tail", [b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x7f"])
def test_varints_that_are_too_long_or_too_large_are_refused(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        long_uvarint(tail, 1, tail[0])
