"""muster's protocol tables compared with the definitions in Apache Kafka's own jars, field by field."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from muster.protocol.definitions import schema
from muster.protocol.definitions.admin_definitions import ADMIN_MESSAGES
from muster.protocol.definitions.client_definitions import MESSAGES
from muster.protocol.definitions.group_definitions import GROUP_MESSAGES
from muster.protocol.definitions.sasl_definitions import SASL_MESSAGES
from muster.protocol.definitions.schema import Field, StructDefinition, Versions
from muster.protocol.definitions.transaction_definitions import TRANSACTION_MESSAGES
from muster.protocol.record_kinds import RecordKind
from tests.support.peers import kafka_jar

_JARS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")

OWN_TAGS = 1_000
"""Tagged fields from this number on are muster's own."""


@cache
def _definition(name: str) -> dict[str, Any]:
    for artifact in _JARS:
        with zipfile.ZipFile(Path(kafka_jar(artifact))) as jar:
            if (path := f"common/message/{name}.json") in jar.namelist():
                text = jar.read(path).decode()
                found: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
                return found
    raise AssertionError(f"Kafka has no message {name}")


def _snake(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _default(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return str(int(value, 16)) if isinstance(value, str) and value.startswith("0x") else value
    return json.dumps(value)


def _theirs(field: dict[str, Any]) -> Field:
    """A tagged field without versions of its own has those in which it is tagged."""
    return Field(
        name=_snake(field["name"]),
        type=field["type"],
        versions=Versions.parse(field.get("versions") or field["taggedVersions"]),
        nullable=Versions.parse(field.get("nullableVersions", "none")),
        default=_default(field.get("default")),
        tag=field.get("tag"),
        tagged=Versions.parse(field.get("taggedVersions", "none")),
        inflexible=field.get("flexibleVersions") == "none",
        ignorable=field.get("ignorable", False),
    )


def _compare(
    ours: StructDefinition, fields: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]], oldest: int
) -> None:
    """Only muster has the fields of versions that Kafka has dropped, and those with one of muster's own tags."""
    known = [m for m in ours.fields if m.versions.last >= oldest and (m.tag or 0) < OWN_TAGS]
    assert [member.name for member in known] == [_snake(field["name"]) for field in fields], ours.name
    for member, field in zip(known, fields, strict=True):
        theirs = _theirs(field)
        theirs.struct = member.struct
        assert member == theirs, f"{ours.name}.{member.name}"
        inner = field.get("fields") or common.get(member.element)
        assert (member.struct is None) == (inner is None)
        if member.struct is not None and inner is not None:
            _compare(member.struct, inner, common, oldest)


@pytest.mark.parametrize(
    "name",
    [
        name
        for table in (MESSAGES, GROUP_MESSAGES, SASL_MESSAGES, ADMIN_MESSAGES, TRANSACTION_MESSAGES)
        for name in schema.message_names(table)
    ],
)
def test_table_says_what_kafka_says(name: str) -> None:
    ours, theirs = schema.message(name), _definition(name)
    assert ours.kind == theirs["type"]
    assert ours.key == theirs.get("apiKey")
    assert ours.versions == Versions.parse(theirs["validVersions"])
    assert ours.flexible == Versions.parse(theirs.get("flexibleVersions", "none"))
    common = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", [])}
    _compare(ours, theirs["fields"], common, ours.versions.first)


def test_no_kind_of_record_is_missing() -> None:
    """Every kind of record is known. Keys and values of the first kind (legacy commits) are read like those of the
    second, in all its versions."""
    with zipfile.ZipFile(Path(kafka_jar("kafka-group-coordinator"))) as jar:
        names = {
            Path(path).stem for path in jar.namelist() if path.startswith("common/message/") and path.endswith(".json")
        }
    kinds = {(_definition(name)["apiKey"], re.sub("(Key|Value)$", "", name)) for name in names}
    assert kinds == {(int(kind), kind.kafka_name) for kind in RecordKind}
    legacy, modern = _definition("LegacyOffsetCommitKey"), _definition("OffsetCommitKey")
    assert legacy["fields"] == modern["fields"]
