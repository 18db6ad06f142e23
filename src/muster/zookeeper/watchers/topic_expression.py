"""Regular expressions for names of topics, as Java and Python both understand them, in bounded time.

A member of scheme 1 matches the lists of all other members, which any program may have written. An expression such as
`(a+)+b` keeps a backtracking matcher busy for years, and with it every member that reads the znode. So expressions are
parsed here: only the syntax that Java and Python have in common is accepted. Then the maximum number of backtracking
steps is computed. If it is small, Python's own matcher is used. Otherwise the set of positions at which each part may
end is computed for each position at which it may begin, so that no part is matched twice at one position. That takes at
worst a number of steps quadratic in a name's length, and the steps for all names together are limited too.

(`coordinator/groups/group_pattern.py` has an operator's own patterns: it refuses those that could take long, and
accepts all other syntax of Python.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from muster.errors import ConfigError, MusterError

MOST_TRIES = 20_000_000
"""The most steps that Python's matcher may need for all names together: well below a second."""

MOST_STEPS = 2_000_000
"""The most steps of the slow matcher for all names together, of some hundred nanoseconds each."""

_LONGEST = 100_000
_MOST_NESTED = 50
_MOST_KEPT = 100_000
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_CLASSES: Final = {"d": frozenset("0123456789"), "w": _WORD, "s": frozenset(" \t\n\x0b\f\r")}
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_ENDS = frozenset("\n\r\x85\u2028\u2029")
_COUNTS = re.compile(r"\{([0-9]{1,9})(,([0-9]{0,9}))?\}")
_SETS_IN_SETS = re.compile(r"\[|&&|--|\|\||~~")
"""Java takes the union of a class inside a class, and the intersection with `&&`; Python takes them as characters."""


class TooCostlyError(MusterError):
    """Matching would take too long."""


class _One(NamedTuple):
    """A character in a set, or, if negated, any other character."""

    characters: frozenset[str]
    negated: bool = False

    def fits(self, character: str) -> bool:
        return (character in self.characters) != self.negated


class _Sequence(NamedTuple):
    parts: tuple[_Part, ...]


class _Either(NamedTuple):
    options: tuple[_Part, ...]


class _Repeat(NamedTuple):
    part: _Part
    least: int
    most: int | None


class _Look(NamedTuple):
    """Whether a part matches here: after this position or, looking back, before it."""

    part: _Part
    back: bool
    wanted: bool


class _Edge(NamedTuple):
    """`^`, `$` or `b`, the edge of a word."""

    kind: str


_Part = _One | _Sequence | _Either | _Repeat | _Look | _Edge


