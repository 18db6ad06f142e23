"""The invariants of the simulation, each broken on purpose: a check that cannot fail checks nothing."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from muster.assignors import MemberAssignment
from muster.client.core.consume import fetcher
from muster.client.core.group.assignment import Assignors
from muster.client.core.group.commits import OffsetCommitter
from muster.client.core.group.membership import Membership
from muster.client.core.subscription_state import PartitionState, SubscriptionState
from muster.coordinator.groups import classic
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.effects import ExpiryKind, MemberExpired
from muster.coordinator.groups.offsets import OffsetStore
from muster.coordinator.groups.shard import GroupShard
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import SyncGroupRequest
from tests.simulator import InvariantError, SimCluster, simulate
from tests.simulator.checks.durability import Committed
from tests.simulator.checks.offsets import Offsets, Records
from tests.simulator.checks.ownership import Ownership
from tests.simulator.log import SimLog
from tests.simulator.programs import Reader

SEEDS = 120


def lead_many_lives() -> None:
    for seed in range(SEEDS):
        simulate(seed)


def assert_caught(pattern: str) -> None:
    """One of the seeds finds the violation, and the error says what is wrong."""
    with pytest.raises(InvariantError) as caught:
        lead_many_lives()
    assert re.search(pattern, str(caught.value).splitlines()[0]), str(caught.value).splitlines()[0]


def test_a_coordinator_that_does_not_count_generations_up(monkeypatch):
    real = ClassicGroup.next_generation

    def forgetful(group: ClassicGroup, now: int) -> None:
        before = group.generation_id
        real(group, now)
        group.generation_id = max(1, before)

    monkeypatch.setattr(ClassicGroup, "next_generation", forgetful)
    assert_caught(r"generation \d+ gives|own t\d|was given|keeps rebalancing|stable after")


@pytest.mark.slow
def test_a_coordinator_whose_generations_go_back_after_a_restart(monkeypatch):
    real = ClassicGroup.apply

    def younger(group: ClassicGroup, value: Any) -> None:
        fresh = group.generation_id == 0 and value.generation > 1
        real(group, value)
        if fresh:
            group.generation_id = value.generation - 2

    monkeypatch.setattr(ClassicGroup, "apply", younger)
    assert_caught(r"after \d+")


def test_a_leader_that_gives_a_partition_to_two(monkeypatch):
    real = Assignors.assign

    def generous(assignors: Assignors, *arguments: Any) -> dict[str, MemberAssignment]:
        shares = real(assignors, *arguments)
        everything = [partition for share in shares.values() for partition in share.partitions]
        first = next(iter(shares))
        return shares | {first: MemberAssignment(everything)}

    monkeypatch.setattr(Assignors, "assign", generous)
    assert_caught(r"generation \d+ gives")


def test_a_client_that_keeps_what_it_should_give_up(monkeypatch):
    """It tells its listener that the partitions are revoked, joins, and continues reading."""
    monkeypatch.setattr(Reader, "give_up", lambda program, partitions, in_good_order: None)
    assert_caught(r"listener knows|has not let go|own t\d")


def test_a_client_that_joins_before_its_listener_has_given_up(monkeypatch):
    real = Membership._call

    def impatient(member: Membership, kind: Any, partitions: Any, then: Any, now: int) -> None:
        if kind.value == "revoked" and member.listening:
            real(member, kind, partitions, lambda _now: None, now)
            then(now)
        else:
            real(member, kind, partitions, then, now)

    monkeypatch.setattr(Membership, "_call", impatient)
    assert_caught(r"listener knows|has not let go|own t\d|does not own|never had")


def test_a_coordinator_that_lets_strangers_commit(monkeypatch):
    monkeypatch.setattr(GroupShard, "_check_commit", lambda shard, request, version, now: ErrorCode.NONE)
    assert_caught(r"moved the offset .* back|though")


def test_a_log_that_loses_what_it_called_durable(monkeypatch):
    real = SimLog.crash

    def treacherous(log: SimLog, rng: Any) -> int:
        log.lazy, log._synced = True, 0
        return real(log, rng)

    monkeypatch.setattr(SimLog, "crash", treacherous)
    assert_caught(r"after the restart|after \d+")


def test_a_coordinator_that_forgets_offsets_when_it_loads(monkeypatch):
    real = OffsetStore.apply

    def forgetful(store: OffsetStore, key: Any, value: Any) -> None:
        if value is not None and value.offset % 7:
            real(store, key, value)

    monkeypatch.setattr(OffsetStore, "apply", forgetful)
    assert_caught(r"after the restart|begins|was returned for")


def test_a_request_that_is_never_answered():
    """In a life the client's timeouts would repair it, so the check is called directly."""
    cluster = SimCluster()
    cluster.add_member("one")
    cluster.settle()
    link = cluster.network.links[0]
    current = cluster.brokers.coordinators.current
    cluster.invariants.ticket("a request", 0, link, current, lambda _answer: None)
    with pytest.raises(InvariantError, match="never answered"):
        cluster.invariants.check_no_ticket_left()
    link.is_closed = True
    cluster.invariants.check_no_ticket_left()


