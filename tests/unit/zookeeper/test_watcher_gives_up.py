"""What the user of a member of scheme 1 learns about partitions that it loses."""

from __future__ import annotations

from typing import Any

from muster.model import TopicPartition
from muster.zookeeper.base.operations import Ask, SessionEvent
from muster.zookeeper.watchers.asks import GiveUp
from muster.zookeeper.watchers.states import WatcherState
from tests.support.watcher_world import World, alone, changed


def test_the_user_learns_of_what_is_released_and_of_what_was_lost_once_each() -> None:
    world = World()
    watcher = world.at_rest()
    every = [TopicPartition("t", number) for number in range(4)]
    assert watcher.give_ups == []
    world.write({"t": 4})
    world.rest(watcher, after_ms=1_000)
    world.zookeeper.expire(watcher.session)
    world.rest(watcher, after_ms=3_000)
    watcher.leave()
    world.clock.advance(1_000)
    give_ups = [(what.partitions, what.lost) for what in watcher.give_ups]
    assert give_ups == [(every, False), (every, True), (every, False)]


def test_what_is_released_while_the_session_ends_is_not_lost_as_well() -> None:
    _, hand, member = alone()

    def ends(what: Ask[Any]) -> bool:
        member.session(SessionEvent.EXPIRED)
        return True

    hand.before[GiveUp] = ends
    member.watched(changed("/consumers/g/ids"))
    hand.carry_out(member.attend())
    assert isinstance(hand.asked[-1], GiveUp), "the plan ends with its session"
    hand.asked.clear()
    hand.carry_out(member.shut_down())
    assert hand.steps() == ["StopFetching"]


def test_a_commit_in_the_users_listener_leaves_the_plan_that_waits_in_its_session() -> None:
    """The session ends while the listener is called, and after that the listener commits."""
    _, hand, member = alone()

    def commits(what: Ask[Any]) -> bool:
        member.session(SessionEvent.EXPIRED)
        assert list(member.commit({TopicPartition("t", 0): 9})) == []
        return True

    hand.before[GiveUp] = commits
    member.watched(changed("/consumers/g/ids"))
    hand.carry_out(member.attend())
    assert isinstance(hand.asked[-1], GiveUp)
    assert member.state is WatcherState.UNREGISTERED
