"""Python source for the messages and their codecs, made from the tables of `definitions.py`.

There are two products. `messages.py`, with the classes of the messages, is checked in (`python -m
muster.protocol.codegen` writes it, `--check` tells whether it is fresh). The codecs, one pair of functions for each
message and version, are compiled when first used (`codec.py`); `python -m muster.protocol.codegen JoinGroupRequest 9`
prints them.

The functions are straight-line code: no call for each field, runs of fixed-width fields fused into one `struct` call,
nested arrays as nested loops. Encoding appends buffers to a list, so that record batches are never copied.

Both take `left`, the elements of arrays (and tags) that may come; the one too many raises TooManyElementsError before
it is built. The *sliced* kind of a codec is the same code as a generator that yields every SLICE elements, so that its
caller can do other work in between.
"""

from __future__ import annotations

import sys
from pathlib import Path

from muster.protocol import schema
from muster.protocol.schema import FIXED, Field, Message, Struct

PY_TYPES = {"string": "str", "bytes": "bytes", "uuid": "bytes", "bool": "bool", "float64": "float"}
_ZERO = {"string": '""', "bytes": 'b""', "uuid": "ZERO_UUID", "bool": "False", "float64": "0.0"}


# --- messages.py -----------------------------------------------------------------------------------------------------


def _optional(member: Field) -> bool:
    """Whether None is a value: a null, or (for a tagged structure) "not sent"."""
    return member.nullable != schema.NEVER or (member.struct is not None and not member.is_array and _tagged(member))


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
    """The default of a field as Python source. A structure that is neither null nor an array has none: `None`."""
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


def _class_source(struct: Struct, bases: str, class_lines: list[str]) -> list[str]:
    slots = "".join(f'"{member.name}", ' for member in struct.fields)
    lines = [f"class {struct.name}({bases}):", *class_lines]
    lines += [f"    FIELDS: ClassVar = ({slots.rstrip()})", "    __slots__ = FIELDS", ""]
    lines.append("    def __init__(")
    lines.append("        self,")
    lines += [f"        {member.name}: {annotation(member)} = {default_source(member)}," for member in struct.fields]
    lines.append("    ) -> None:")
    for member in struct.fields:
        value = member.name
        if default_source(member) == "EMPTY":
            value = f"[] if {member.name} is EMPTY else {member.name}"
        lines.append(f"        self.{member.name} = {value}")
    return [*lines, "", ""]


def _message_bases(message: Message) -> tuple[str, list[str]]:
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


def messages_source() -> str:
    """The text of `messages.py`."""
    lines = [
        "# Made by `python -m muster.protocol.codegen` from definitions.py; do not edit.",
        '"""The messages of Kafka\'s protocol: one class for all versions of each, fields as Kafka names them.',
        "",
        "A field that a version does not carry has its default after decoding, and is left out when encoding.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import ClassVar",
        "",
        "from muster.protocol.primitives import EMPTY, ZERO_UUID, Message, Records, Request, Response, Struct",
        "",
        "",
    ]
    names = schema.message_names()
    for name in sorted(names, key=lambda name: (name.endswith("Request"), names.index(name))):
        message = schema.message(name)
        for struct in message.structs():
            lines += _class_source(struct, "Struct", [])
        lines += _class_source(message, *_message_bases(message))
    return "\n".join(lines).rstrip("\n") + "\n"


# --- codecs ----------------------------------------------------------------------------------------------------------

SLICE = 128
"""Elements between two yields of a sliced codec. A power of two."""