def test_a_coordinator_that_answers_twice(monkeypatch):
    real = classic._become_stable

    def chatty(group: Any, request: Any, now: int, effects: Any) -> None:
        real(group, request, now, effects)
        effects.replies += effects.replies[-1:]

    monkeypatch.setattr(classic, "_become_stable", chatty)
    assert_caught("answered a second time")


def test_a_client_that_commits_what_is_not_handled_yet(monkeypatch):
    real = SubscriptionState.all_consumed

    def hasty(subscription: SubscriptionState) -> Any:
        fetched = {partition: state.fetch_position for partition, state in subscription.states()}
        return {p: offset._replace(offset=fetched[p]) for p, offset in real(subscription).items()}

    monkeypatch.setattr(SubscriptionState, "all_consumed", hasty)
    assert_caught("was not handled")


def test_a_client_that_takes_records_of_an_earlier_ownership(monkeypatch):
    """The bug that the simulation found: epochs that start again with each ownership."""

    def forgetful(subscription: SubscriptionState, partitions: Any) -> None:
        before = subscription._assigned
        subscription._assigned = {partition: before.get(partition) or PartitionState() for partition in partitions}
        for state in subscription._assigned.values():
            state.pending_revocation = False
        subscription.assignment_id += 1

    monkeypatch.setattr(SubscriptionState, "_replace", forgetful)
    # Otherwise the offset shows it.
    monkeypatch.setattr(fetcher, "_is_next", lambda state, asked: state.epoch == asked[0])
    assert_caught(r"begins t\d-\d at \d+")


def test_a_client_that_begins_at_an_older_offset(monkeypatch):
    real = OffsetCommitter._on_positions

    def behind(commits: OffsetCommitter, fetch: Any, result: Any, now: int) -> None:
        if isinstance(result, dict):
            result = {p: None if o is None else o._replace(offset=o.offset // 2) for p, o in result.items()}
        real(commits, fetch, result, now)

    monkeypatch.setattr(OffsetCommitter, "_on_positions", behind)
    assert_caught(r"was committed before it got it|back from")


def test_a_client_that_never_settles(monkeypatch):
    real = Membership._after_assigned

    def restless(member: Membership, now: int) -> None:
        real(member, now)
        member.request_rejoin("once more")

    monkeypatch.setattr(Membership, "_after_assigned", restless)
    assert_caught(r"not stable|keeps rebalancing")


# --- what a check accepts, and no more -----------------------------------------------------------------------------


def expire_with_a_request(cluster: SimCluster) -> None:
    coordinators = cluster.brokers.coordinators
    identity = ("m", "m", "/m", None)
    event = MemberExpired("group", *identity, kind=ExpiryKind.SESSION, timeout_ms=100)
    cluster.invariants.on_event(coordinators.current, event)


@pytest.mark.parametrize("came", ["before the sync hung", "while it hung", "after"])
def test_a_member_that_expires_while_its_request_waits_for_other_members(came):
    """Not if it waits for the log: an answer that is ready does not renew the session."""
    cluster = SimCluster(lazy_log=True)
    coordinators = cluster.brokers.coordinators
    cluster.run(1_000)
    if came != "before the sync hung":
        coordinators.hold_syncs(True)
        cluster.run(1_000)
    if came == "after":
        coordinators.hold_syncs(False)
        cluster.run(1)
    connection = SimpleNamespace(is_closed=False, identity="m", client_name="m")
    request = SyncGroupRequest(group_id="group", generation_id=1, member_id="m")
    cluster.invariants.ticket(request, 5, connection, coordinators.current, lambda _answer: None)
    cluster.run(1_000)
    if came == "before the sync hung":
        coordinators.hold_syncs(True)
        cluster.run(1_000)
    if came == "while it hung":
        expire_with_a_request(cluster)
    else:
        with pytest.raises(InvariantError, match="expired while its request was waiting"):
            expire_with_a_request(cluster)


@pytest.mark.parametrize("first", [217, 319, 410])
def test_a_reader_that_continues_anywhere_but_where_the_log_begins_or_has_begun(first):
    partition = TopicPartition("t", 0)
    offsets = Offsets(Ownership(5), Records(lambda _partition, offset: offset, lambda _: [0, 319, 410]), latest=False)
    member: Any = SimpleNamespace(name="m", identity="m", member_id="m", generation_id=1)
    for wrong in (False, True):
        offsets.begin(member, [partition])
        offsets.handed_out(member, partition, 0, 217)
        if wrong:
            with pytest.raises(InvariantError, match=f"was handed {first + 1} of t-0 after 216"):
                offsets.handed_out(member, partition, first + 1, 500)
        else:
            offsets.handed_out(member, partition, first, 500)


def test_a_group_that_continues_at_an_offset_which_a_coordinator_finds_that_nobody_has_acknowledged():
    """With `latest` a member may commit where it begins, although nobody has handled the records before."""
    partition = TopicPartition("t", 0)
    for latest in (True, False):
        records = Records(lambda _partition, offset: offset, lambda _: [0])
        offsets = Offsets(Ownership(5), records, latest=latest)
        offsets.asked([(partition, Committed(45))])
        offsets.loaded(partition, Committed(45))
        assert offsets.handled_to(partition) == (45 if latest else 0)
