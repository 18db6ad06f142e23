"""The work of the rules grows with the number of events in a history, not with its square.

Work is counted in the interpreter's instructions, so it is the same on every machine and under every load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from muster.history.model import Limits
from muster.history.rules.fold import finish, fold, start
from tests.support.group_log import GroupLog, M

pytestmark = pytest.mark.interpreted


def instructions(run: Callable[[], object]) -> int:
    """How many instructions of Python a call executes."""
    counted = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return counted


def work(log: GroupLog) -> int:
    chunk = log.chunk()

    def run() -> None:
        state = start(log.group, Limits())
        fold(state, chunk)
        finish(state, log.now)

    run()  # values that are computed only once exist after this
    return instructions(run)


def members(count: int, turn: int) -> list[M]:
    return [M(f"c{number}-{turn}", f"t:{number}", client=f"c{number}") for number in range(count)]


def all_are_replaced(count: int) -> GroupLog:
    log = GroupLog()
    for turn in range(1, 5):
        log.generation(turn, members(count, turn)).commits(f"t:0-{count - 1}", 5_000)
    return log


def partitions_go_to_a_new_member(count: int) -> GroupLog:
    log = GroupLog()
    for turn in range(1, 5):
        size = 12 * count // (2 + turn % 2)
        shares = [f"t:{first}-{first + size - 1}" for first in range(0, 12 * count, size)]
        log.generation(turn, [M(f"c{number}-1", share) for number, share in enumerate(shares)])
    return log


def an_epoch_settles(count: int) -> GroupLog:
    log = GroupLog()
    here = members(count, 1)
    for each in here:
        log.member(each)
    for turn in range(1, 4):
        log.epoch(turn).target(turn, here).standing(turn, *here)
    return log


def many_generations(count: int) -> GroupLog:
    log = GroupLog()
    for turn in range(1, 4 * count):
        log.generation(turn, [M("a-1", "t:0"), M(f"b-{turn}", "t:1")]).commits("t:0-1", 30_000)
    return log


@pytest.mark.slow
@pytest.mark.parametrize(
    "lives",
    [all_are_replaced, partitions_go_to_a_new_member, an_epoch_settles, many_generations],
    ids=lambda each: each.__name__,
)
def test_four_times_as_much_takes_four_times_the_work(lives):
    assert work(lives(96)) < 4.9 * work(lives(24))