class _Writer:
    """Lines of one function, with indentation, fresh names and a run of fixed-width fields not yet emitted."""

    def __init__(self, message: Message, version: int, sliced: bool = False) -> None:
        self.message = message
        self.version = version
        self.sliced = sliced
        self.flexible = version in message.flexible
        self.lines: list[str] = []
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        self.packers: dict[str, str] = {}
        self.counter = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def packer(self, fmt: str, kind: str) -> str:
        name = f"{kind}_{fmt.replace('?', 'B_')}"
        self.packers[name] = f"packer({fmt!r}).{kind}"
        return name

    def compact(self, member: Field) -> bool:
        return self.flexible and not member.inflexible

    def present(self, struct: Struct) -> list[Field]:
        """Fields outside the tagged section."""
        return [m for m in struct.fields if self.version in m.versions and not self.is_tagged(m)]

    def tagged(self, struct: Struct) -> list[Field]:
        found = [m for m in struct.fields if self.version in m.versions and self.is_tagged(m)]
        return sorted(found, key=lambda m: m.tag or 0)

    def count(self, size: str) -> None:
        """Take an array's elements off what may come."""
        self.line(f"left -= {size}")
        self.line("if left < 0: raise too_many_elements()")

    def may_yield(self) -> None:
        """Within a loop over elements."""
        if self.sliced:
            self.line("turn += 1")
            self.line(f"if not turn & {SLICE - 1}: yield")

    def function(self, head: str, end: str = "") -> str:
        """The source of the function; a generator has a `yield` even if its message has no loop."""
        lines = self.lines or ["    pass"]
        if self.sliced:
            lines = ["    turn = 0", *lines]
            end += "    if False: yield\n"
        return f"{head}\n" + "\n".join(lines) + "\n" + end

    def is_tagged(self, member: Field) -> bool:
        return self.flexible and self.version in member.tagged

    def nullable(self, member: Field) -> bool:
        return self.version in member.nullable


