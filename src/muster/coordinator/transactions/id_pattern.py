"""The pattern of a ListTransactions: which transactional ids match it as a whole, in bounded time.

Any client may send one, and it is matched on the broker's loop against all ids, which any producer may have chosen.
Kafka uses RE2/J, which takes time linear in an id's length. So does this automaton: a state is the set of everything
that may still follow, and the state that a character leads to is computed once. With thousands of ids nearly every step
is a dictionary lookup. States are computed on demand; a pattern that needs too many of them is refused.
"""

from __future__ import annotations

from muster.errors import ConfigError
from muster.expressions import WORD, Edge, Either, Look, One, Parser, Part, Repeat, Sequence

MOST_STEPS = 100_000
"""The maximum number of steps to compute states, each less than a microsecond: a tenth of a second in all."""
LONGEST = 10_000
"""The longest pattern, in characters."""
MOST_REPEATS = 1_000
"""As in RE2."""

_END = 0


class _AutomatonState:
    """Everything that may follow, by number. `after_word`: whether the last character was a word character; None at the
    start."""

    def __init__(self, rests: frozenset[int], after_word: bool | None) -> None:
        self.rests = rests
        self.after_word = after_word
        self.next: dict[str, _AutomatonState] = {}
        self.accepts: bool | None = None


class IdPattern:
    """A pattern, and its known states.

    Raises:
        ConfigError: the pattern is not in the syntax that RE2 and Python share.
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ConfigError(f"a pattern of {len(text)} characters is longer than {LONGEST}")
        part = Parser(text).parse()
        _check(part)
        self.is_too_costly = False
        """Whether it took too long. The results of `matches` are then invalid."""
        self._left = MOST_STEPS
        # What may follow: a part, and the number of what comes after it. Parts are kept, so that their ids are unique.
        self._rests: list[tuple[Part, int]] = [(part, _END)]
        self._numbers: dict[tuple[int, int], int] = {}
        self._repeats: dict[tuple[int, int, int | None], Repeat] = {}
        self._states: dict[tuple[frozenset[int], bool | None], _AutomatonState] = {}
        self._start = self._state(frozenset((self._number(part, _END),)), None)

    def matches(self, transactional_id: str) -> bool:
        """Whether the whole id matches."""
        state = self._start
        for character in transactional_id:
            following = state.next.get(character)
            if following is None:
                if self.is_too_costly:
                    return False
                rests, _ = self._after(state, character)
                following = state.next[character] = self._state(rests, character in WORD)
            state = following
            if not state.rests:
                return False
        if state.accepts is None and not self.is_too_costly:
            state.accepts = self._after(state, None)[1]
        return bool(state.accepts)

    def _state(self, rests: frozenset[int], after_word: bool | None) -> _AutomatonState:
        found = self._states.get((rests, after_word))
        if found is None:
            found = self._states[rests, after_word] = _AutomatonState(rests, after_word)
        return found

    def _number(self, part: Part, rest: int) -> int:
        found = self._numbers.get((id(part), rest))
        if found is None:
            found = self._numbers[id(part), rest] = len(self._rests)
            self._rests.append((part, rest))
        return found

    def _after(self, state: _AutomatonState, character: str | None) -> tuple[frozenset[int], bool]:
        """What may follow `character`; and, if it is None, whether an id may end here."""
        found, seen = set(), set()
        todo = list(state.rests)
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if number == _END:
                if character is None:
                    return frozenset(), True
                continue
            part, rest = self._rests[number]
            if isinstance(part, One):
                self._left -= 1
                if character is not None and part.fits(character):
                    found.add(rest)
            elif not isinstance(part, Edge) or _is_edge(part.kind, state.after_word, character):
                before = len(todo)
                self._open(part, rest, todo)
                self._left -= 1 + len(todo) - before
            if self._left < 0:
                self.is_too_costly = True
                break
        return frozenset(found), False

    def _open(self, part: Part, rest: int, todo: list[int]) -> None:
        """Add everything that a part other than a character can begin with."""
        if isinstance(part, Sequence):
            self._left -= len(part.parts)
            for each in reversed(part.parts):
                rest = self._number(each, rest)
            todo.append(rest)
        elif isinstance(part, Either):
            todo += [self._number(option, rest) for option in part.options]
        elif isinstance(part, Repeat):
            if part.least == 0:
                todo.append(rest)
            if part.most != 0:
                most = None if part.most is None else part.most - 1
                again = self._repeat(part.part, max(part.least - 1, 0), most)
                todo.append(self._number(part.part, self._number(again, rest)))
        else:
            todo.append(rest)

    def _repeat(self, part: Part, least: int, most: int | None) -> Repeat:
        key = (id(part), least, most)
        found = self._repeats.get(key)
        if found is None:
            found = self._repeats[key] = Repeat(part, least, most)
        return found


def _is_edge(kind: str, after_word: bool | None, character: str | None) -> bool:
    """Whether `^`, `$` or `b`, a word boundary, matches between these characters."""
    if kind == "b":
        return bool(after_word) != (character is not None and character in WORD)
    return (after_word if kind == "^" else character) is None


def _check(part: Part) -> None:
    if isinstance(part, Look):
        raise ConfigError("RE2 has no lookarounds")
    if isinstance(part, Repeat):
        if max(part.least, part.most or 0) > MOST_REPEATS:
            raise ConfigError(f"RE2 repeats a part at most {MOST_REPEATS} times")
        _check(part.part)
    elif isinstance(part, Sequence | Either):
        for each in part.parts if isinstance(part, Sequence) else part.options:
            _check(each)
