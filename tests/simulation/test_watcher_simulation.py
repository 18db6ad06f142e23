"""Groups of scheme 1 for many seeds, and the two problems because of which Kafka abandoned it: the herd effect, and
split brain (Z6).

The checks are described in `tests.simulator.watcher_lives`. A failure names its seed, and says how to run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from muster.model import TopicPartition
from muster.zookeeper.base.operations import Plan, ZnodeChange
from muster.zookeeper.watchers.asks import StopFetching
from muster.zookeeper.watchers.scheme import WatcherMember
from muster.zookeeper.watchers.settings import WatcherSettings
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.simulator import InvariantError, VirtualClock
from tests.simulator.watcher_lives import FAULTS, ORDERLY, simulate_watchers
from tests.simulator.watchers import SimTopics, SimWatcher, write_topics
from tests.simulator.zookeeper import SimZooKeeper, ZooKeeperCounts
from tests.support.lives import chunks, live, name


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=60, fresh=20, per_test=20), ids=name)
def test_whatever_happens_each_partition_comes_to_one_owner_and_no_record_is_skipped(chunk: range) -> None:
    live(simulate_watchers, chunk, __file__, "whatever")


@pytest.mark.soak
@pytest.mark.parametrize("chunk", chunks(fixed=40, fresh=20, per_test=20), ids=name)
def test_where_nothing_fails_no_record_comes_twice(chunk: range) -> None:
    live(lambda seed: simulate_watchers(seed, ORDERLY), chunk, __file__, "nothing")


def test_a_seed_tells_the_same_story_again() -> None:
    for seed in (1, 2, 3):
        first, second = simulate_watchers(seed), simulate_watchers(seed)
        assert first.story == second.story
        assert first.topics.deliveries == second.topics.deliveries


def test_lives_are_eventful() -> None:
    lives = [simulate_watchers(seed) for seed in range(25)]
    reported = "\n".join(life.story for life in lives)
    assert all(word in reported for word in (*ORDERLY[:2], *FAULTS)), reported
    assert any(watcher.member.conflicts for life in lives for watcher in life.watchers)


# --- split brain -----------------------------------------------------------------------------------------------------


def first_split_brain(*happenings: str) -> int:
    """The first seed whose group reads a partition twice at once."""
    return next(seed for seed in range(500) if simulate_watchers(seed, ("joins", *happenings)).topics.overlaps)


@pytest.mark.parametrize("fault", ["freezes", "is cut off", "expires"])
def test_seeds_find_two_members_that_read_one_partition(fault: str) -> None:
    """Nothing fences a member whose session has expired and which does not know it: the flaw of the scheme."""
    life = simulate_watchers(first_split_brain(fault), ("joins", fault))
    overlap = life.topics.overlaps[0]
    twice = [deliveries for record, deliveries in life.topics.twice().items() if record[0] == overlap.partition]
    assert any({delivery.member for delivery in deliveries} >= set(overlap.members) for deliveries in twice)


class Group:
    """Members of one group that join when the test says so."""

    def __init__(self, partitions: int, *, interval_ms: int = 10**9) -> None:
        self.clock = VirtualClock()
        self.zookeeper = SimZooKeeper(self.clock, Random(1))
        self.topics = SimTopics(self.clock, interval_ms)
        self.members: list[SimWatcher] = []
        admin = self.zookeeper.connect("admin")
        self.zookeeper.settle()
        write_topics(self.zookeeper, admin, {"t": partitions})

    def join(self) -> SimWatcher:
        settings = WatcherSettings("g", f"g_c{len(self.members):03}", zookeeper_session_timeout_ms=4_000)
        subscription = WatcherSubscription.to_topics({"t": 1})
        rng = Random(len(self.members))
        member = SimWatcher(self.zookeeper, self.topics, settings, subscription, rng, stop_ms=0)
        self.members.append(member)
        return member

    def rest(self) -> None:
        assert self.clock.run_until(lambda: all(member.is_at_rest for member in self.members), 60_000)

    @contextmanager
    def counted(self) -> Iterator[ZooKeeperCounts]:
        """What ZooKeeper does from the block's start until the group is at rest again."""
        self.clock.advance(3_000)
        counts, before = ZooKeeperCounts(), self.zookeeper.counts.copy()
        yield counts
        self.clock.advance(1_000)
        self.rest()
        found = self.zookeeper.counts.since(before)
        counts.reads, counts.writes, counts.watches_fired = found.reads, found.writes, found.watches_fired


