"""For which members a rebalance waited: reported if commits show that the others had stopped, and never guessed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.group_log import GroupLog, M

A, B, C = M("a-1", "t:0-1"), M("b-1", "t:2-3"), M("c-1")
GROWN = [A.with_(has="t:0"), B.with_(has="t:2-3"), C.with_(has="t:1")]


def works(protocol: str = "range", every: int = 5_000) -> GroupLog:
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [A, B], protocol=protocol)
    return log.commits("t:0-3", 40_000, every)


def is_busy(protocol: str = "range", every: int = 5_000, others: str = "t:0-1", commits: str = "t:2-3") -> GroupLog:
    """From now on b-1 handles one record; a-1 continues for 10 s, and rejoins when c-1 comes. b-1 rejoins 20 s
    later."""
    log = works(protocol, every).commits(others, 10_000, every).wait(20_000)
    if commits:
        log.commit(commits)
    return log.wait(10).generation(2, GROWN, protocol=protocol)


def all_join_at_once() -> GroupLog:
    return works().commits("t:0-3", 10_000).wait(1_000).commit("t:0-3").wait(10).generation(2, GROWN)


def the_others_commit_rarely() -> GroupLog:
    """a-1's partitions get a record twice a minute."""
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [A, B])
    for _ in range(4):
        log.commit("t:0-1").commits("t:2-3", 30_000)
    return log.wait(20_000).commit("t:2-3").wait(10).generation(2, GROWN)


def the_generation_is_younger_than_the_wait() -> GroupLog:
    """Commits of the previous generation prove nothing about this one."""
    return is_busy().wait(3_000).commit("t:2").wait(10).generation(3, GROWN)


CASES: dict[str, tuple[Callable[[], GroupLog], list[str], int | None]] = {
    "is busy": (is_busy, ["b"], 20_000),
    "all join at once": (all_join_at_once, [], None),
    # Nothing is written to a-1's partitions; b-1 continues as before
    "the others topic is at rest": (lambda: works().commits("t:2-3", 30_000).wait(10).generation(2, GROWN), [], None),
    "the others commit rarely": (the_others_commit_rarely, [], None),
    # b-1 does not commit as it joins: it may have been any of them
    "all stop and none shows": (lambda: is_busy(commits=""), [], None),
    "the generation is younger than the wait": (the_generation_is_younger_than_the_wait, [], None),
    "is busy in a cooperative group": (lambda: is_busy("cooperative-sticky"), [], None),
}


@pytest.mark.parametrize(("story", "waited_for", "waited_ms"), CASES.values(), ids=CASES)
def test_whom_a_rebalance_waited_for(
    story: Callable[[], GroupLog], waited_for: list[str], waited_ms: int | None
) -> None:
    row = story().history().rebalances[-1]
    assert [member.client_id for member in row.waited_for] == waited_for
    assert row.waited_ms == waited_ms
