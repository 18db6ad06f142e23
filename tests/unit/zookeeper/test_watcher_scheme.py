"""The rules of scheme 1, one at a time, against the in-memory ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import Ask, Create, Delete, Exists, GetChildren, GetData, SetData
from muster.zookeeper.watchers.asks import Level, NotifyUser, RebalanceFailedError, StartFetching
from muster.zookeeper.watchers.scheme import WatcherMember
from muster.zookeeper.watchers.settings import WatcherSettings, new_consumer_id
from muster.zookeeper.watchers.states import TRANSITIONS, WatcherEvent, WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.simulator.zookeeper import SimSession
from tests.support.watcher_world import Hand, World, alone, changed, registered, reported

# --- what is written -------------------------------------------------------------------------------------------------


def test_a_member_registers_and_claims_as_kafka_08_does() -> None:
    world = World(partitions=2)
    watcher = world.at_rest("vm-1-bffbbfb2")
    tree = world.zookeeper.tree
    registered = znodes.read_member("/i", world.data("/consumers/g/ids/g_vm-1-bffbbfb2"))
    assert isinstance(registered, znodes.MemberRegistration)
    data = f'{{"version":1,"subscription":{{"t":1}},"pattern":"static","timestamp":"{registered.timestamp_ms}"}}'
    assert world.data("/consumers/g/ids/g_vm-1-bffbbfb2") == data.encode()
    assert registered.timestamp_ms >= 1_000
    assert world.owners() == {0: "g_vm-1-bffbbfb2-0", 1: "g_vm-1-bffbbfb2-0"}
    assert tree.owned_by(watcher.session.session_id) == [
        "/consumers/g/ids/g_vm-1-bffbbfb2",
        "/consumers/g/owners/t/0",
        "/consumers/g/owners/t/1",
    ]
    for parent in ("/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t"):
        assert tree.get(parent).owner == 0
        assert tree.get(parent).data is None


def test_threads_are_streams_of_which_each_owns_its_part() -> None:
    world = World(partitions=5)
    first = world.at_rest("C1", WatcherSubscription.to_topics({"t": 2}))
    second = world.at_rest("C2", WatcherSubscription.to_topics({"t": 2}))
    world.rest(first, second)
    assert world.owners() == {0: "g_C1-0", 1: "g_C1-0", 2: "g_C1-1", 3: "g_C2-0", 4: "g_C2-1"}


def test_a_consumer_id_is_made_as_08_makes_it() -> None:
    assert new_consumer_id("g1", "vm", 1795229792484, "bffbbfb2aabb") == "g1_vm-1795229792484-bffbbfb2"
    assert new_consumer_id("g", "hôst/1", 5, "0" * 32) == "g_h-st-1-5-00000000"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_id", "a/b"),
        ("consumer_id", "g_a/b"),
        ("partition_assignment_strategy", "sticky"),
        ("rebalance_max_retries", 0),
        ("rebalance_backoff_ms", -1),
        ("zookeeper_session_timeout_ms", 0),
        ("zookeeper_session_timeout_ms", 1 << 31),  # it is sent in 32 bits
    ],
)
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        WatcherSettings(**{"group_id": "g", "consumer_id": "g_a", name: value})


# --- the order of a rebalance ----------------------------------------------------------------------------------------


def test_watches_are_set_before_anything_is_read() -> None:
    world = World(partitions=1)
    hand = Hand(world)
    member = WatcherMember(WatcherSettings("g", "g_a"), WatcherSubscription.to_topics({"t": 1}))
    hand.carry_out(member.attend())
    steps = hand.steps()
    registered = max(index for index, step in enumerate(steps) if step == "Create /consumers/g/ids/g_a")
    assert steps[registered + 1 : registered + 5] == [
        "Exists /consumers/g/ids watch",
        "GetChildren /consumers/g/ids watch",
        "Exists /brokers/topics/t watch",
        "GetData /consumers/g/ids/g_a",
    ]


def test_a_rebalance_stops_commits_releases_reads_claims_and_starts_in_this_order() -> None:
    world, hand, member = alone()
    member.watched(changed("/consumers/g/ids"))
    hand.carry_out(member.attend())
    assert hand.steps() == [
        "Exists /consumers/g/ids watch",
        "GetChildren /consumers/g/ids watch",
        "GetData /consumers/g/ids/g_a",
        "GetChildren /brokers/ids",
        "GetData /brokers/ids/0",
        "StopFetching",
        "SetData /consumers/g/offsets/t/0",
        "Create /consumers/g/offsets/t",
        "Create /consumers/g/offsets",
        "Create /consumers/g/offsets/t",
        "Create /consumers/g/offsets/t/0",
        "GiveUp",
        "Delete /consumers/g/owners/t/0",
        "GetChildren /consumers/g/ids watch",
        "GetData /consumers/g/ids/g_a",
        "GetData /brokers/topics/t watch",
        "Create /consumers/g/owners/t/0",
        "GetData /consumers/g/offsets/t/0",
        "StartFetching",
    ]
    assert world.data("/consumers/g/offsets/t/0") == b"7"
    assert hand.positions == {TopicPartition("t", 0): 7}


def test_without_auto_commit_nothing_is_committed_by_a_rebalance() -> None:
    _, hand, member = alone(auto_commit_enable=False)
    member.watched(changed("/consumers/g/ids"))
    hand.carry_out(member.attend())
    assert not any(isinstance(what, SetData) for what in hand.asked)
    hand.carry_out(member.shut_down())
    assert not any(isinstance(what, SetData) for what in hand.asked)


def test_a_change_between_the_answer_and_its_reading_is_not_lost() -> None:
    """The watch is set, fires, and is reported before the plan continues with the answer."""
    _, hand, member = alone()
    member.watched(changed("/consumers/g/ids"))

    def fires(what: Ask[Any]) -> bool:
        member.watched(changed("/consumers/g/ids"))
        return True

    hand.before[GetChildren] = fires
    hand.carry_out(member.attend())
    assert [what.path for what in hand.asked if isinstance(what, Exists)] == ["/consumers/g/ids"] * 2


def test_many_changes_make_one_rebalance() -> None:
    world = World()
    watcher = world.at_rest()
    before = watcher.member.rebalances
    watcher.freeze()
    others = [world.join(name) for name in "bcd"]
    world.clock.advance(1_500)
    world.write({"t": 6})
    watcher.thaw()
    world.rest(watcher, *others)
    assert watcher.member.rebalances - before <= 2


# --- the listeners of Z5, and Z4's ------------------------------------------------------------------------------------


def test_members_that_come_and_go_make_the_group_rebalance() -> None:
    world = World()
    first = world.at_rest("a")
    second = world.at_rest("b")
    world.rest(first, second)
    assert world.owners() == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    second.leave()
    world.rest(first, after_ms=1_000)
    assert set(world.owners().values()) == {"g_a-0"}
    assert first.member.rebalances == 3


def test_new_partitions_make_the_group_rebalance() -> None:
    world = World(partitions=1)
    watcher = world.at_rest()
    world.write({"t": 3})
    world.rest(watcher, after_ms=500)
    assert set(world.owners()) == {0, 1, 2}


def test_a_topic_may_come_after_its_consumer_and_go_before_it() -> None:
    world = World()
    watcher = world.at_rest("a", WatcherSubscription.to_topics({"later": 1}))
    assert watcher.reads == set()
    world.write({"later": 1})
    world.rest(watcher, after_ms=500)
    assert watcher.reads == {TopicPartition("later", 0)}
    world.do(Delete("/brokers/topics/later"))
    world.rest(watcher, after_ms=500)
    assert watcher.reads == set()
    assert world.owners("later") == {}


def test_a_session_that_expires_is_begun_again_and_the_id_registered_again() -> None:
    world = World(interval_ms=50)
    watcher = world.at_rest()
    session = watcher.session.session_id
    world.clock.advance(5_000)
    assert world.zookeeper.tree.find("/consumers/g/offsets") is None
    world.zookeeper.expire(watcher.session)
    world.rest(watcher, after_ms=3_000)
    assert watcher.session.session_id != session
    owner = world.zookeeper.tree.get("/consumers/g/ids/g_a").owner
    assert owner == watcher.session.session_id
    assert world.owners() == dict.fromkeys(range(4), "g_a-0")
    # It did not commit for partitions that may have had another owner by then: it restarted from the group's offset.
    assert world.topics.twice()


def test_brokers_are_watched_only_if_that_is_asked_for() -> None:
    world = World()
    plain, watching = world.at_rest("a"), world.at_rest("b", watch_brokers=True)
    world.rest(plain, watching)
    before = [w.member.rebalances for w in (plain, watching)]
    world.write({}, brokers=2)
    world.rest(plain, watching, after_ms=1_000)
    assert [w.member.rebalances - n for w, n in zip((plain, watching), before, strict=True)] == [0, 1]


def test_without_any_broker_it_waits_for_one() -> None:
    world = World(brokers=0)
    watcher = world.join()
    world.clock.advance(3_000)
    assert watcher.member.state is WatcherState.WITHOUT_BROKERS
    assert not watcher.member.wants_attention
    assert reported(watcher) == ["no broker is registered in ZooKeeper; waiting for one"]
    assert watcher.reads == set()
    world.write({}, brokers=1)
    world.rest(watcher)
    assert len(watcher.reads) == 4


def test_a_member_whose_brokers_all_go_keeps_what_it_has() -> None:
    world = World()
    watcher = world.at_rest()
    world.do(Delete("/brokers/ids/0"))
    world.write({"t": 5}, brokers=0)
    world.clock.advance(1_000)
    assert watcher.member.state is WatcherState.WITHOUT_BROKERS
    assert len(watcher.reads) == 4
    assert len(world.owners()) == 4


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_white_list_reads_topics_as_they_come() -> None:
    world = World(partitions=1)
    world.write({"__consumer_offsets": 2, "other": 1})
    watcher = world.at_rest("a", WatcherSubscription.to_list("t.*|__.*"))
    assert watcher.reads == {TopicPartition("t", 0)}
    rebalances = watcher.member.rebalances
    world.write({"other2": 1})
    world.rest(watcher, after_ms=1_000)
    assert watcher.member.rebalances == rebalances  # 0.8 does not rebalance for a topic that the list excludes
    world.write({"t2": 1})
    world.rest(watcher, after_ms=1_000)
    assert watcher.reads == {TopicPartition("t", 0), TopicPartition("t2", 0)}
    world.write({"t2": 2})
    world.rest(watcher, after_ms=1_000)
    assert TopicPartition("t2", 1) in watcher.reads
    data = world.data("/consumers/g/ids/g_a") or b""
    assert b'"subscription":{"t.*|__.*":1},"pattern":"white_list"' in data


def test_a_black_list_reads_the_rest_and_never_committed_offsets() -> None:
    world = World(partitions=1)
    world.write({"__consumer_offsets": 2, "u": 1})
    watcher = world.at_rest("a", WatcherSubscription.to_list("t", white=False))
    assert watcher.reads == {TopicPartition("u", 0)}


def test_members_with_lists_and_with_topics_agree() -> None:
    world = World(partitions=4)
    first, second = world.at_rest("a", WatcherSubscription.to_list("t")), world.at_rest("b")
    world.rest(first, second)
    assert world.owners() == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}


@pytest.mark.parametrize(
    "regex", ["(", "[a-z&&[^b]]", "[[a]]", "[]a]", "(?P<x>a)", "\\p{Alpha}", "\\Qa\\E", "a{99999999999}", "\ud800"]
)
def test_an_expression_that_java_reads_otherwise_is_refused(regex: str) -> None:
    with pytest.raises(ConfigError):
        WatcherSubscription.to_list(regex)


def test_a_list_is_taken_as_kafkas_tools_take_it() -> None:
    assert WatcherSubscription.to_list(' "t1, t2" ').streams == {"t1|t2": 1}
    assert WatcherSubscription.to_list("t1,t2", 3).topics(["t1", "t2", "t12"]) == {"t1": 3, "t2": 3}


@pytest.mark.parametrize("streams", [{}, {"t": 0}, {"t": True}, {"t": 10_001}, {"a/b": 1}])
def test_a_subscription_that_makes_no_sense_is_refused(streams: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        WatcherSubscription.to_topics(streams)


# --- conflicts -------------------------------------------------------------------------------------------------------


def own(world: World, partition: int) -> SimSession:
    """Another program's session that owns a partition."""
    session = world.zookeeper.connect("other")
    world.zookeeper.settle()
    world.zookeeper.do(session, Create(f"/consumers/g/owners/t/{partition}", b"stranger-0", ephemeral=True))
    return session


