"""Python source for the messages and their codecs, made from the tables of `client_definitions.py` and of the files
next to it, `admin_definitions.py`, `draft_definitions.py`, `group_definitions.py`, `sasl_definitions.py` and
`transaction_definitions.py`.

There are two products. The classes of the messages, in `messages.py` and the similar modules (`class_source.py`), are
checked in: `python -m muster.protocol.definitions.codegen` writes them, `--check` reports whether they are up to date.
The codecs, one pair of functions for each message and version, are compiled when first used (`codec.py`); `python -m
muster.protocol.definitions.codegen JoinGroupRequest 9` prints them.

The functions are straight-line code: no call for each field, runs of fixed-width fields fused into one `struct` call,
nested arrays as nested loops. Encoding appends buffers to a list, so that record batches are never copied.

Both functions take `left`, the remaining limit of array elements (and tags); one too many raises TooManyElementsError
before it is built. The *sliced* kind of a codec is the same code as a generator that yields every SLICE elements, so
that its caller can do other work in between.
"""

from __future__ import annotations

import sys
from pathlib import Path
from struct import calcsize

from muster.protocol.definitions import schema
from muster.protocol.definitions.class_source import absent_source, default_source, messages_source
from muster.protocol.definitions.schema import FIXED, Field, MessageDefinition, StructDefinition

# --- codecs ----------------------------------------------------------------------------------------------------------

SLICE = 128
"""Elements between two yields of a sliced codec. A power of two."""


class _Writer:
    """The lines of one function, with indentation, fresh names and a run of fixed-width fields not yet emitted."""

    def __init__(self, message: MessageDefinition, version: int, sliced: bool = False) -> None:
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
        return self.constant(f"{kind}_{fmt.replace('?', 'B_')}", f"packer({fmt!r}).{kind}")

    def constant(self, name: str, expression: str) -> str:
        self.packers[name] = expression
        return name

    def compact(self, member: Field) -> bool:
        return self.flexible and not member.inflexible

    def present(self, struct: StructDefinition) -> list[Field]:
        """Fields outside the tagged section."""
        return [m for m in struct.fields if self.version in m.versions and not self.is_tagged(m)]

    def tagged(self, struct: StructDefinition) -> list[Field]:
        found = [m for m in struct.fields if self.version in m.versions and self.is_tagged(m)]
        return sorted(found, key=lambda m: m.tag or 0)

    def count(self, size: str) -> None:
        """Subtract an array's elements from the remaining limit."""
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


class EncoderWriter(_Writer):
    """Writes `def encode(m, w, left)`: `w` takes one buffer after the other."""

    def source(self) -> str:
        self.struct(self.message, "m")
        self.flush()
        return self.function("def encode(m, w, left=UNLIMITED):")

    def struct(self, struct: StructDefinition, value: str) -> None:
        if self.message.kind == "request":
            self.refuse_what_is_lost(struct, value)
        for member in self.present(struct):
            self.field(member, f"{value}.{member.name}")
        if self.flexible:
            self.tags(self.tagged(struct), value)

    def refuse_what_is_lost(self, struct: StructDefinition, value: str) -> None:
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
        if member.name.endswith("error_message"):
            encoded = f"cut_string({encoded})"
        plus = " + 1" if compact else ""
        if nullable:
            self.line(f"if {value} is None:")
            self.line(f"    {data} = b''; {size} = {0 if compact else -1}")
            self.line("else:")
            self.line(f"    {data} = {encoded}; {size} = len({data}){plus}")
        else:
            self.line(f"{data} = {encoded}; {size} = len({data}){plus}")
        if compact and kind == "string":
            self.flush()
            self.line(f"w(UVARINT[{size}] if {size} < 128 else string_length({size}))")
        elif compact:
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
        null = b"\0" if self.is_tagged(member) else b"\xff"
        self.line(f"if {value} is None:")
        self.line(f"    w({null!r})")
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
        self.line(f"w(UVARINT[len({tags})])")
        self.line(f"if {tags}: w(b''.join({tags}))")

    def tag(self, member: Field, value: str, tags: str) -> None:
        absent = absent_source(member)
        if absent == "EMPTY":
            self.line(f"if {value} is None or {value}:" if self.nullable(member) else f"if {value}:")
        elif absent == "None":
            extra = f" and {value} != {member.struct.name}()" if member.struct and not self.nullable(member) else ""
            self.line(f"if {value} is not None{extra}:")
        else:
            self.line(f"if {value} != {absent}:")
        self.depth += 1
        if member.type in FIXED:
            fmt = FIXED[member.type]
            name, size = f"tag_{member.tag}_{fmt.replace('?', 'B_')}", calcsize(f">{fmt}")
            head = self.constant(name, f"uvarint({member.tag}) + uvarint({size})")
            self.line(f"{tags}.append({head} + {self.packer(fmt, 'pack')}({value}))")
        else:
            body, outer = self.fresh("b"), self.fresh("w")
            self.line(f"{body} = []; {outer} = w; w = {body}.append")
            self.field(member, value)
            self.flush()
            head = self.constant(f"tag_{member.tag}", f"uvarint({member.tag})")
            self.line(f"w = {outer}; {tags}.append(b''.join(({head}, uvarint(sum(map(len, {body}))), *{body})))")
        self.depth -= 1