def test_a_frozen_member_wakes_up_and_hands_out_what_another_one_has_read() -> None:
    """As measured with Kafka's own consumer: frozen for 8.7 s with a session timeout of 4 s, records come twice."""
    group = Group(4, interval_ms=5)
    frozen, other = group.join(), group.join()
    group.rest()
    group.clock.advance(2_000)
    assert group.topics.twice() == {}
    frozen.freeze()
    assert group.clock.run_until(lambda: len(other.reads) == 4, 10_000), "the other one takes over"
    group.clock.advance(4_000)
    woken_at = group.clock.now
    frozen.thaw()
    group.clock.advance(500)
    group.rest()
    again = [d for d in group.topics.deliveries if d.member == frozen.name and d.at >= woken_at]
    twice = group.topics.twice()
    assert any(delivery in twice.get((delivery.partition, delivery.offset), ()) for delivery in again)
    group.clock.advance(2_000)
    assert {p for member in group.members for p in member.reads} == {TopicPartition("t", n) for n in range(4)}
    assert sum(len(member.reads) for member in group.members) == 4


# --- the herd effect
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "partitions"), [(5, 32), (10, 32), (20, 32), (20, 100)])
def test_one_change_costs_reads_by_the_square_of_the_members_and_two_writes_for_each_partition(
    members: int, partitions: int
) -> None:
    """N² + P + 7N reads: the members' ids, the offsets, and seven more each. Kafka's own consumer was measured at 16
    more each: it reads brokers, own id and ids twice, the brokers again to find leaders, and its pings count as reads.
    """
    group = Group(partitions)
    for _ in range(members - 1):
        group.join()
        group.rest()
    for change in ("join", "leave"):
        before = [(member, member.member.tries) for member in group.members]
        with group.counted() as counts:
            if change == "join":
                group.join()
            else:
                group.members.pop().leave()
                members -= 1
        assert [m.member.tries - n for m, n in before if not m.is_gone] == [1] * (members - (change == "join"))
        assert group.members[-1].member.conflicts == 0
        expected = members**2 + partitions + 7 * members
        assert 0.95 * expected <= counts.reads <= 1.05 * expected
        assert 2 * partitions - partitions // members <= counts.writes <= 2.1 * partitions + 4
        # One session may see both the leaver's id and, in its last moment, its own id disappear.
        assert members - 1 <= counts.watches_fired[ZnodeChange.CHILDREN] <= members + 1


@pytest.mark.parametrize("members", [2, 5, 10, 20])
def test_members_that_start_one_after_another_rebalance_by_the_square(members: int) -> None:
    """N(N+1)/2 rebalances and N(N-1)/2 watches: exactly what was measured with Kafka's own consumers."""
    group = Group(32)
    before = group.zookeeper.counts.copy()
    for _ in range(members):
        group.join()
        group.rest()
    assert sum(member.member.rebalances for member in group.members) == members * (members + 1) // 2
    fired = group.zookeeper.counts.since(before).watches_fired[ZnodeChange.CHILDREN]
    assert fired == members * (members - 1) // 2


# --- checks that can fail --------------------------------------------------------------------------------------------


def lead_many_lives() -> None:
    for seed in range(80):
        simulate_watchers(seed)
        simulate_watchers(seed, ORDERLY)


def assert_caught(pattern: str) -> None:
    with pytest.raises(InvariantError, match=pattern):
        lead_many_lives()


def test_a_member_that_does_not_commit_before_it_releases_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(member: WatcherMember) -> Plan[None]:
        yield from member._ask(StopFetching())

    monkeypatch.setattr(WatcherMember, "_stop", stop)
    assert_caught("a record came twice")


def test_a_member_that_does_not_look_whether_a_claim_succeeds_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WatcherMember._create_own

    def create(member: WatcherMember, path: str, data: bytes) -> Plan[bool]:
        yield from real(member, path, data)
        return True

    monkeypatch.setattr(WatcherMember, "_create_own", create)
    assert_caught("two members read one partition|came twice|ZooKeeper does not say so|are read by")


def test_a_member_that_forgets_what_changed_while_it_rebalanced_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WatcherMember._rebalance

    def rebalance(member: WatcherMember) -> Plan[bool]:
        done = yield from real(member)
        member._unarmed.clear()
        return done

    monkeypatch.setattr(WatcherMember, "_rebalance", rebalance)
    assert_caught("are read by|not at rest")