def test_a_conflict_releases_all_backs_off_and_is_tried_again() -> None:
    world = World()
    world.at_rest("warm-up").leave()
    world.clock.advance(1_000)
    stranger = own(world, 2)
    watcher = world.join()
    world.clock.advance(1_000)
    assert watcher.member.state is WatcherState.BACKING_OFF
    assert watcher.member.conflicts == 1
    assert world.owners() == {2: "stranger-0"}
    assert reported(watcher, Level.INFO) == ["waiting for owners to release: t-2"]
    stranger.close()
    world.rest(watcher)
    assert watcher.member.tries == 2
    assert world.owners() == dict.fromkeys(range(4), "g_a-0")


def test_when_all_tries_have_failed_the_user_learns_it_and_may_come_back() -> None:
    world = World()
    world.at_rest("warm-up").leave()
    world.clock.advance(1_000)
    stranger = own(world, 0)
    watcher = world.join(rebalance_max_retries=3, rebalance_backoff_ms=100)
    assert world.clock.run_until(lambda: watcher.member.state is WatcherState.GAVE_UP, 5_000)
    world.clock.advance(200)
    assert watcher.member.tries == 3
    assert isinstance(watcher.notices[-1].error, RebalanceFailedError)
    assert "after 3 retries" in watcher.errors()[0]
    stranger.close()
    world.rest(watcher)
    assert len(watcher.reads) == 4


