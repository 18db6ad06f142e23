"""The codecs of a broker's most frequent messages, as one module with types, which a compiler can turn into fast code.

The statements are those of `protocol/definitions/codegen.py`; here every local gets its type, and every codec a name.
In a compiled build (compiled.py) the module is `muster.protocol.ready_codecs`. `muster.protocol.codec` uses it if it
exists, and compiles all other codecs when they are first used, as it does all codecs without the module. Its decoders
read only `bytes`.
"""

from __future__ import annotations

import re

from muster.protocol import messages
from muster.protocol.definitions import schema
from muster.protocol.definitions.class_source import PY_TYPES, annotation
from muster.protocol.definitions.codegen import DecoderWriter, EncoderWriter
from muster.protocol.definitions.schema import Field
from muster.protocol.primitives import Struct

ASKED_MOST = {"Heartbeat": 3, "JoinGroup": 5, "SyncGroup": 3, "OffsetCommit": 7, "OffsetFetch": 7, "Produce": 10}
"""Requests, each with the oldest version that current clients still send."""
RECORDS = {"GroupMetadataKey": 0, "GroupMetadataValue": 3, "OffsetCommitKey": 0, "OffsetCommitValue": 4}
"""The records in which they are stored, in the version that is written."""
HELPERS = (
    "EMPTY",
    "Records",
    "UNLIMITED",
    "UVARINT",
    "ZERO_UUID",
    "count_error",
    "cut_string",
    "long_uvarint",
    "null_error",
    "packer",
    "read_uvarint",
    "records_size",
    "string_length",
    "too_many_elements",
    "unusual_string",
    "uvarint",
)
"""What the statements use from `muster.protocol.primitives`."""

HEAD = '''"""Codecs with types, made by tools/typed_codecs.py."""

# A field is optional if any version lets it be null: None in another raises TypeError or AttributeError.
# mypy: disable-error-code="arg-type, assignment, union-attr"

from __future__ import annotations

from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any, Final

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.protocol.messages import {messages}
from muster.protocol.primitives import {primitives}


def truncated() -> ProtocolError:
    return ProtocolError("the message is truncated")


def lost(message: str, version: int, field: str) -> UnsupportedVersionError:
    text = f"{{message}} v{{version}}, the newest that the broker supports, cannot carry {{field}}"
    return UnsupportedVersionError(text)


'''


class TypedDecoder(DecoderWriter):
    """A decoder that notes the types of its locals."""

    def __init__(self, message: schema.MessageDefinition, version: int) -> None:
        super().__init__(message, version, sliced=False, of_bytes=True)
        self.types: dict[str, str] = {}

    def typed(self, name: str, kind: str, optional: bool = False) -> str:
        if name.isidentifier() and name not in self.types:
            self.types[name] = f"{kind} | None" if optional else kind
        return name

    def plain(self, member: Field, kind: str, nullable: bool) -> str:
        if kind == "records":
            return self.typed(super().plain(member, kind, nullable), "Records")
        return self.typed(super().plain(member, kind, nullable), PY_TYPES.get(kind, "int"), nullable)

    def fixed(self, fmt: str, stem: str) -> str:
        return self.typed(super().fixed(fmt, stem), {"?": "bool", "d": "float", "16s": "bytes"}.get(fmt, "int"))

    def one_struct(self, member: Field) -> str:
        assert member.struct is not None
        return self.typed(super().one_struct(member), member.struct.name, True)

    def array(self, member: Field) -> str:
        element = member.struct.name if member.struct else PY_TYPES.get(member.element, "int")
        return self.typed(super().array(member), f"list[{element}]", self.nullable(member))

    def tags(self, members: list[Field]) -> dict[str, str]:
        values = super().tags(members)
        for member in members:
            self.types[values[member.name]] = annotation(member)
        return values


def module_source() -> str:
    """The text of the module."""
    packers: dict[str, str] = {}
    functions: list[str] = []
    table: list[str] = []
    for name, version in chosen():
        encoder, decoder = EncoderWriter(schema.message(name), version), TypedDecoder(schema.message(name), version)
        functions += [_typed_encoder(encoder), _typed_decoder(decoder)]
        packers |= encoder.packers | decoder.packers
        table.append(f"    ({name}, {version}): (encode_{name}_{version}, decode_{name}_{version}),")
    body = "\n\n".join(functions)
    words = set(re.findall(r"\w+", f"{body} packer uvarint"))
    classes = [name for name, value in vars(messages).items() if isinstance(value, type) and issubclass(value, Struct)]
    head = HEAD.format(
        messages=", ".join(sorted(words.intersection(classes))),
        primitives=", ".join(sorted(words.intersection(HELPERS))),
    )
    constants = "".join(f"{name}: Final = {expression}\n" for name, expression in packers.items())
    codecs = "\n".join(table)
    return f"{head}{constants}\n\n{body}\n\nCODECS: dict[tuple[Any, int], tuple[Any, Any]] = {{\n{codecs}\n}}\n"


def chosen() -> list[tuple[str, int]]:
    """The codecs in the module: message and version."""
    oldest = {f"{name}{kind}": ASKED_MOST[name] for name in ASKED_MOST for kind in ("Request", "Response")} | RECORDS
    return [
        (name, version) for name in oldest for version in range(oldest[name], schema.message(name).versions.last + 1)
    ]


def _typed_encoder(encoder: EncoderWriter) -> str:
    name = encoder.message.name
    head = f"def encode_{name}_{encoder.version}(m: {name}, w: Callable[[Any], Any], left: int = UNLIMITED) -> None:"
    source = re.sub(r"^def encode\(.*\):", head, encoder.source())
    return re.sub(r"(\bb\d+) = \[\]; ", r"\1: list[Any] = []; ", source)


def _typed_decoder(decoder: TypedDecoder) -> str:
    name = decoder.message.name
    source = decoder.source()
    types = "".join(f"\n    {local}: {kind}" for local, kind in decoder.types.items())
    head = f"def decode_{name}_{decoder.version}(buf: bytes, pos: int, left: int = UNLIMITED) -> tuple[{name}, int]:"
    return re.sub(r"^def decode\(.*\):", head + types, source)
