"""The grammar of `client_definitions.py` and the files next to it, and version ranges.

One line states one field::

    rebalance_timeout_ms  int32 1+ default=-1 ignorable
    topics  []MetadataRequestTopic null=1+
        name  string null=10+

name, type, then in any order: the versions that carry the field (0+ by default), `null=` the versions in which it may
be null, `default=`, `tag=N:` the versions in which it is a tagged field, `inflexible` (keeps the old string encoding in
flexible versions), `ignorable` (silently dropped in a version that cannot carry it).
Deeper lines are the fields of the structure. `struct NAME` opens a structure that several fields share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from struct import calcsize

from muster.protocol.definitions.admin_definitions import ADMIN_MESSAGES
from muster.protocol.definitions.client_definitions import MESSAGES
from muster.protocol.definitions.draft_definitions import DRAFT_MESSAGES
from muster.protocol.definitions.group_definitions import GROUP_MESSAGES
from muster.protocol.definitions.sasl_definitions import SASL_MESSAGES
from muster.protocol.definitions.transaction_definitions import TRANSACTION_MESSAGES

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width, with the `struct` format of each."""

TABLES = {
    "messages.py": MESSAGES,
    "draft_messages.py": DRAFT_MESSAGES,
    "group_messages.py": GROUP_MESSAGES,
    "sasl_messages.py": SASL_MESSAGES,
    "admin_messages.py": ADMIN_MESSAGES,
    "transaction_messages.py": TRANSACTION_MESSAGES,
}
"""The messages, by the module that is generated from them. In each the names of structures are unique."""

_NEVER = 1 << 15


def packed_size(fmt: str) -> int:
    """Bytes of a run of fixed-width fields."""
    return calcsize(">" + fmt)


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; `first > last` is the empty one."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read `none`, `3`, `0-9` or `5+`."""
        if text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), _NEVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NEVER = Versions.parse("none")
ALWAYS = Versions.parse("0+")


@dataclass(slots=True)
class Field:
    """One field of a structure, with everything that its encoding depends on."""

    name: str
    type: str
    versions: Versions = ALWAYS
    nullable: Versions = NEVER
    default: str | None = None
    tag: int | None = None
    tagged: Versions = NEVER
    inflexible: bool = False
    ignorable: bool = False
    struct: StructDefinition | None = None

    @property
    def is_array(self) -> bool:
        """Whether the field is a list."""
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        """The type of one element (of the field itself if it is not a list)."""
        return self.type.removeprefix("[]")


@dataclass(slots=True)
class StructDefinition:
    """A structure: its own name, Kafka's name for it, its fields."""

    name: str
    kafka_name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class MessageDefinition(StructDefinition):
    """A message: a structure with versions of its own."""

    kind: str = "data"
    key: int | None = None
    versions: Versions = ALWAYS
    older: Versions = NEVER
    """Versions that today's Kafka no longer supports, but older brokers do."""
    flexible: Versions = NEVER
    common: dict[str, StructDefinition] = field(default_factory=dict)

    def structs(self) -> list[StructDefinition]:
        """Every structure inside the message, the inner ones first, each once."""
        found: dict[str, StructDefinition] = {}

        def visit(struct: StructDefinition) -> None:
            for member in struct.fields:
                if member.struct is not None and member.struct.name not in found:
                    visit(member.struct)
                    found[member.struct.name] = member.struct

        visit(self)
        return list(found.values())


def _parse_field(words: list[str]) -> Field:
    parsed = Field(words[0], words[1])
    for word in words[2:]:
        name, _, value = word.partition("=")
        if name == "null":
            parsed.nullable = Versions.parse(value)
        elif name == "default":
            parsed.default = "" if value == '""' else value
        elif name == "tag":
            number, _, versions = value.partition(":")
            parsed.tag, parsed.tagged = int(number), Versions.parse(versions)
        elif word == "inflexible":
            parsed.inflexible = True
        elif word == "ignorable":
            parsed.ignorable = True
        else:
            parsed.versions = Versions.parse(word)
    return parsed


def _parse_head(line: str) -> MessageDefinition:
    kind, name, *settings = line.split()
    values = dict(setting.split("=", 1) for setting in settings)
    return MessageDefinition(
        name,
        name,
        kind=kind,
        key=int(values["key"]) if "key" in values else None,
        versions=Versions.parse(values["versions"]),
        older=Versions.parse(values.get("older", "none")),
        flexible=Versions.parse(values["flexible"]),
    )


def _parse_message(table: str, block: str) -> MessageDefinition:
    head, *lines = block.strip("\n").split("\n")
    message = _parse_head(head)
    open_structs: list[tuple[int, StructDefinition]] = [(-1, message)]
    pending: list[Field] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        while open_structs[-1][0] >= depth:
            open_structs.pop()
        words = line.split()
        if words[0] == "struct":
            common = StructDefinition(_unique(table, message.name, words[1]), words[1])
            message.common[words[1]] = common
            open_structs.append((depth, common))
            continue
        member = _parse_field(words)
        open_structs[-1][1].fields.append(member)
        if member.element not in FIXED and member.element not in ("string", "bytes", "records"):
            pending.append(member)
            member.struct = StructDefinition(_unique(table, message.name, member.element), member.element)
            open_structs.append((depth, member.struct))
    for member in pending:
        if member.element in message.common:
            member.struct = message.common[member.element]
    return message


@cache
def _blocks(table: str) -> dict[str, str]:
    return {block.split(None, 2)[1]: block for block in re.split(r"\n\n+", table.strip("\n"))}


@cache
def _shared_names(table: str) -> frozenset[str]:
    """Names of structures that occur in more than one message: their class names begin with the message's name."""
    owners: dict[str, set[str]] = {}
    for name, block in _blocks(table).items():
        for struct in re.findall(r"^ +(?:\w+ +(?:\[\])?|struct )([A-Z]\w+)", block, re.M):
            owners.setdefault(struct, set()).add(name)
    return frozenset(struct for struct, names in owners.items() if len(names) > 1)


def _unique(table: str, message: str, struct: str) -> str:
    return message + struct if struct in _shared_names(table) else struct


@cache
def message(name: str) -> MessageDefinition:
    """The definition of one message. Parsed on first use: a broker needs a dozen of them to start."""
    table = next(table for table in TABLES.values() if name in _blocks(table))
    return _parse_message(table, _blocks(table)[name])


def message_names(table: str = MESSAGES) -> list[str]:
    """All messages of a table, in its order."""
    return list(_blocks(table))
