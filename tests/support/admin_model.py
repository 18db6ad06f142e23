"""What a broker may answer to an admin's concurrent requests, and what must hold afterwards: each request takes effect
at one moment between its arrival and its answer, in one order for all (as in Kafka, whose controller does one thing at
a time). `explains` looks for such an order. A request without an answer took effect or did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.errors import ErrorCode

Settings = frozenset[tuple[str, str]]


class Topic(NamedTuple):
    """A topic; `begin` and `end` are those of partition 0."""

    topic_id: bytes | None
    """None if the answer with the id is missing."""
    partitions: int
    settings: Settings
    begin: int = 0
    end: int = 0


State = Topic | Settings | None
"""A topic, None, or the settings of the broker."""


class Change(NamedTuple):
    """A change of one setting."""

    name: str
    operation: str
    value: str = ""


class Create(NamedTuple):
    partitions: int
    settings: Settings = frozenset()


class Delete(NamedTuple):
    pass


class Grow(NamedTuple):
    partitions: int


class Alter(NamedTuple):
    """IncrementalAlterConfigs; if `whole`, AlterConfigs."""

    changes: tuple[Change, ...]
    whole: bool = False


class Append(NamedTuple):
    """A record for partition 0."""


class Cut(NamedTuple):
    """DeleteRecords of partition 0."""

    before: int


Ask = Create | Delete | Grow | Alter | Append | Cut


class Answer(NamedTuple):
    """An error code, and the result in the answer: a topic's id, an offset."""

    code: int
    value: bytes | int | None = None


class Step(NamedTuple):
    """A request about one thing, and its answer; None if there is none."""

    ask: Ask
    answer: Answer | None


UNKNOWN = Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
DONE = Answer(ErrorCode.NONE)


def after(state: State, ask: Ask, reported: Answer | None) -> tuple[Answer, State]:
    """The answer to a request in a state, and the resulting state. The id of a new topic is taken from `reported`."""
    if isinstance(state, frozenset):
        assert isinstance(ask, Alter)
        return DONE, altered(state, ask)
    match ask:
        case Create(partitions, settings):
            if state is not None:
                return Answer(ErrorCode.TOPIC_ALREADY_EXISTS), state
            value = reported.value if reported is not None else None
            return Answer(ErrorCode.NONE, value), Topic(
                value if isinstance(value, bytes) else None, partitions, settings
            )
        case _ if state is None:
            return UNKNOWN, None
        case _:
            return after_change(state, ask)


def after_change(state: Topic, ask: Delete | Grow | Alter | Append | Cut) -> tuple[Answer, State]:
    """`after`, for a topic that exists."""
    match ask:
        case Delete():
            return DONE, None
        case Grow(partitions):
            if partitions <= state.partitions:
                return Answer(ErrorCode.INVALID_PARTITIONS), state
            return DONE, state._replace(partitions=partitions)
        case Alter():
            return DONE, state._replace(settings=altered(state.settings, ask))
        case Append():
            return Answer(ErrorCode.NONE, state.end), state._replace(end=state.end + 1)
        case Cut(before):
            if before > state.end:
                return Answer(ErrorCode.OFFSET_OUT_OF_RANGE), state
            begin = max(state.begin, before)
            return Answer(ErrorCode.NONE, begin), state._replace(begin=begin)


def altered(settings: Settings, ask: Alter) -> Settings:
    """Settings after some changes."""
    found = {} if ask.whole else dict(settings)
    for name, operation, value in ask.changes:
        words = [word for word in found.get(name, "delete").split(",") if word]
        match operation:
            case "SET":
                found[name] = value
            case "DELETE":
                found.pop(name, None)
            case "APPEND":
                found[name] = ",".join([*words, value] if value not in words else words)
            case "SUBTRACT":
                found[name] = ",".join(word for word in words if word != value)
    return frozenset(found.items())


def explains(start: State, lines: Sequence[Sequence[Step]], end: State) -> bool:
    """Whether there is an order of the steps, in which those of one line follow each other, that yields all answers and
    leads from one state to the other."""
    seen = set()
    open_ends = [(start, (0,) * len(lines))]
    while open_ends:
        state, places = open_ends.pop()
        if (state, places) in seen:
            continue
        seen.add((state, places))
        if all(
            place == len(line) or line[place].answer is None for place, line in zip(places, lines, strict=True)
        ) and same(state, end):
            return True
        for at, line in enumerate(lines):
            if places[at] == len(line):
                continue
            step = line[places[at]]
            answer, following = after(state, step.ask, step.answer)
            if step.answer in (None, answer):
                open_ends.append((following, (*places[:at], places[at] + 1, *places[at + 1 :])))
    return False


def same(state: State, seen: State) -> bool:
    """Whether a state is the observed one."""
    if isinstance(state, Topic) and isinstance(seen, Topic) and state.topic_id is None:
        return state == seen._replace(topic_id=None)
    return state == seen
