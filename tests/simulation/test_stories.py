"""Stories of whole groups in virtual time: real members, the real coordinator, no waiting."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import (
    EventCause,
    ExpiryKind,
    GroupLoaded,
    MemberExpired,
    MemberLeft,
    RebalanceStarted,
)
from muster.coordinator.runtime import Client, group_partition
from muster.errors import ErrorCode
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tests.simulator import Habits, InvariantError, SimCluster, SimMember

COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
EAGER: dict[str, Any] = {"partition_assignment_strategy": "range"}


def cluster(partitions: int = 4, **settings: Any) -> SimCluster:
    return SimCluster(1, topics={"flights": partitions}, **settings)


def group(where: SimCluster, size: int, **settings: Any) -> list[SimMember]:
    """This many members, settled."""
    members = [where.add_member(f"m{number}", **(COOPERATIVE | settings)) for number in range(size)]
    where.settle()
    return members


def rebalances(where: SimCluster) -> list[EventCause]:
    return [event.cause for event in where.brokers.coordinators.events if isinstance(event, RebalanceStarted)]


def load(members: list[SimMember]) -> list[int]:
    return [len(member.held) for member in members]


def test_a_coordinator_dies_and_another_continues_with_the_same_generation():
    """The group does not notice: no rebalance, no partition moves, nothing that was committed is handled again."""
    where = cluster(6, nodes=3)
    members = group(where, 3)
    for partition in range(6):
        where.produce("flights", partition, 10)
    where.run_until(lambda: where.lag() == 0, 10_000)
    owners, generation = where.owners(), members[0].generation_id
    before = len(where.brokers.coordinators.events)

    where.brokers.kill(1)
    where.run(2_000)
    where.brokers.take_over()
    assert where.brokers.coordinator != 1
    where.settle()

    assert where.owners() == owners
    assert {member.generation_id for member in members} == {generation}
    (loaded,) = where.brokers.coordinators.events[before:]
    assert isinstance(loaded, GroupLoaded)
    assert (loaded.generation_id, loaded.members) == (generation, 3)
    for partition in range(6):
        where.produce("flights", partition, 10)
    where.run_until(lambda: where.lag() == 0, 10_000)


def test_h3_whoever_stays_away_from_poll_leaves_by_itself_and_comes_back():
    where = cluster()
    slow, other = group(where, 2, max_poll_interval_ms=10_000)
    slow.stay_away(30_000)
    partition = next(iter(slow.held))
    where.produce(*partition)
    where.run_until(lambda: other.held == where.partitions(), 25_000)

    assert slow.state is MemberState.UNJOINED
    left = [event for event in where.brokers.coordinators.events if isinstance(event, MemberLeft)]
    assert [(event.client_id, event.reason) for event in left] == [("m0", "consumer poll timeout has expired.")]
    assert not [event for event in where.brokers.coordinators.events if isinstance(event, MemberExpired)]

    where.run_until(lambda: len(slow.held) == 2, 40_000)
    where.settle()
    assert load([slow, other]) == [2, 2]


def test_j2_a_coordinator_that_cannot_be_reached_is_given_up_and_found_again():
    where = cluster(nodes=3)
    near, far = group(where, 2, request_timeout_ms=5_000, session_timeout_ms=10_000)
    far_held = set(far.held)
    where.cut(far, [where.brokers.coordinator])
    where.run(9_000)
    assert "lost the coordinator of group" in where.story
    assert far.held == far_held  # it does not know yet, and its session has not expired
    where.run_until(lambda: near.held == where.partitions(), 20_000)

    # Every other node says where the coordinator is: the lookups must back off, or there would be a storm of them.
    begin = len(where.story)
    where.run(60_000)
    found = where.story[begin:].count("m1       the coordinator of group group is node1:9092")
    assert 3 < found < 120
    where.heal(far)
    where.settle()
    assert load([near, far]) == [2, 2]


def test_h5_the_partitions_of_a_crashed_member_go_to_the_rest_when_its_session_is_over():
    where = cluster(6)
    members = group(where, 3, session_timeout_ms=10_000)
    where.run(1)
    members[0].crash()
    crashed_at = where.clock.now
    where.run(6_000)
    assert load(members[1:]) == [2, 2]
    where.settle(30_000)
    assert load(members[1:]) == [3, 3]
    (expired,) = [event for event in where.brokers.coordinators.events if isinstance(event, MemberExpired)]
    assert expired.kind is ExpiryKind.SESSION
    assert expired.timeout_ms == 10_000
    assert crashed_at < where.clock.now


def test_h7_members_without_partitions_are_idle_until_another_leaves():
    where = cluster(2)
    members = group(where, 4)
    idle = [member for member in members if not member.held]
    assert len(idle) == 2
    for busy in [member for member in members if member.held]:
        busy.close()
    where.settle()
    assert load(idle) == [1, 1]
    assert all(member.errors == [] for member in members)


def test_static_members_are_deployed_one_by_one_without_a_rebalance():
    """KIP-345: each comes back as the same member, with the same assignment, within its session timeout."""
    where = cluster(6)
    for number in range(3):
        where.add_member(f"v1-{number}", group_instance_id=f"i{number}", **COOPERATIVE)
    where.settle()
    shares = {member.identity: set(member.held) for member in where.alive}
    generation = where.alive[0].generation_id
    started = rebalances(where)
    for number in range(3):
        next(member for member in where.alive if member.identity == f"i{number}").close()
        where.run(3_000)
        where.add_member(f"v2-{number}", group_instance_id=f"i{number}", **COOPERATIVE)
        where.settle()
    assert [member.name for member in where.alive] == ["v2-0", "v2-1", "v2-2"]
    assert {member.identity: member.held for member in where.alive} == shares
    assert {member.generation_id for member in where.alive} == {generation}
    assert rebalances(where) == started


def test_a_static_member_that_was_replaced_while_it_stood_still_learns_it_and_ends():
    where = cluster()
    first = where.add_member("first", group_instance_id="i", **COOPERATIVE)
    where.settle()
    first.freeze()
    second = where.add_member("second", group_instance_id="i", **COOPERATIVE)
    where.run_until(lambda: second.held == where.partitions(), 20_000)
    first.thaw()
    where.run_until(lambda: not first.is_alive, 10_000)
    assert "FENCED_INSTANCE_ID" in str(first.errors[0])
    where.settle()


def test_a_cooperative_member_keeps_working_on_what_it_keeps_while_another_joins():
    where = cluster(4)
    (first,) = group(where, 1)
    begin = len(where.story)
    second = where.add_member("second", **COOPERATIVE)
    where.settle()
    since = where.story[begin:]
    assert load([first, second]) == [2, 2]
    assert since.count("m0       revoked") == 1
    assert all(str(partition) not in since.split("m0       revoked")[1].splitlines()[0] for partition in first.held)


def test_an_eager_member_gives_up_everything_while_another_joins():
    where = cluster(4)
    first = where.add_member("m0", **EAGER)
    where.settle()
    begin = len(where.story)
    where.add_member("second", **EAGER)
    where.settle()
    assert "m0       revoked flights-0, flights-1, flights-2, flights-3" in where.story[begin:]
    assert first.held == {("flights", 0), ("flights", 1)}


def test_new_partitions_are_shared_out_when_metadata_is_fetched_again():
    where = cluster(4)
    members = group(where, 2, metadata_max_age_ms=30_000)
    where.brokers.topics.grow("flights", 8)
    took = where.run_until(lambda: load(members) == [4, 4], 60_000)
    assert took <= 30_000 + 10_000
    where.settle()


def test_a_group_larger_than_it_may_be_turns_one_away_and_continues():
    where = cluster(4, group_config=GroupConfig(group_max_size=2))
    members = group(where, 2)
    third = where.add_member("third", **COOPERATIVE)
    where.run(5_000)
    assert "GROUP_MAX_SIZE_REACHED" in str(third.errors[0]) or "group.max.size" in str(third.errors[0])
    assert load(members) == [2, 2]
    assert third.held == set()


def test_a_member_that_is_asked_to_goes_back_and_nobody_else_does():
    where = cluster(2)
    (member,) = group(where, 1)
    where.produce("flights", 0, 20)
    where.run_until(lambda: where.lag() == 0, 10_000)
    partition = TopicPartition("flights", 0)
    member.rewind(partition, 5)
    where.run_until(lambda: where.committed(partition) == 5, 1_000)
    where.run_until(lambda: where.lag() == 0, 10_000)
    assert "m0       handles flights-0: 5-19" in where.story
    member.core.commit({partition: OffsetAndMetadata(7)}, lambda _error, _now: None)
    with pytest.raises(InvariantError, match="moved the offset of flights-0 back from 20 to 7"):
        where.run(5_000)


def test_a_member_like_sparks_drains_its_batch_before_it_gives_a_partition_up():
    """It reads its partitions itself: the batch that it was reading when the revocation came is done and committed
    before that returns."""
    where = cluster(4)
    habits = Habits(commit="sync", handle_ms=4_000)
    first = where.add_member("first", fetch=False, habits=habits, **COOPERATIVE)
    where.settle()
    for partition in range(4):
        where.produce("flights", partition, 5)
    where.run(300)
    second = where.add_member("second", fetch=False, habits=habits, **COOPERATIVE)
    where.settle()
    assert load([first, second]) == [2, 2]
    assert where.story.count("first    handles") == 1
    assert "second   handles" not in where.story  # what moved to it was committed
    assert where.lag() == 0


def test_a_static_member_that_comes_too_late_for_a_rebalance_lets_go_of_what_others_have_got():
    """Its JoinGroup is delayed. Its membership is kept, but its partitions go to the newcomer at once, which
    commits."""
    where = cluster()
    settings = COOPERATIVE | {"max_poll_interval_ms": 10_000, "session_timeout_ms": 30_000}
    [first] = group(where, 1, group_instance_id="i0", **settings)
    second = where.add_member("m1", group_instance_id="i1", **settings)
    where.run_until(lambda: first.core.group.membership.step is RebalanceStep.JOINING, 10_000)
    where.cut(first)
    where.run_until(lambda: bool(second.held), 12_000)
    assert first.held > second.held
    taken = next(iter(second.held))
    where.produce(*taken, 10)
    where.run_until(lambda: where.lag() == 0, 10_000)
    where.heal(first)
    where.settle()

    assert load([first, second]) == [2, 2]
    assert where.committed(taken) == 10
    assert "lost flights-0, flights-1, flights-2, flights-3" in where.story


def test_members_that_are_all_dead_expire_though_their_group_has_to_be_read_again():
    where = cluster()
    where.brokers.coordinators.load_ms = 400  # for the next coordinator
    where.brokers.kill(1)
    where.brokers.start(1)
    members = group(where, 2)
    for member in members:
        member.crash()
    where.brokers.coordinators.fail_appends(True)
    where.run(46_000)  # their sessions expire; the empty group cannot be written
    where.brokers.coordinators.fail_appends(False)
    where.run(50_000)

    [described] = where.describe()
    assert described.group_state == "Empty"


# --- slots that move --------------------------------------------------------------------------------------------------


def two_slots(nodes: int = 1, lazy_log: bool = False) -> SimCluster:
    """A cluster with the groups `group` and `other` in different slots of the coordinator's store."""
    config = GroupConfig(offsets_topic_num_partitions=3)
    assert group_partition("group", 3) != group_partition("other", 3)
    return cluster(groups=["group", "other"], nodes=nodes, group_config=config, lazy_log=lazy_log)