class _Parser:
    """Parses the syntax that has the same meaning in Java and Python."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._at = 0
        self._nested = 0
        self._ignores_case = self._take("(?i)")

    def parse(self) -> _Part:
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

    def _either(self) -> _Part:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Either(tuple(options))

    def _sequence(self) -> _Part:
        parts = []
        while self._at < len(self._regex) and self._regex[self._at] not in "|)":
            parts.append(self._repeat(self._atom()))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeat(self, part: _Part) -> _Part:
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
        self._take("?")  # greedy or lazy makes no difference where the whole name must match
        possessive = self._at < len(self._regex) and self._regex[self._at] in "*+?{"
        if possessive or isinstance(part, _Look | _Edge) or (most is not None and most < least):
            raise self._strange()
        return _Repeat(part, least, most)

    def _atom(self) -> _Part:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                escaped = self._next()
                return _Edge("b") if escaped == "b" else self._escaped(escaped)
            case "^" | "$":
                return _Edge(character)
            case ".":
                return _One(_LINE_ENDS, negated=True)
            case "*" | "+" | "?" | "{":
                self._at -= 1
                raise self._strange()
        return self._one(character)

    def _one(self, characters: Iterable[str], negated: bool = False) -> _One:
        found = frozenset(characters)
        if self._ignores_case:
            found |= {other for each in found if each.isascii() for other in (each.lower(), each.upper())}
        return _One(found, negated)

    def _group(self) -> _Part:
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
            return _Look(part, "<" in look, "=" in look)
        return _Sequence((part,)) if isinstance(part, _Look | _Edge) else part  # which may be repeated

    def _escaped(self, character: str) -> _One:
        if character in _ESCAPES:
            return self._one(_ESCAPES[character])
        if character.lower() in _CLASSES:
            return _One(_CLASSES[character.lower()], negated=character.isupper())
        if character.isalnum() or not character.isascii():
            raise self._strange()
        return self._one(character)

    def _class(self) -> _One:
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


def _tries(part: _Part, length: int) -> float:
    """The most ways in which a backtracking matcher may match a part against a name of this length."""
    match part:
        case _Sequence(parts):
            ways = 1.0
            for each in parts:
                ways *= _tries(each, length)
            return ways
        case _Either(options):
            return sum(_tries(option, length) for option in options)
        case _Repeat(_One(), least, most):
            return length + 1 if most is None else min(length, most - least) + 1
        case _Repeat():
            return float("inf")
        case _Look():
            return _tries(part.part, length) + 1
    return 1.0


class _Matcher:
    """Matches one name: where may each part end that begins at a position?"""

    def __init__(self, name: str) -> None:
        self.steps = 0
        self._name = name
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, part: _Part, at: int) -> frozenset[int]:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooCostlyError
        if isinstance(part, _One):
            fits = at < len(self._name) and part.fits(self._name[at])
            return frozenset((at + 1,)) if fits else frozenset()
        found = self._known.get((id(part), at))
        if found is None:
            found = self._known[id(part), at] = self._find(part, at)
            self.steps += len(found)
        return found

    def _find(self, part: _Part, at: int) -> frozenset[int]:
        match part:
            case _Sequence(parts):
                places = frozenset((at,))
                for each in parts:
                    places = self._from(each, places)
                return places
            case _Either(options):
                return frozenset().union(*(self.ends(option, at) for option in options))
            case _Repeat():
                return self._repeated(part, at)
            case _Look(inner, back, wanted):
                there = any(at in self.ends(inner, start) for start in range(at + 1)) if back else self.ends(inner, at)
                return frozenset((at,)) if bool(there) == wanted else frozenset()
            case _Edge(kind):
                return frozenset((at,)) if self._is_edge(kind, at) else frozenset()
        raise TypeError(f"not a part: {part!r}")

    def _from(self, part: _Part, places: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.ends(part, place) for place in places))

    def _repeated(self, repeat: _Repeat, at: int) -> frozenset[int]:
        places, count = frozenset((at,)), 0
        while count < repeat.least:
            before, places, count = places, self._from(repeat.part, places), count + 1
            if places == before:
                break  # it may be empty: repeating it leads to no other position
        found = places
        while places and (repeat.most is None or count < repeat.most):
            places, count = self._from(repeat.part, places) - found, count + 1
            found |= places
        return found

    def _is_edge(self, kind: str, at: int) -> bool:
        if kind != "b":
            return at == (0 if kind == "^" else len(self._name))
        before = at > 0 and self._name[at - 1] in _WORD
        return before != (at < len(self._name) and self._name[at] in _WORD)


class TopicExpression:
    """An expression that names of topics may match as a whole.

    Raises:
        ConfigError: Java and Python may not understand it alike.
    """

    def __init__(self, regex: str) -> None:
        if len(regex) > _LONGEST:
            raise ConfigError(f"a regular expression of {len(regex)} characters is longer than {_LONGEST}")
        parser = _Parser(regex)
        self._part = parser.parse()
        try:
            self._compiled = re.compile(regex, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{regex!r} is not a valid regular expression: {error}") from error
        self._known: dict[str, bool] = {}
        self._slowly: dict[str, tuple[bool, int]] = {}
        """With the steps that it took."""

    def matching(self, names: Iterable[str]) -> set[str]:
        """Those of the names that match as a whole.

        Whether it would take too long depends only on the names, not on earlier calls: every member of a group must get
        the same result.

        Raises:
            TooCostlyError: that would take too long.
        """
        names = list(names)
        tries = _tries(self._part, max(map(len, names), default=0))
        if tries * len(names) <= MOST_TRIES:
            return {name for name in names if self._matches(name)}
        return self._match_slowly(names)

    def _matches(self, name: str) -> bool:
        found = self._known.get(name)
        if found is None:
            _make_room(self._known)
            found = self._known[name] = self._compiled.fullmatch(name) is not None
        return found

    def _match_slowly(self, names: list[str]) -> set[str]:
        found, left = set(), MOST_STEPS
        for name in names:
            if name not in self._slowly:
                _make_room(self._slowly)
                self._slowly[name] = _match(self._part, name)
            fits, steps = self._slowly[name]
            left -= steps
            if left < 0:
                raise TooCostlyError(f"{self._compiled.pattern!r} takes too long to match")
            if fits:
                found.add(name)
        return found


def _match(part: _Part, name: str) -> tuple[bool, int]:
    """Whether a name matches as a whole, and the steps that it took."""
    matcher = _Matcher(name)
    try:
        return len(name) in matcher.ends(part, 0), matcher.steps
    except TooCostlyError:
        return False, matcher.steps


def _make_room(known: dict[str, Any]) -> None:
    if len(known) >= _MOST_KEPT:
        known.clear()


@lru_cache(maxsize=256)
def topic_expression(regex: str) -> TopicExpression:
    """The expression; equal ones share their results. Raises ConfigError."""
    return TopicExpression(regex)
