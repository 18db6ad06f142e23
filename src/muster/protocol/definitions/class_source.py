"""Python source for the classes of the messages, made from the tables: the text of `messages.py`, `draft_messages.py`.

`codegen.py` has the command that writes them.
"""

from __future__ import annotations

import re

from muster.protocol.definitions import schema
from muster.protocol.definitions.schema import Field, MessageDefinition, StructDefinition

PY_TYPES = {"string": "str", "bytes": "bytes", "uuid": "bytes", "bool": "bool", "float64": "float"}
_ZERO = {"string": '""', "bytes": 'b""', "uuid": "ZERO_UUID", "bool": "False", "float64": "0.0"}


def _optional(member: Field) -> bool:
    """Whether None is a value: null, or (for a tagged structure) "not sent"."""
    return member.nullable != schema.NEVER or (member.struct is not None and not member.is_array and _tagged(member))


def _is_always_there(member: Field) -> bool:
    """Whether it is a structure that cannot be null."""
    return member.struct is not None and not member.is_array and not _optional(member)


def _tagged(member: Field) -> bool:
    return member.tagged != schema.NEVER


def annotation(member: Field) -> str:
    if member.type == "records":
        return "Records"
    name = member.struct.name if member.struct else PY_TYPES.get(member.element, "int")
    if member.is_array:
        name = f"list[{name}]"
    return f"{name} | None" if _optional(member) else name


def default_source(member: Field) -> str:
    """The default of a field as Python source. For a structure that cannot be null, `None` stands for one with its
    defaults."""
    if member.default == "null" or member.type == "records":
        return "None"
    if member.is_array:
        return "EMPTY"
    if member.struct is not None:
        return "None"
    if member.element == "string":
        return repr(member.default or "").replace("'", '"')
    if member.default is None:
        return _ZERO.get(member.element, "0")
    return member.default.capitalize() if member.element == "bool" else member.default


def absent_source(member: Field) -> str:
    """The value of a tagged field that was not sent, as Python source.

    In Kafka's tables the default of a nullable structure is null only if they say "null". If they do not, the structure
    with its defaults need not be sent, but null must be, as one byte, 0.
    """
    if member.struct is not None and not member.is_array and member.nullable != schema.NEVER and not member.default:
        return f"{member.struct.name}()"
    return default_source(member)


def _class_source(struct: StructDefinition, bases: str, class_lines: list[str]) -> list[str]:
    slots = "".join(f'"{member.name}", ' for member in struct.fields)
    lines = [f"class {struct.name}({bases}):", *class_lines]
    lines += [f"    __slots__ = ({slots.rstrip()})", ""]
    lines.append("    def __init__(")
    lines.append("        self,")
    for member in struct.fields:
        stand_in = " | None" if _is_always_there(member) else ""
        lines.append(f"        {member.name}: {annotation(member)}{stand_in} = {default_source(member)},")
    lines.append("    ) -> None:")
    for member in struct.fields:
        value = member.name
        if default_source(member) == "EMPTY":
            value = f"[] if {member.name} is EMPTY else {member.name}"
        elif _is_always_there(member):
            value = f"{annotation(member)}() if {member.name} is None else {member.name}"
        lines.append(f"        self.{member.name} = {value}")
    return [*lines, "", ""]


def _message_bases(message: MessageDefinition) -> tuple[str, list[str]]:
    last = message.versions.last
    flexible = message.flexible.first if message.flexible != schema.NEVER else 1 << 15
    lines = [f"    MIN_VERSION: ClassVar = {message.versions.first}", f"    MAX_VERSION: ClassVar = {last}"]
    lines.append(f"    FIRST_FLEXIBLE_VERSION: ClassVar = {flexible}")
    if message.older != schema.NEVER:
        lines.append(f"    OLDEST_VERSION: ClassVar = {message.older.first}")
    if message.kind not in ("request", "response"):
        return "Message", lines
    lines.append(f"    API_KEY: ClassVar = {message.key}")
    if message.kind == "response":
        return "Response", lines
    response = message.name.removesuffix("Request") + "Response"
    return f'Request["{response}"]', [*lines, f"    RESPONSE: ClassVar = {response}"]


IMPORTED = "EMPTY", "ZERO_UUID", "Message", "Records", "Request", "Response", "Struct"


def messages_source(file: str) -> str:
    """The text of one of `schema.TABLES`."""
    names = schema.message_names(schema.TABLES[file])
    lines: list[str] = []
    for name in sorted(names, key=lambda name: (name.endswith("Request"), names.index(name))):
        message = schema.message(name)
        for struct in message.structs():
            lines += _class_source(struct, "Struct", [])
        lines += _class_source(message, *_message_bases(message))
    body = "\n".join(lines).rstrip("\n") + "\n"
    used = ", ".join(name for name in IMPORTED if re.search(rf"\b{name}\b", body))
    table = "client_definitions.py" if file == "messages.py" else file.replace("messages", "definitions")
    return f'''# Made by `python -m muster.protocol.definitions.codegen` from {table}; do not edit.
"""The messages of Kafka's protocol: one class for all versions of each, fields as Kafka names them.

A field that a version does not carry has its default after decoding, and is left out when encoding.
"""

from __future__ import annotations

from typing import ClassVar

from muster.protocol.primitives import {used}


{body}'''