@pytest.mark.parametrize("lazy_log", [False, True])
def test_a_slot_moves_away_and_back_while_members_wait(lazy_log):
    """A member waits in the rebalance that another one has begun, then their slot is gone. The other group
    continues."""
    where = two_slots(lazy_log=lazy_log)
    members = group(where, 2, group_id="group")
    other = group(where, 1, group_id="other")[0]
    coordinators = where.brokers.coordinators
    generation = other.generation_id
    newcomer = where.add_member("newcomer", group_id="group", **COOPERATIVE)
    where.run_until(lambda: "RebalanceStarted" in where.story.split("newcomer")[-1], 5_000)
    slot = group_partition("group", 3)
    assert coordinators.current is not None
    coordinators.current.runtime.unload(slot)
    begin = len(where.story)
    where.produce("flights", 0, 10)
    where.run_until(lambda: where.lag("other") == 0, 15_000)
    assert "NOT_COORDINATOR" in where.story[begin:]
    assert not [event for event in coordinators.events if isinstance(event, MemberExpired)]
    assert coordinators.current.runtime.load(slot, 100)
    where.settle(60_000)
    assert sorted(load([*members, newcomer])) == [1, 1, 2]
    assert other.generation_id == generation
    where.produce("flights", 0, 10)
    where.run_until(lambda: where.lag("group") == where.lag("other") == 0, 20_000)


