"""Records of `__consumer_offsets` compared with the classes of Kafka's own coordinator: every kind, in every version.

Kafka's deserializer reads the same fields from muster's records, and a record that Kafka's classes write from these
fields equals muster's, byte for byte.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError
from muster.protocol import codec, group_messages, messages
from muster.protocol.definitions import schema
from muster.protocol.definitions.class_source import absent_source
from muster.protocol.definitions.schema import Field, StructDefinition
from muster.protocol.group_records import UnknownRecord, decode_record
from muster.protocol.primitives import Message
from muster.protocol.record_kinds import CLASSES, RecordKind
from tests.support.message_strategies import message
from tests.support.peers import java_command, kafka_classpath
from tests.support.scale import examples

PROGRAM = Path(__file__).parent / "java" / "RecordOracle.java"
CORPUS = Path(__file__).parents[1] / "history" / "corpus"
OF_EACH_KIND = 60
"""How many different records of real clusters are compared."""

Classes = tuple[type[Message], type[Message]]
CLASSIC: dict[int, Classes] = {
    RecordKind.LEGACY_OFFSET_COMMIT: (messages.OffsetCommitKey, messages.OffsetCommitValue),
    RecordKind.OFFSET_COMMIT: (messages.OffsetCommitKey, messages.OffsetCommitValue),
    RecordKind.GROUP_METADATA: (messages.GroupMetadataKey, messages.GroupMetadataValue),
}
OF_KIND: dict[int, Classes] = CLASSIC | {kind: classes[1:] for kind, classes in CLASSES.items()}
EACH = [
    pytest.param(kind, version, id=f"{RecordKind(kind).kafka_name}-v{version}")
    for kind, (_, value_class) in OF_KIND.items()
    for version in range(value_class.MIN_VERSION, 0 if kind == 0 else value_class.MAX_VERSION + 1)
]


class Oracle:
    """Kafka's classes, in a process that answers each line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, key: bytes, value: bytes | None) -> dict[str, Any]:
        """What Kafka reads from a record."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{key.hex()} {'-' if value is None else value.hex()}\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


def started(program: Path) -> Iterator[Oracle]:
    """A program of this kind, ended with the block."""
    command = [*java_command(["-cp", kafka_classpath()]), str(program)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    ) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def oracle(java: str) -> Iterator[Oracle]:
    yield from started(PROGRAM)


# --------------------------------------------------------------------------------------------- Kafka's JSON as messages


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _module(struct: StructDefinition) -> ModuleType:
    return (
        messages
        if hasattr(messages, struct.name) and struct.name.startswith(("Off", "Group", "Mem"))
        else group_messages
    )


def _made(struct: StructDefinition, node: dict[str, Any]) -> Any:
    module = _module(struct)
    absent = vars(module) | {"EMPTY": [], "ZERO_UUID": bytes(16)}
    fields = {}
    for member in struct.fields:
        name = _camel(member.name)
        fields[member.name] = _value(member, node.pop(name)) if name in node else eval(absent_source(member), absent)
    assert not node, "fields that we do not have"
    return getattr(module, struct.name)(**fields)


def _value(member: Field, node: Any) -> Any:
    if node is None:
        return None
    if member.is_array:
        return [_element(member, each) for each in node]
    return _element(member, node)


def _element(member: Field, node: Any) -> Any:
    if member.struct is not None:
        return _made(member.struct, node)
    if member.element == "bytes":
        return base64.b64decode(node)
    if member.element == "uuid":
        return base64.urlsafe_b64decode(node + "==")
    return node


def assert_same(oracle: Oracle, key: bytes, value: bytes | None, *, same_bytes: bool = True) -> None:
    """Kafka reads the same from these bytes as muster."""
    record = decode_record(key, value)
    assert not isinstance(record, UnknownRecord)
    said = oracle.ask(key, value)
    assert "error" not in said, said
    assert said["type"] == RecordKind(int.from_bytes(key[:2], "big")).name
    assert _made(schema.message(type(record.key).__name__), said["key"]) == record.key
    assert ("value" in said) == (value is not None)
    if value is not None and record.value is not None:
        assert _made(schema.message(type(record.value).__name__), said["value"]) == record.value
    if same_bytes:
        assert said["keyBytes"] == key.hex()
        assert said.get("valueBytes") == (None if value is None else value.hex())


# ----------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("kind", "version"), EACH)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kafka_reads_what_we_write_and_writes_what_we_read(oracle: Oracle, kind: int, version: int, data: Any) -> None:
    key_class, value_class = OF_KIND[kind]
    key = pack(">h", kind) + codec.encode(data.draw(message(key_class.__name__, 0)), 0)
    value = pack(">h", version) + codec.encode(data.draw(message(value_class.__name__, version)), version)
    assert_same(oracle, key, value)
    assert_same(oracle, key, None)


def _of_real_clusters() -> dict[int, set[tuple[bytes, bytes | None]]]:
    found: dict[int, set[tuple[bytes, bytes | None]]] = {}
    for path in sorted(CORPUS.glob("*.json.gz")):
        for _, _, _, _, key, value, *_ in json.loads(gzip.decompress(path.read_bytes()))["records"]:
            data = base64.b64decode(key or "")
            records = found.setdefault(int.from_bytes(data[:2], "big"), set())
            if len(records) < OF_EACH_KIND and key is not None:
                records.add((data, None if value is None else base64.b64decode(value)))
    return found


def test_records_of_real_clusters(oracle: Oracle) -> None:
    """Recordings of Kafka 4.2 and of muster, with members of both protocols, from Java, librdkafka and Python
    clients."""
    found = _of_real_clusters()
    assert {1, 2, 3, 5, 6, 7, 8} <= set(found)
    for records in found.values():
        for key, value in records:
            assert_same(oracle, key, value)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("0009000167", None, "UnknownRecordTypeException"),
        ("7fff", None, "UnknownRecordTypeException"),
        ("000300", None, "RuntimeException"),
        ("0003000167", "0000000000", "RuntimeException"),
        ("0003000167", "", "RuntimeException"),
    ],
)
def test_what_is_unknown_or_broken_to_kafka_is_so_to_us(
    oracle: Oracle, key: str, value: str | None, error: str
) -> None:
    data = bytes.fromhex(key), None if value is None else bytes.fromhex(value)
    assert error in oracle.ask(*data)["error"]
    if error == "RuntimeException":
        with pytest.raises(ProtocolError):
            decode_record(*data)
    else:
        assert isinstance(decode_record(*data), UnknownRecord)