def test_a_try_that_zookeeper_refuses_leaves_no_claim_behind() -> None:
    """roundrobin with members that read different things fails; others can take what was owned before."""
    world = World()
    world.write({"u": 1})
    first = world.at_rest("a", partition_assignment_strategy="roundrobin")
    second = world.join("b", WatcherSubscription.to_topics({"u": 1}), partition_assignment_strategy="roundrobin")
    world.clock.advance(3_000)
    assert first.member.state is WatcherState.BACKING_OFF
    assert world.owners() == {}
    assert "with roundrobin all members must read the same topics" in reported(first)[-1]
    second.leave()
    world.rest(first, after_ms=9_000)
    assert len(world.owners()) == 4


def test_the_same_consumer_id_twice_waits_for_the_first_to_go() -> None:
    world = World()
    first = world.at_rest("a")
    second = world.join("a")
    world.clock.advance(13_000)
    assert second.member.state is WatcherState.REGISTERING
    assert reported(second)[:2] == ["another session has the id g_a; trying again in 6000 ms"] * 2
    assert first.reads == {TopicPartition("t", n) for n in range(4)}
    first.leave()
    world.rest(second, after_ms=7_000)
    assert len(second.reads) == 4


# --- what others wrote -----------------------------------------------------------------------------------------------