class Encoder(_Writer):
    """Writes `def encode(m, w, left)`: `w` takes one buffer after the other."""

    def source(self) -> str:
        self.struct(self.message, "m")
        self.flush()
        return self.function("def encode(m, w, left=UNLIMITED):")

    def struct(self, struct: Struct, value: str) -> None:
        if self.message.kind == "request":
            self.refuse_what_is_lost(struct, value)
        for member in self.present(struct):
            self.field(member, f"{value}.{member.name}")
        if self.flexible:
            self.tags(self.tagged(struct), value)

    def refuse_what_is_lost(self, struct: Struct, value: str) -> None:
        for member in struct.fields:
            if self.version not in member.versions and not member.ignorable:
                name = f"{value}.{member.name}"
                default = default_source(member)
                lost = (
                    name
                    if default == "EMPTY"
                    else f"{name} is not None"
                    if default == "None"
                    else f"{name} != {default}"
                )
                self.line(f"if {lost}:")
                self.line(f"    raise lost({self.message.name!r}, {self.version}, {member.name!r})")

    def flush(self) -> None:
        if not self.run:
            return
        fmt = "".join(f for f, _ in self.run)
        if all(e.isdigit() for _, e in self.run):
            self.line(f"w({bytes(int(e) for _, e in self.run)!r})")
        else:
            self.line(f"w({self.packer(fmt, 'pack')}({', '.join(e for _, e in self.run)}))")
        self.run = []

    def length(self, name: str) -> None:
        """A compact length: `name` holds length + 1, 0 for null."""
        self.flush()
        self.line(f"w(UVARINT[{name}] if {name} < 128 else uvarint({name}))")

    def field(self, member: Field, value: str) -> None:
        if member.is_array:
            self.array(member, value)
        elif member.struct is not None:
            self.one_struct(member, value)
        else:
            self.plain(member, member.type, value, self.nullable(member))

    def plain(self, member: Field, kind: str, value: str, nullable: bool) -> None:
        if kind in FIXED:
            self.run.append((FIXED[kind], value))
        elif kind == "records":
            self.records(member, value)
        else:
            self.sized(member, kind, value, nullable)

    def sized(self, member: Field, kind: str, value: str, nullable: bool) -> None:
        """A string or bytes."""
        data, size = self.fresh("b"), self.fresh("n")
        compact = self.compact(member)
        encoded = f"{value}.encode()" if kind == "string" else value
        plus = " + 1" if compact else ""
        if nullable:
            self.line(f"if {value} is None:")
            self.line(f"    {data} = b''; {size} = {0 if compact else -1}")
            self.line("else:")
            self.line(f"    {data} = {encoded}; {size} = len({data}){plus}")
        else:
            self.line(f"{data} = {encoded}; {size} = len({data}){plus}")
        if compact:
            self.length(size)
        else:
            self.run.append(("h" if kind == "string" else "i", size))
            self.flush()
        self.line(f"w({data})")

    def records(self, member: Field, value: str) -> None:
        size = self.fresh("n")
        self.line(f"{size} = records_size({value})")
        if self.compact(member):
            self.line(f"{size} += 1")
            self.length(size)
        else:
            self.run.append(("i", size))
            self.flush()
        self.line(f"if {value} is not None:")
        self.line(f"    if isinstance({value}, list):")
        self.line(f"        for part in {value}: w(part)")
        self.line("    else:")
        self.line(f"        w({value})")

    def one_struct(self, member: Field, value: str) -> None:
        assert member.struct is not None
        if not self.nullable(member):
            self.struct(member.struct, value)
            return
        self.flush()
        self.line(f"if {value} is None:")
        self.line("    w(b'\\xff')")
        self.line("else:")
        self.depth += 1
        self.line("w(b'\\x01')")
        self.struct(member.struct, value)
        self.flush()
        self.depth -= 1

    def array(self, member: Field, value: str) -> None:
        size, item = self.fresh("n"), self.fresh("e")
        compact = self.compact(member)
        count = f"len({value})" + (" + 1" if compact else "")
        if self.nullable(member):
            count = f"{0 if compact else -1} if {value} is None else {count}"
        self.line(f"{size} = {count}")
        self.count(size)
        if compact:
            self.length(size)
        else:
            self.run.append(("i", size))
            self.flush()
        if member.element in FIXED and member.element not in ("uuid", "bool"):
            self.line(f"if {value}:")
            self.line(f"    w(pack(f'>{{len({value})}}{FIXED[member.element]}', *{value}))")
            return
        self.line(f"for {item} in {value}{' or ()' if self.nullable(member) else ''}:")
        self.depth += 1
        self.may_yield()
        before = len(self.lines)
        if member.struct is not None:
            self.struct(member.struct, item)
        else:
            self.plain(member, member.element, item, False)
        self.flush()
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def tags(self, members: list[Field], value: str) -> None:
        if not members:
            self.run.append(("B", "0"))
            return
        self.flush()
        tags = self.fresh("t")
        self.line(f"{tags} = []")
        for member in members:
            self.tag(member, f"{value}.{member.name}", tags)
        self.line(f"w(uvarint(len({tags})))")
        body = self.fresh("b")
        number = self.fresh("n")
        self.line(f"for {number}, {body} in {tags}:")
        self.line(f"    w(uvarint({number}) + uvarint(len({body})) + {body})")

    def tag(self, member: Field, value: str, tags: str) -> None:
        default = default_source(member)
        if default == "EMPTY":
            self.line(f"if {value}:")
        elif default == "None":
            extra = f" and {value} != {member.struct.name}()" if member.struct and not self.nullable(member) else ""
            self.line(f"if {value} is not None{extra}:")
        else:
            self.line(f"if {value} != {default}:")
        self.depth += 1
        body, outer = self.fresh("b"), self.fresh("w")
        self.line(f"{body} = []; {outer} = w; w = {body}.append")
        self.field(member, value)
        self.flush()
        self.line(f"w = {outer}; {tags}.append(({member.tag}, b''.join({body})))")
        self.depth -= 1


