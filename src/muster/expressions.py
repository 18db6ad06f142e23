"""Regular expressions of other programs, as trees: the syntax that Java, Python and RE2 have in common.

A backtracking matcher such as Python's takes exponential time for some expressions. So expressions from other programs
are parsed here and matched in bounded time: lists of topics (`zookeeper/watchers/topic_expression.py`) and
transactional ids (`coordinator/transactions/id_pattern.py`). RE2 has no lookarounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.errors import ConfigError

LONGEST = 100_000
"""Characters of an expression."""

_MOST_NESTED = 50
WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_CLASSES: Final = {"d": frozenset("0123456789"), "w": WORD, "s": frozenset(" \t\n\x0b\f\r")}
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_ENDS = frozenset("\n\r\x85\u2028\u2029")
_COUNTS = re.compile(r"\{([0-9]{1,9})(,([0-9]{0,9}))?\}")
_SETS_IN_SETS = re.compile(r"\[|&&|--|\|\||~~")
"""Java takes the union of a class inside a class, and the intersection with `&&`; Python takes them as characters."""


class One(NamedTuple):
    """A character in a set, or, if negated, any other character."""

    characters: frozenset[str]
    negated: bool = False

    def fits(self, character: str) -> bool:
        """Whether it matches this character."""
        return (character in self.characters) != self.negated


class Sequence(NamedTuple):
    """One after another."""

    parts: tuple[Part, ...]


class Either(NamedTuple):
    """One of them."""

    options: tuple[Part, ...]


class Repeat(NamedTuple):
    """From `least` to `most` times; without limit if `most` is None."""

    part: Part
    least: int
    most: int | None


class Look(NamedTuple):
    """Whether a part matches here: after this position or, for a lookbehind, before it."""

    part: Part
    back: bool
    wanted: bool


class Edge(NamedTuple):
    """`^`, `$` or `b`, the edge of a word."""

    kind: str


Part = One | Sequence | Either | Repeat | Look | Edge


class Parser:
    """Parses the syntax that has the same meaning in Java and Python."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._at = 0
        self._nested = 0
        self._ignores_case = self._take("(?i)")

    def parse(self) -> Part:
        """The tree. Raises ConfigError."""
        found = self._either()
        if self._at < len(self._regex):
            raise self._strange()
        return found

    def _strange(self) -> ConfigError:
        at = f" (at character {self._at + 1})"
        return ConfigError(f"{self._regex!r} is not a regular expression with the same meaning in Java and Python{at}")

    def _take(self, text: str) -> bool:
        if not self._regex.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at == len(self._regex):
            raise self._strange()
        self._at += 1
        return self._regex[self._at - 1]

    def _either(self) -> Part:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _sequence(self) -> Part:
        parts = []
        while self._at < len(self._regex) and self._regex[self._at] not in "|)":
            parts.append(self._repeat(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeat(self, part: Part) -> Part:
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif counts := _COUNTS.match(self._regex, self._at):
            self._at = counts.end()
            least = int(counts[1])
            most = least if counts[2] is None else int(counts[3]) if counts[3] else None
        else:
            return part
        self._take("?")  # greedy or lazy makes no difference if the whole name must match
        possessive = self._at < len(self._regex) and self._regex[self._at] in "*+?{"
        if possessive or isinstance(part, Look | Edge) or (most is not None and most < least):
            raise self._strange()
        return Repeat(part, least, most)

    def _atom(self) -> Part:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                escaped = self._next()
                return Edge("b") if escaped == "b" else self._escaped(escaped)
            case "^" | "$":
                return Edge(character)
            case ".":
                return One(_LINE_ENDS, negated=True)
            case "*" | "+" | "?" | "{":
                self._at -= 1
                raise self._strange()
        return self._one(character)

    def _one(self, characters: Iterable[str], negated: bool = False) -> One:
        found = frozenset(characters)
        if self._ignores_case:
            found |= {other for each in found if each.isascii() for other in (each.lower(), each.upper())}
        return One(found, negated)

    def _group(self) -> Part:
        self._nested += 1
        if self._nested > _MOST_NESTED:
            raise ConfigError(f"{self._regex!r} has groups nested deeper than {_MOST_NESTED}")
        look = next((look for look in ("?=", "?!", "?<=", "?<!") if self._take(look)), "")
        if not look and self._regex.startswith("?", self._at) and not self._take("?:"):
            raise self._strange()
        part = self._either()
        if not self._take(")"):
            raise self._strange()
        self._nested -= 1
        if look:
            return Look(part, "<" in look, "=" in look)
        return Sequence((part,)) if isinstance(part, Look | Edge) else part  # which may be repeated

    def _escaped(self, character: str) -> One:
        if character in _ESCAPES:
            return self._one(_ESCAPES[character])
        if character.lower() in _CLASSES:
            return One(_CLASSES[character.lower()], negated=character.isupper())
        if character.isalnum() or not character.isascii():
            raise self._strange()
        return self._one(character)

    def _class(self) -> One:
        negated = self._take("^")
        if self._take("]"):
            raise self._strange()  # in Java it depends on the release whether the class continues after it
        found: set[str] = set()
        while not self._take("]"):
            if _SETS_IN_SETS.match(self._regex, self._at):
                raise self._strange()
            low = self._of_class()
            if self._regex.startswith("-", self._at) and not self._regex.startswith("-]", self._at):
                self._at += 1
                found |= self._between(low, self._of_class())
            else:
                found |= low
        return self._one(found, negated)

    def _of_class(self) -> frozenset[str]:
        character = self._next()
        if character != "\\":
            return frozenset(character)
        one = self._escaped(self._next())
        if one.negated:
            raise self._strange()
        return one.characters

    def _between(self, low: frozenset[str], high: frozenset[str]) -> frozenset[str]:
        if len(low) != 1 or len(high) != 1 or not (low | high) <= {chr(code) for code in range(128)}:
            raise self._strange()
        first, last = ord(next(iter(low))), ord(next(iter(high)))
        if first > last:
            raise self._strange()
        return frozenset(map(chr, range(first, last + 1)))