@pytest.mark.parametrize("refuses", [True, False])
def test_a_coordinator_that_was_deposed_is_fenced_by_its_store(refuses):
    """Two nodes believe that they coordinate. Writes of the older one are refused, or never answered: it acknowledges
    nothing, although nobody has notified it."""
    where = two_slots(nodes=2)
    coordinators = where.brokers.coordinators
    members = group(where, 2, group_id="group")
    before = coordinators.current
    assert before is not None
    coordinators.depose(30_000, refuses=refuses)
    where.brokers.start_coordinator(2)
    after = coordinators.current
    assert after is not None
    assert (after.node_id != before.node_id, after.epoch > before.epoch) == (True, True)
    partition = OffsetCommitRequestPartition(0, 7)
    topic = OffsetCommitRequestTopic("flights", partitions=[partition])
    request = OffsetCommitRequest("other", topics=[topic])
    answers: list[Any] = []
    for coordinator in (before, after):
        coordinator.runtime.submit(request, Client("cli", "", 8), answers.append)
        where.run(2_000)
    codes = [answer.topics[0].partitions[0].error_code for answer in answers]
    assert codes == [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE][1 - refuses :]
    assert coordinators.stale == [before]
    if refuses:
        assert before.runtime.heartbeat("other", 1, "x") is ErrorCode.NOT_COORDINATOR
    where.run(30_000)  # by now it knows that it was deposed
    where.settle()
    assert [answer.topics[0].partitions[0].error_code for answer in answers].count(ErrorCode.NONE) == 1
    assert sorted(load(members)) == [2, 2]