def test_an_id_that_cannot_be_read_is_reported_once_and_skipped() -> None:
    world = World()
    watcher = world.at_rest()
    world.do(Create("/consumers/g/ids/g_bad", b"{"))
    world.do(Create("/consumers/g/ids/g_regex", b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}'))
    world.rest(watcher, after_ms=1_000)
    world.write({"t": 5})
    world.rest(watcher, after_ms=1_000)
    assert watcher.reads == {TopicPartition("t", n) for n in range(5)}
    assert [text.split(":")[0] for text in reported(watcher)] == ["skipped"] * 2
    assert "skipped: /consumers/g/ids/g_bad cannot be read: it is not valid JSON" in reported(watcher)


def test_an_id_that_stops_javas_consumers_counts_and_is_reported() -> None:
    world = World()
    watcher = world.at_rest()
    poison = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":1795229792532}'
    world.do(Create("/consumers/g/ids/g_b", poison))
    world.rest(watcher, after_ms=1_000)
    assert watcher.reads == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert "it stops Java's 0.8 consumers" in reported(watcher)[0]


def test_a_member_that_leaves_while_ids_are_read_is_skipped() -> None:
    world = World(partitions=2)
    hand = Hand(world)
    member = registered(world, hand)
    world.do(Create("/consumers/g/ids/g_b", b"{}"))
    member.watched(changed("/consumers/g/ids"))

    def leaves(what: Ask[Any]) -> bool:
        if getattr(what, "path", "") == "/consumers/g/ids/g_b":
            world.do(Delete("/consumers/g/ids/g_b"))
            return True
        return False

    hand.before[GetData] = leaves
    hand.carry_out(member.attend())
    assert member.state is WatcherState.STABLE
    assert member.tries == 2
    assert len(member.owned) == 2


def test_an_own_id_that_another_program_has_deleted_is_written_again() -> None:
    world = World()
    watcher = world.at_rest()
    world.do(Delete("/consumers/g/ids/g_a"))
    world.rest(watcher, after_ms=3_000)
    assert world.zookeeper.tree.find("/consumers/g/ids/g_a") is not None
    assert len(watcher.reads) == 4


def test_topics_and_brokers_that_cannot_be_read_are_skipped() -> None:
    world = World(brokers=2)
    world.do(SetData("/brokers/ids/0", b"?"))
    world.do(SetData("/brokers/topics/t", b"?"))
    watcher = world.at_rest("a", WatcherSubscription.to_topics({"t": 1, "u": 1}))
    assert watcher.reads == set()
    assert reported(watcher) == [
        "skipped: /brokers/ids/0 cannot be read: it is not valid JSON",
        "skipped: /brokers/topics/t cannot be read: it is not valid JSON",
    ]


# --- offsets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset", "levels"), [(b"100", 100, 0), (b"-1", None, 0), (b"x", None, 1), (None, None, 1)]
)
def test_committed_offsets_are_where_reading_begins(data: bytes | None, offset: int | None, levels: int) -> None:
    world = World(partitions=1)
    hand = Hand(world)
    for path in ("/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"):
        world.do(Create(path))
    world.do(Create("/consumers/g/offsets/t/0", data))
    member = WatcherMember(WatcherSettings("g", "g_a"), WatcherSubscription.to_topics({"t": 1}))
    hand.carry_out(member.attend())
    started = hand.asked[-1]
    assert isinstance(started, StartFetching)
    assert started.partitions[TopicPartition("t", 0)].offset == offset
    assert started.assignment == {TopicPartition("t", 0): "g_a-0"}
    assert [broker.node.port for broker in started.brokers if broker.node] == [9092]
    assert len([what for what in hand.asked if isinstance(what, NotifyUser) and what.level is Level.ERROR]) == levels


