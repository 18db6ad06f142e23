"""Plans whose asks are inspected, split up or interrupted on their way, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from muster.zookeeper.base.operations import Ask, Plan, Several, ask, next_ask

T = TypeVar("T")


def through(plan: Plan[T], way: Callable[[Ask[Any]], Plan[Any]]) -> Plan[T]:
    """The plan, each of whose asks is carried out by another plan, which returns the answer or the error."""
    answer: Any = None
    while True:
        try:
            what = next_ask(plan, answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = yield from way(what)


def outcome(what: Ask[Any]) -> Plan[Any]:
    """The answer, or the error as a value."""
    try:
        return (yield from ask(what))
    except Exception as error:
        return error


def one_by_one(plan: Plan[T]) -> Plan[T]:
    """The plan; asks of `Several` at a time are made in that order, one by one."""

    def split(what: Ask[Any]) -> Plan[Any]:
        if not isinstance(what, Several):
            return (yield from outcome(what))
        found = []
        for each in what.asks:
            found.append((yield from split(each)))  # noqa: PERF401 (no comprehension may yield)
        return found

    return through(plan, split)


def noted(plan: Plan[T], asked: list[Ask[Any]]) -> Plan[T]:
    """The plan; its asks are appended to the list."""

    def note(what: Ask[Any]) -> Plan[Any]:
        asked.append(what)
        return (yield from outcome(what))

    return through(plan, note)