class Decoder(_Writer):
    """Writes `def decode(buf, pos, left)`, which returns the message and the position behind it."""

    def __init__(self, message: Message, version: int, sliced: bool, of_bytes: bool) -> None:
        super().__init__(message, version, sliced)
        self.of_bytes = of_bytes

    def read(self, kind: str, end: str) -> str:
        """What reads a value that ends at `end`. Of `bytes` a part is bytes, and text takes half as long."""
        part = f"buf[pos:{end}]"
        if kind == "string":
            return f"{part}.decode()" if self.of_bytes else f"str({part}, 'utf-8')"
        return f"bytes({part})" if kind == "bytes" and not self.of_bytes else part

    def source(self) -> str:
        result = self.struct(self.message)
        self.flush()
        self.line("if pos > end:")
        self.line("    raise truncated()")
        self.line(f"return {result}, pos")
        return self.function("def decode(buf, pos, left=UNLIMITED):\n    end = len(buf)")

    def struct(self, struct: Struct) -> str:
        """Emit what reads a structure; the expression that builds it is returned (valid after `flush`)."""
        values = {member.name: self.field(member) for member in self.present(struct)}
        if self.flexible:
            values |= self.tags(self.tagged(struct))
        arguments = [values.get(m.name, default_source(m)) for m in struct.fields]
        return f"{struct.name}({', '.join(arguments)})"

    def flush(self) -> None:
        if not self.run:
            return
        fmt = "".join(f for f, _ in self.run)
        targets = ", ".join(t for _, t in self.run)
        self.line(f"({targets},) = {self.packer(fmt, 'unpack_from')}(buf, pos)")
        self.line(f"pos += {schema.packed_size(fmt)}")
        self.run = []

    def fixed(self, fmt: str, stem: str) -> str:
        name = self.fresh(stem)
        self.run.append((fmt, name))
        return name

    def compact_length(self) -> str:
        size = self.first_byte()
        self.line(f"if {size} > 127: {size}, pos = long_uvarint(buf, pos, {size})")
        self.line(f"{size} -= 1")
        return size

    def first_byte(self) -> str:
        """Of a compact length, read together with the fields before it."""
        if self.run:
            size = self.fixed("B", "n")
            self.flush()
        else:
            size = self.fresh("n")
            self.line(f"{size} = buf[pos]; pos += 1")
        return size

    def compact_string(self, member: Field, nullable: bool) -> str:
        """Nearly all have less than 127 bytes; that they have is the first question."""
        size, end, value = self.first_byte(), self.fresh("p"), self.fresh("v")
        self.line(f"if 1 < {size} < 128:")
        self.line(f"    {end} = pos + {size} - 1")
        self.line(f"    {value} = {self.read('string', end)}; pos = {end}")
        self.line(f"elif {size} == 1: {value} = ''")
        if nullable:
            self.line(f"elif not {size}: {value} = None")
        self.line(f"else: {value}, pos = unusual_string(buf, pos, {size}, {member.name!r}, {nullable})")
        return value

    def field(self, member: Field) -> str:
        if member.is_array:
            return self.array(member)
        if member.struct is not None:
            return self.one_struct(member)
        return self.plain(member, member.type, self.nullable(member))

    def plain(self, member: Field, kind: str, nullable: bool) -> str:
        if kind in FIXED:
            return self.fixed(FIXED[kind], "v")
        if self.compact(member) and kind == "string":
            return self.compact_string(member, nullable)
        if self.compact(member):
            size = self.compact_length()
        else:
            size = self.fixed("h" if kind == "string" else "i", "n")
            self.flush()
        value = self.fresh("v")
        self.line(f"if {size} < 0:")
        self.line(f"    {value} = None" if nullable else f"    raise null_error({member.name!r})")
        self.line("else:")
        self.line(f"    {value} = {self.read(kind, f'pos + {size}')}; pos += {size}")
        if kind in ("bytes", "records"):
            self.line("    if pos > end: raise truncated()")
        return value

    def one_struct(self, member: Field) -> str:
        assert member.struct is not None
        if not self.nullable(member):
            return self.struct(member.struct)
        self.flush()
        value = self.fresh("v")
        self.line(f"{value} = None; pos += 1")
        self.line("if buf[pos - 1] < 128:")
        self.depth += 1
        result = self.struct(member.struct)
        self.flush()
        self.line(f"{value} = {result}")
        self.depth -= 1
        return value

    def array(self, member: Field) -> str:
        if self.compact(member):
            size = self.compact_length()
        else:
            size = self.fixed("i", "n")
            self.flush()
        value = self.fresh("v")
        self.line(f"if {size} < 0:")
        self.line(f"    {value} = None" if self.nullable(member) else f"    raise null_error({member.name!r})")
        self.line("else:")
        self.depth += 1
        least = self.least_element(member)
        times = f" * {least}" if least > 1 else ""
        self.line(f"if {size}{times} > end - pos: raise count_error({member.name!r})")
        self.count(size)
        fmt = FIXED.get(member.element)
        if fmt is not None and member.element not in ("uuid", "bool"):
            self.line(
                f"{value} = list(unpack_from(f'>{{{size}}}{fmt}', buf, pos)); pos += {schema.packed_size(fmt)} * {size}"
            )
        else:
            self.loop(member, size, value)
        self.depth -= 1
        return value

    def least_element(self, member: Field) -> int:
        """The fewest bytes that an element of an array takes."""
        if member.struct is not None:
            return max(1, self.least_struct(member.struct))
        return self.least_plain(member, member.element)

    def least_plain(self, member: Field, kind: str) -> int:
        if kind in FIXED:
            return schema.packed_size(FIXED[kind])
        if self.compact(member):
            return 1
        return 2 if kind == "string" else 4

    def least_struct(self, struct: Struct) -> int:
        return sum(map(self.least_field, self.present(struct))) + self.flexible

    def least_field(self, member: Field) -> int:
        if member.is_array:
            return 1 if self.compact(member) else 4
        if member.struct is not None:
            return 1 if self.nullable(member) else self.least_struct(member.struct)
        return self.least_plain(member, member.type)

    def loop(self, member: Field, size: str, value: str) -> None:
        add = self.fresh("a")
        self.line(f"{value} = []; {add} = {value}.append")
        self.line(f"for _ in range({size}):")
        self.depth += 1
        self.may_yield()
        item = self.struct(member.struct) if member.struct else self.plain(member, member.element, False)
        self.flush()
        self.line(f"{add}({item})")
        self.depth -= 1

    def tags(self, members: list[Field]) -> dict[str, str]:
        self.flush()
        values = {member.name: self.fresh("v") for member in members}
        for member in members:
            self.line(f"{values[member.name]} = {default_source(member)}")
        self.line("pos += 1")
        self.line("if buf[pos - 1]:")
        self.depth += 1
        count, number, after = self.fresh("n"), self.fresh("n"), self.fresh("p")
        self.line(f"{count}, pos = read_uvarint(buf, pos - 1)")
        self.count(count)
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.line(f"{number}, pos = read_uvarint(buf, pos)")
        self.line(f"{after}, pos = read_uvarint(buf, pos)")
        self.line(f"{after} += pos")
        self.line(f"if {after} > end: raise truncated()")
        for member in members:
            self.line(f"if {number} == {member.tag}:")
            self.depth += 1
            result = self.field(member)
            self.flush()
            self.line(f"{values[member.name]} = {result}")
            self.depth -= 1
        self.line(f"pos = {after}")
        self.depth -= 2
        return values


def codec_source(
    name: str, version: int, *, sliced: bool = False, of_bytes: bool = False
) -> tuple[str, dict[str, str]]:
    """Source of `encode` and `decode` for one version of a message, and the packers (name: expression) they use.

    `of_bytes`: `decode` is given `bytes`, else any buffer.
    """
    message = schema.message(name)
    encoder = Encoder(message, version, sliced)
    decoder = Decoder(message, version, sliced, of_bytes)
    source = encoder.source() + "\n\n" + decoder.source()
    return source, encoder.packers | decoder.packers


# --- the command -----------------------------------------------------------------------------------------------------


def _main(arguments: list[str]) -> int:
    target = Path(__file__).with_name("messages.py")
    if arguments == ["--check"]:
        if target.read_text() == messages_source():
            return 0
        print("messages.py is not what definitions.py says: run `python -m muster.protocol.codegen`", file=sys.stderr)
        return 1
    if len(arguments) == 2:
        print(codec_source(arguments[0], int(arguments[1]), of_bytes=True)[0])
        return 0
    target.write_text(messages_source())
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