def test_a_commit_writes_what_has_moved_and_says_what_is_not_owned() -> None:
    world = World(partitions=2)
    hand = Hand(world)
    member = registered(world, hand)
    mine, other = TopicPartition("t", 1), TopicPartition("t", 9)
    assert hand.carry_out(member.commit({mine: 5, other: 3})) == [other]
    assert world.data("/consumers/g/offsets/t/1") == b"5"
    assert world.zookeeper.tree.find("/consumers/g/offsets/t/9") is None
    hand.asked.clear()
    assert hand.carry_out(member.commit({mine: 5})) == []
    assert hand.asked == []
    hand.carry_out(member.commit({mine: 6}))
    assert hand.steps() == ["SetData /consumers/g/offsets/t/1"]


def test_what_the_group_has_committed_is_known_of_any_partition() -> None:
    world, hand, member = alone()
    for path in ("/consumers/g/offsets", "/consumers/g/offsets/t"):
        world.do(Create(path))
    for number, data in enumerate([b"0", b"7", b"-1", b"x"]):
        world.do(Create(f"/consumers/g/offsets/t/{number}", data))
    partitions = [TopicPartition("t", number) for number in range(5)]
    found = hand.carry_out(member.committed(partitions))
    assert list(found.values()) == [0, 7, None, None, None]
    with pytest.raises(ConfigError, match="a/b"):
        hand.carry_out(member.committed([TopicPartition("a/b", 0)]))


def test_a_commit_looks_neither_at_the_owner_nor_at_the_version() -> None:
    """0.8 does the same: a member that lags behind sets the group back."""
    world, hand, member = alone()
    partition = TopicPartition("t", 0)
    hand.carry_out(member.commit({partition: 5}))
    world.do(Delete("/consumers/g/owners/t/0"))
    world.do(SetData("/consumers/g/offsets/t/0", b"900"))
    hand.carry_out(member.commit({partition: 6}))
    assert world.data("/consumers/g/offsets/t/0") == b"6"


def test_leaving_commits_and_takes_id_and_owners_along() -> None:
    world = World(interval_ms=50)
    watcher = world.at_rest()
    world.clock.advance(2_000)
    watcher.leave()
    world.clock.advance(1_000)
    assert watcher.member.state is WatcherState.CLOSED
    assert not watcher.member.wants_attention
    assert int(world.data("/consumers/g/offsets/t/0") or 0) > 40
    assert world.owners() == {}
    assert world.zookeeper.tree.find("/consumers/g/ids/g_a") is None


def test_the_next_owner_begins_where_the_last_one_committed() -> None:
    """The offset is read after the claim. Before that, the former owner may not have committed yet."""
    world = World(interval_ms=20)
    first = world.at_rest("a")
    world.clock.advance(2_000)
    second = world.at_rest("b")
    world.rest(first, second)
    world.clock.advance(1_000)
    assert {delivery.member for delivery in world.topics.deliveries} == {"g_a", "g_b"}
    assert world.topics.twice() == {}


# --- states ----------------------------------------------------------------------------------------------------------


def test_every_state_is_reached_and_every_happening_moves() -> None:
    assert {state for state, _ in TRANSITIONS} == set(WatcherState)
    assert set(TRANSITIONS.values()) == set(WatcherState)
    assert {happening for _, happening in TRANSITIONS} == set(WatcherEvent)
    reached = {WatcherState.UNREGISTERED}
    while more := {to for (state, _), to in TRANSITIONS.items() if state in reached} - reached:
        reached |= more
    assert reached == set(WatcherState)


def test_a_closed_member_stays_closed() -> None:
    assert {to for (state, _), to in TRANSITIONS.items() if state is WatcherState.CLOSED} == {WatcherState.CLOSED}