# --- partitions taken by hand -----------------------------------------------------------------------------------------

BY_HAND = [TopicPartition("flights", 0), TopicPartition("flights", 1)]


def by_hand(**settings: Any) -> SimCluster:
    return cluster(2, simple_groups=["simple"], nodes=2, **settings)


def start_by_hand(where: SimCluster, name: str, partition: TopicPartition, commit: str = "sync") -> SimMember:
    return where.add_member(name, by_hand=[partition], group_id="simple", habits=Habits(commit=commit))


@pytest.mark.parametrize("commit", ["auto", "sync", "async", "middle", "overlap"])
def test_consumers_that_assign_by_hand_commit_to_one_group_and_go_on_where_it_is(commit):
    where = by_hand()
    first, second = (start_by_hand(where, f"s{n}", BY_HAND[n], commit) for n in range(2))
    for partition in range(2):
        where.produce("flights", partition, 20)
    where.run_until(lambda: where.lag("simple", BY_HAND) == 0, 20_000)
    described = next(group for group in where.describe() if group.group_id == "simple")
    assert (described.group_state, described.members) == ("Empty", [])
    first.crash()
    second.close()
    where.run_until(lambda: not where.alive, 20_000)
    where.brokers.kill(1)
    where.brokers.take_over()
    for partition in range(2):
        where.produce("flights", partition, 5)
        start_by_hand(where, f"again{partition}", BY_HAND[partition], commit)
    where.run_until(lambda: where.lag("simple", BY_HAND) == 0, 40_000)
    assert "again0   handles flights-0: 20-24" in where.story
    assert "again1   handles flights-1: 20-24" in where.story


def test_a_commit_by_hand_of_what_was_not_handled_is_noticed():
    where = by_hand()
    member = start_by_hand(where, "s0", BY_HAND[0])
    where.produce("flights", 0, 20)
    where.run_until(lambda: where.lag("simple", BY_HAND[:1]) == 0, 20_000)
    member.core.commit({BY_HAND[0]: OffsetAndMetadata(21)}, lambda _error, _now: None)
    with pytest.raises(InvariantError, match="committed 21 of flights-0, of which 20 was not handled"):
        where.run(5_000)


@pytest.mark.parametrize(("at", "what"), [(5, "begins flights-0 at 5; 20 was"), (22, "begins flights-0 at 22")])
def test_a_successor_that_begins_elsewhere_than_at_the_commit_is_noticed(at, what):
    where = by_hand()
    where.produce("flights", 0, 20)
    start_by_hand(where, "s0", BY_HAND[0])
    where.run_until(lambda: where.lag("simple", BY_HAND[:1]) == 0, 20_000)
    where.alive[0].crash()
    where.produce("flights", 0, 5)
    successor = start_by_hand(where, "s1", BY_HAND[0])
    where.run(1)
    successor.core.subscription.seek(BY_HAND[0], at)
    with pytest.raises(InvariantError, match=what):
        where.run(10_000)
