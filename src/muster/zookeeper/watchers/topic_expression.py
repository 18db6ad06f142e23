"""Regular expressions for topic names, as Java and Python both understand them, in bounded time.

A member of scheme 1 matches the lists of all other members, which any program may have written. An expression such as
`(a+)+b` keeps a backtracking matcher busy for years, and with it every member that reads the znode. So expressions are
parsed here: only the syntax that Java and Python have in common is accepted. Then the maximum number of backtracking
steps is computed. If it is small, Python's own matcher is used. Otherwise the set of positions at which each part may
end is computed for each position at which it may begin, so that no part is matched twice at one position. That takes at
worst a number of steps quadratic in a name's length, and the steps for all names together are limited too.

(`coordinator/groups/group_pattern.py` has an operator's own patterns: it refuses those that could take too long, and
accepts all other syntax of Python.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from muster.errors import ConfigError, MusterError
from muster.expressions import LONGEST, WORD, Edge, Either, Look, One, Parser, Part, Repeat, Sequence

MOST_TRIES = 20_000_000
"""The most steps that Python's matcher may need for all names together: well below a second."""

MOST_STEPS = 2_000_000
"""The most steps of the slow matcher for all names together, of some hundred nanoseconds each."""

_MOST_KEPT = 100_000


class TooCostlyError(MusterError):
    """Matching would take too long."""


def _tries(part: Part, length: int) -> float:
    """The most ways in which a backtracking matcher may match a part against a name of this length."""
    match part:
        case Sequence(parts):
            ways = 1.0
            for each in parts:
                ways *= _tries(each, length)
            return ways
        case Either(options):
            return sum(_tries(option, length) for option in options)
        case Repeat(One(), least, most):
            return length + 1 if most is None else min(length, most - least) + 1
        case Repeat():
            return float("inf")
        case Look():
            return _tries(part.part, length) + 1
    return 1.0


class _Matcher:
    """Matches one name: computes where a part may end that begins at a given position."""

    def __init__(self, name: str) -> None:
        self.steps = 0
        self._name = name
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, part: Part, at: int) -> frozenset[int]:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooCostlyError
        if isinstance(part, One):
            fits = at < len(self._name) and part.fits(self._name[at])
            return frozenset((at + 1,)) if fits else frozenset()
        found = self._known.get((id(part), at))
        if found is None:
            found = self._known[id(part), at] = self._find(part, at)
            self.steps += len(found)
        return found

    def _find(self, part: Part, at: int) -> frozenset[int]:
        match part:
            case Sequence(parts):
                places = frozenset((at,))
                for each in parts:
                    places = self._from(each, places)
                return places
            case Either(options):
                return frozenset().union(*(self.ends(option, at) for option in options))
            case Repeat():
                return self._repeated(part, at)
            case Look(inner, back, wanted):
                there = any(at in self.ends(inner, start) for start in range(at + 1)) if back else self.ends(inner, at)
                return frozenset((at,)) if bool(there) == wanted else frozenset()
            case Edge(kind):
                return frozenset((at,)) if self._is_edge(kind, at) else frozenset()
        raise TypeError(f"not a part: {part!r}")

    def _from(self, part: Part, places: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.ends(part, place) for place in places))

    def _repeated(self, repeat: Repeat, at: int) -> frozenset[int]:
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
        before = at > 0 and self._name[at - 1] in WORD
        return before != (at < len(self._name) and self._name[at] in WORD)


class TopicExpression:
    """An expression that whole topic names may match.

    Raises:
        ConfigError: Java and Python may interpret it differently.
    """

    def __init__(self, regex: str) -> None:
        if len(regex) > LONGEST:
            raise ConfigError(f"a regular expression of {len(regex)} characters is longer than {LONGEST}")
        parser = Parser(regex)
        self._part = parser.parse()
        try:
            self._compiled = re.compile(regex, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{regex!r} is not a valid regular expression: {error}") from error
        self._known: dict[str, bool] = {}
        self._slowly: dict[str, tuple[bool, int]] = {}
        """The result, with the steps that it took."""

    def matching(self, names: Iterable[str]) -> set[str]:
        """The names that match as a whole.

        Whether matching would take too long depends only on the names, not on earlier calls: every member of a group
        must get the same result.

        Raises:
            TooCostlyError: matching would take too long.
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


def _match(part: Part, name: str) -> tuple[bool, int]:
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
