"""Hypothesis strategies for any message of the protocol in any version, drawn from muster's own tables."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from muster.protocol import (
    admin_messages,
    draft_messages,
    group_messages,
    messages,
    sasl_messages,
    transaction_messages,
)
from muster.protocol.definitions import schema
from muster.protocol.definitions.schema import Field, StructDefinition

_BOUNDS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def message(name: str, version: int, *, modest: bool = False) -> st.SearchStrategy[Any]:
    """A message as it may be sent in a version: fields that the version lacks have their defaults.

    `modest` keeps numbers within the ranges that other libraries can represent as error codes, dates and durations.
    """
    modules = (messages, admin_messages, draft_messages, group_messages, sasl_messages, transaction_messages)
    module = next(module for module in modules if hasattr(module, name))
    return _struct(module, schema.message(name), version, modest)


def _struct(module: ModuleType, struct: StructDefinition, version: int, modest: bool) -> st.SearchStrategy[Any]:
    fields = {m.name: _field(module, m, version, modest) for m in struct.fields if version in m.versions}
    return st.builds(getattr(module, struct.name), **fields)


def _field(module: ModuleType, member: Field, version: int, modest: bool) -> st.SearchStrategy[Any]:
    values = _element(module, member, version, modest)
    if member.is_array:
        values = st.lists(values, max_size=3)
    optional = version in member.nullable or (
        version in member.tagged and member.struct is not None and not member.is_array
    )
    return st.none() | values if optional else values


def _element(module: ModuleType, member: Field, version: int, modest: bool) -> st.SearchStrategy[Any]:
    if member.struct is not None:
        return _struct(module, member.struct, version, modest)
    kind = member.element
    if kind == "string":
        return st.text(max_size=200 if member.name.endswith("metadata") else 12)
    if kind in ("bytes", "records"):
        return st.binary(max_size=200)
    if kind == "uuid":
        return st.binary(min_size=16, max_size=16)
    if kind == "bool":
        return st.booleans()
    if modest and member.name.endswith("error_code"):
        return st.integers(0, 100)
    if modest and kind == "int64":
        return st.integers(0, 10**12)
    if modest and kind == "int32" and member.name.endswith("_ms"):
        return st.integers(0, 10**6)
    if kind == "uint16":
        return st.integers(0, 2**16 - 1)
    bits = _BOUNDS[kind]
    return st.integers(-(2**bits), 2**bits - 1)