class DecoderWriter(_Writer):
    """Writes `def decode(buf, pos, left)`, which returns the message and the position after it."""

    def __init__(self, message: MessageDefinition, version: int, sliced: bool, of_bytes: bool) -> None:
        super().__init__(message, version, sliced)
        self.of_bytes = of_bytes

    def read(self, kind: str, end: str) -> str:
        """The expression that reads a value ending at `end`. A slice of `bytes` needs no copy, and becomes text in half
        the time."""
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

    def struct(self, struct: StructDefinition) -> str:
        """Emit the code that reads a structure; returns the expression that builds it (valid after `flush`)."""
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
        """The first byte of a compact length, read together with the fields before it."""
        if self.run:
            size = self.fixed("B", "n")
            self.flush()
        else:
            size = self.fresh("n")
            self.line(f"{size} = buf[pos]; pos += 1")
        return size

    def compact_string(self, member: Field, nullable: bool) -> str:
        """Nearly all strings have fewer than 127 bytes, so that case comes first."""
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
        if self.is_tagged(member):
            size = self.compact_length()
            self.line(f"{value} = None")
            self.line(f"if {size} >= 0:")
        else:
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
        """The minimum size of an array element in bytes."""
        if member.struct is not None:
            return max(1, self.least_struct(member.struct))
        return self.least_plain(member, member.element)

    def least_plain(self, member: Field, kind: str) -> int:
        if kind in FIXED:
            return schema.packed_size(FIXED[kind])
        if self.compact(member):
            return 1
        return 2 if kind == "string" else 4

    def least_struct(self, struct: StructDefinition) -> int:
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
            self.line(f"{values[member.name]} = {absent_source(member)}")
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
    """Source of `encode` and `decode` for one version of a message, and the packers (name: expression) that they use.

    `of_bytes`: `decode` takes only `bytes`, otherwise any buffer.
    """
    message = schema.message(name)
    encoder = EncoderWriter(message, version, sliced)
    decoder = DecoderWriter(message, version, sliced, of_bytes)
    source = encoder.source() + "\n\n" + decoder.source()
    return source, encoder.packers | decoder.packers


# --- the command -----------------------------------------------------------------------------------------------------


def _main(arguments: list[str]) -> int:
    if len(arguments) == 2:
        print(codec_source(arguments[0], int(arguments[1]), of_bytes=True)[0])
        return 0
    folder = Path(__file__).parent.parent
    stale = [f for f in schema.TABLES if not (folder / f).exists() or (folder / f).read_text() != messages_source(f)]
    if arguments == ["--check"] and stale:
        print(
            f"{', '.join(stale)} differ from their tables: run `python -m muster.protocol.definitions.codegen`",
            file=sys.stderr,
        )
        return 1
    for file in stale:
        (folder / file).write_text(messages_source(file))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
