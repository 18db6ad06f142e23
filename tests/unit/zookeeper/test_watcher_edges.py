"""Rules of scheme 1 that matter only when something happens at the wrong moment."""

from __future__ import annotations

import pytest

from muster.model import TopicPartition
from muster.zookeeper.base import operations as zk
from muster.zookeeper.watchers.asks import NotifyUser, Pause
from muster.zookeeper.watchers.states import WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.support.watcher_world import World, alone, changed

T0 = TopicPartition("t", 0)
OWNER, OFFSET = "/consumers/g/owners/t/0", "/consumers/g/offsets/t/0"


def test_a_member_with_more_streams_for_one_topic_than_for_another_reads_all_of_both() -> None:
    world = World(partitions=4)
    world.write({"u": 4})
    watcher = world.at_rest("a", WatcherSubscription.to_topics({"t": 1, "u": 3}))
    assert set(world.owners("t").values()) == {"g_a-0"}
    assert set(world.owners("u").values()) == {"g_a-0", "g_a-1", "g_a-2"}
    assert len(watcher.reads) == 8


def test_a_member_that_comes_back_leaves_what_others_have_claimed_meanwhile() -> None:
    """Its session has ended, and its owner znodes with it; another member's are at the same paths."""
    world, hand, member = alone()
    member.session(zk.SessionEvent.EXPIRED)
    world.do(zk.Delete(OWNER))
    world.do(zk.Create(OWNER, b"g_b-0", ephemeral=True))
    hand.asked.clear()
    # It registers, finds the other member's claim in its way, and keeps trying for as long as it may.
    hand.before[zk.Delete] = pytest.fail
    plan = member.attend()
    answer = None
    while member.state is not WatcherState.BACKING_OFF:
        what = plan.throw(answer) if isinstance(answer, Exception) else plan.send(answer)
        answer = hand.answer(what)
    plan.close()
    assert world.data(OWNER) == b"g_b-0"


def test_an_offset_that_another_program_has_deleted_is_written_again() -> None:
    world, hand, member = alone()
    assert hand.carry_out(member.commit({T0: 7})) == []
    assert world.data(OFFSET) == b"7"
    world.do(zk.Delete(OFFSET))
    member.watched(changed("/consumers/g/ids"))
    hand.positions = {}
    hand.carry_out(member.attend())
    hand.carry_out(member.commit({T0: 7}))
    assert world.data(OFFSET) == b"7"


def test_an_offset_that_comes_while_it_is_created_is_written_over() -> None:
    """The sequence: there is none yet; another member, the previous owner, creates it in between."""
    world, hand, member = alone()

    def created(what: zk.Create) -> bool:
        if what.path != OFFSET:
            return False
        world.do(zk.Create(OFFSET, b"3"))
        return True

    hand.before[zk.Create] = created
    hand.carry_out(member.commit({T0: 7}))
    assert world.data(OFFSET) == b"7"


def test_a_member_that_gave_up_tries_again_when_zookeeper_is_there_again() -> None:
    world = World()
    stranger = world.zookeeper.connect("stranger")
    world.zookeeper.settle()
    world.zookeeper.carry_out(stranger, zk.ensure_path("/consumers/g/owners/t"))
    world.zookeeper.do(stranger, zk.Create(OWNER, b"g_x-0", ephemeral=True))
    watcher = world.join(rebalance_max_retries=2, rebalance_backoff_ms=100)
    assert world.clock.run_until(lambda: watcher.member.state is WatcherState.GAVE_UP, 5_000)
    assert not watcher.member.wants_attention, "no member watches owners"
    watcher.member.session(zk.SessionEvent.CONNECTED)
    assert watcher.member.wants_attention


def test_a_watch_that_zookeeper_refuses_is_set_later() -> None:
    """An operator has blocked access to the znode for a while: the member must not continue without the watch."""
    _, hand, member = alone()
    member.watched(changed("/consumers/g/ids"))
    plan = member.attend()
    assert plan.send(None) == zk.Exists("/consumers/g/ids", watch=True)
    assert isinstance(plan.throw(zk.NotPermittedError("/consumers/g/ids")), NotifyUser)
    assert isinstance(plan.send(None), Pause)
    with pytest.raises(StopIteration):
        plan.send(None)
    assert member.wants_attention
    hand.carry_out(member.attend())
    assert "Exists /consumers/g/ids watch" in hand.steps()
    assert not member.wants_attention


def test_the_offset_of_a_partition_that_came_back_is_what_the_group_has() -> None:
    """Another member had it meanwhile, and advanced: this member's own last commit means nothing."""
    world, hand, member = alone()
    hand.carry_out(member.commit({T0: 7}))
    world.do(zk.SetData(OFFSET, b"12"))
    member.watched(changed("/consumers/g/ids"))
    hand.positions = {}
    hand.carry_out(member.attend())
    assert hand.positions == {T0: 12}
    hand.carry_out(member.commit({T0: 7}))  # the user has called seek
    assert world.data(OFFSET) == b"7"
