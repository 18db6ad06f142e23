"""Why groups rebalance, with tables of hand-written histories: the last row of each has this cause."""

from __future__ import annotations

import pytest

from muster.history.model import DEPARTURES, Cause, GroupKind, Limits, Rebalance
from tests.support.group_log import GroupLog, M, topic_id

A, B = M("a-1", "t:0-1"), M("b-1", "t:2-3")
ALL_A = A.with_(has="t:0-3")
S, P = A.session_ms, A.poll_ms


def running(*members: M, for_ms: int = 60_000, number: int = 1, **how: object) -> GroupLog:
    """A group that has been working for a while; members commit every 5 s."""
    log = GroupLog().generation(0, []).wait(3_000).generation(number, members, **how)  # type: ignore[arg-type]
    return log.commits(" ".join(each.has for each in members), for_ms)


def last(log: GroupLog) -> Rebalance:
    return log.history().rebalances[-1]


def closes() -> GroupLog:
    log = running(A, B).wait(2_000).commit("t:2-3").wait(500).commit("t:0-1")
    return log.wait(1_000).generation(2, [ALL_A])


def closes_while_the_others_are_slow() -> GroupLog:
    """The rebalance begins at once, and waits two minutes for the member that stays."""
    log = running(A, B).wait(2_000).commit("t:2-3").wait(800).commit("t:0-1")
    return log.wait(120_000).generation(2, [ALL_A])


def dies() -> GroupLog:
    return running(A, B).commits("t:0-1", S + 1_500).wait(700).generation(2, [ALL_A])


def goes_too_soon_to_have_expired() -> GroupLog:
    return running(ALL_A).wait(S - 1_000).generation(2, [])


def dies_in_a_cooperative_group() -> GroupLog:
    log = running(A, B, protocol="cooperative-sticky").commits("t:0-1", S + 1_500).wait(700)
    return log.generation(2, [ALL_A.with_(owned="t:0-1")], protocol="cooperative-sticky")


def handles_for_too_long() -> GroupLog:
    return running(A, B).commits("t:0-1", P - 500).wait(1_500).generation(2, [ALL_A])


def handles_for_too_long_with_a_long_session() -> GroupLog:
    quick = {"session_ms": 60_000, "poll_ms": 30_000}
    a, b = A.with_(**quick), B.with_(**quick)
    return running(a, b).commits("t:0-1", 29_000).wait(1_500).generation(2, [a.with_(has="t:0-3")])


def static_handles_for_too_long() -> GroupLog:
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    return running(a, b).commits("t:0-1", P + S - 500).wait(1_000).generation(2, [a.with_(has="t:0-3")])


def static_closes() -> GroupLog:
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    return running(a, b).commit("t:2-3").commits("t:0-1", S - 1_000).wait(1_500).generation(2, [a.with_(has="t:0-3")])


def static_is_removed() -> GroupLog:
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    return running(a, b).commits("t:0-1", 10_000).generation(2, [a.with_(has="t:0-3")])


def two_die_at_once() -> GroupLog:
    a, b, c = A.with_(has="t:0"), B.with_(has="t:1"), M("c-1", "t:2")
    return running(a, b, c).commits("t:0", S + 1_000).generation(2, [a.with_(has="t:0-2")])


def one_closes_while_another_is_dead() -> GroupLog:
    """The member that closes makes the group rebalance; the dead one only prolongs it."""
    a, b, c = A.with_(has="t:0"), B.with_(has="t:1"), M("c-1", "t:2")
    log = running(a, b, c).wait(1_000).commit("t:1").wait(500).commit("t:0")
    return log.wait(S - 2_000).generation(2, [a.with_(has="t:0-2")])


def dies_and_is_started_anew_at_once() -> GroupLog:
    """The new member's join begins the rebalance, which waits for the dead one."""
    log = running(A, B).wait(2_000).commit("t:0-1").wait(S - 1_000)
    return log.generation(2, [A, B.with_(id="b-2")])


def one_joins_while_another_is_dead() -> GroupLog:
    """The join begins the rebalance, during which the others no longer commit; it waits for the dead one."""
    log = running(A, B).wait(2_000).commits("t:0-1", 10_000)
    return log.wait(S - 9_000).generation(2, [A, M("c-1", "t:2-3")])


def one_joins_as_another_has_expired() -> GroupLog:
    log = running(A, B).commits("t:0-1", S + 1_500).wait(700)
    return log.generation(2, [A, M("c-1", "t:2-3")])


def is_restarted_in_good_order_within_one_rebalance() -> GroupLog:
    log = running(A, B).wait(2_000).commit("t:2-3").wait(100).commit("t:0-1").wait(9_000)
    return log.generation(2, [A, B.with_(id="b-2")])


def joins() -> GroupLog:
    return running(ALL_A).wait(800).generation(2, [A, B])


def joins_cooperatively() -> GroupLog:
    log = running(ALL_A, protocol="cooperative-sticky").wait(500)
    return log.generation(2, [A.with_(owned="t:0-3"), B.with_(has="")], protocol="cooperative-sticky")


def second_phase() -> GroupLog:
    log = joins_cooperatively().wait(300)
    return log.generation(3, [A.with_(owned="t:0-1"), B], protocol="cooperative-sticky")


def starts() -> GroupLog:
    return GroupLog().generation(0, []).wait(3_000).generation(1, [A, B])


def comes_and_is_gone_at_once() -> GroupLog:
    return running(A, B).generation(2, []).wait(60_000).generation(3, [])


def starts_again() -> GroupLog:
    return running(A, B).generation(2, []).wait(60_000).generation(3, [A.with_(id="a-2"), B.with_(id="b-2")])


def starts_after_deletion() -> GroupLog:
    log = running(A, B).generation(2, []).wait(60_000).tombstone()
    return log.wait(60_000).generation(1, [A.with_(id="a-2")])


def subscribes_to_more() -> GroupLog:
    return running(A, B).wait(400).generation(2, [A, B.with_(topics="t u", has="t:2-3 u:0-1")])


def topic_gets_partitions() -> GroupLog:
    return running(A, B).wait(400).generation(2, [A.with_(has="t:0-1 t:4"), B.with_(has="t:2-3 t:5")])


def topic_comes_to_be() -> GroupLog:
    a, b = A.with_(topics="t u"), B.with_(topics="t u")
    return running(a, b).wait(400).generation(2, [a.with_(has="t:0-1 u:0"), b.with_(has="t:2-3 u:1")])


def leader_joins_again() -> GroupLog:
    return running(A, B).wait(400).generation(2, [A, B])


def user_data_changes() -> GroupLog:
    return running(A, B).wait(400).generation(2, [A.with_(user_data=b"1"), B])


def topic_is_deleted() -> GroupLog:
    a, b = A.with_(topics="t u", has="t:0-1 u:0"), B.with_(topics="t u", has="t:2-3 u:1")
    return running(a, b).wait(400).generation(2, [A.with_(topics="t u"), B.with_(topics="t u")])


def static_comes_back() -> GroupLog:
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    return running(a, b).wait(9_000).generation(1, [a, b.with_(id="b-2")])


def static_comes_back_with_another_assignor() -> GroupLog:
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    return running(a, b).wait(9_000).generation(2, [a, b.with_(id="b-2")], protocol="roundrobin")


def coordinator_moves() -> GroupLog:
    log = running(A, B)
    log.leader_epoch += 1
    return log.wait(8_000).generation(2, [A, B])


def members_are_lost_with_the_coordinator() -> GroupLog:
    log = running(A, B)
    log.leader_epoch += 1
    return log.wait(S + 500).generation(2, [])


def members_are_back_after_the_coordinator_moved() -> GroupLog:
    log = members_are_lost_with_the_coordinator()
    return log.wait(5_000).generation(3, [A.with_(id="a-2"), B.with_(id="b-2")])


def dies_long_after_the_coordinator_moved() -> GroupLog:
    log = running(A, B)
    log.leader_epoch += 1
    return log.commits("t:0-3", 200_000).commits("t:0-1", S + 1_000).generation(2, [ALL_A])


CLASSIC = [
    (closes, Cause.LEFT, 0.9),
    (closes_while_the_others_are_slow, Cause.LEFT, 0.5),
    (dies, Cause.SESSION_EXPIRED, 0.85),
    (goes_too_soon_to_have_expired, Cause.LEFT, 0.5),
    (dies_in_a_cooperative_group, Cause.SESSION_EXPIRED, 0.85),
    (handles_for_too_long, Cause.POLL_INTERVAL_EXCEEDED, 0.85),
    (handles_for_too_long_with_a_long_session, Cause.POLL_INTERVAL_EXCEEDED, 0.7),
    (static_handles_for_too_long, Cause.POLL_INTERVAL_EXCEEDED, 0.85),
    (static_closes, Cause.SESSION_EXPIRED, 0.85),
    (static_is_removed, Cause.LEFT, 0.7),
    (two_die_at_once, Cause.SESSION_EXPIRED, 0.85),
    (one_closes_while_another_is_dead, Cause.LEFT, 0.5),
    (dies_and_is_started_anew_at_once, Cause.JOINED, 0.8),
    (one_joins_while_another_is_dead, Cause.JOINED, 0.7),
    (one_joins_as_another_has_expired, Cause.SESSION_EXPIRED, 0.6),
    (is_restarted_in_good_order_within_one_rebalance, Cause.LEFT, 0.7),
    (joins, Cause.JOINED, 0.9),
    (joins_cooperatively, Cause.JOINED, 0.9),
    (second_phase, Cause.JOINED, 0.9),
    (starts, Cause.STARTED, 0.9),
    (starts_again, Cause.STARTED, 0.9),
    (comes_and_is_gone_at_once, Cause.STARTED, 0.9),
    (starts_after_deletion, Cause.STARTED, 0.9),
    (subscribes_to_more, Cause.SUBSCRIPTION_CHANGED, 0.9),
    (topic_gets_partitions, Cause.PARTITIONS_ADDED, 0.9),
    (topic_comes_to_be, Cause.PARTITIONS_ADDED, 0.9),
    (leader_joins_again, Cause.LEADER_REJOINED, 0.7),
    (user_data_changes, Cause.LEADER_REJOINED, 0.7),
    (topic_is_deleted, Cause.LEADER_REJOINED, 0.7),
    (static_comes_back, Cause.STATIC_MEMBER_REPLACED, 0.9),
    (static_comes_back_with_another_assignor, Cause.STATIC_MEMBER_REPLACED, 0.8),
    (coordinator_moves, Cause.COORDINATOR_MOVED, 0.7),
    (members_are_lost_with_the_coordinator, Cause.COORDINATOR_MOVED, 0.7),
    (members_are_back_after_the_coordinator_moved, Cause.COORDINATOR_MOVED, 0.7),
    (dies_long_after_the_coordinator_moved, Cause.SESSION_EXPIRED, 0.85),
]


@pytest.mark.parametrize(("life", "cause", "sure"), CLASSIC, ids=lambda value: getattr(value, "__name__", ""))
def test_of_a_classic_group(life, cause, sure):
    row = last(life().commits("t:0-3", 8_000))
    assert row.cause is cause, row
    assert row.confidence >= sure, row


def test_two_causes_of_one_rebalance_are_both_named():
    assert Cause.SESSION_EXPIRED in {each.cause for each in last(one_joins_while_another_is_dead()).alternatives}
    assert Cause.SESSION_EXPIRED in {each.cause for each in last(dies_and_is_started_anew_at_once()).alternatives}


@pytest.mark.parametrize("took_ms", [S, 4 * S])
def test_how_long_a_rebalance_took_casts_no_doubt_on_a_crash_in_the_next_generation(took_ms: int) -> None:
    """Nobody commits while it lasts. The members kept their partitions, and committed every 5 s before and after."""
    log = running(A, B).wait(took_ms).generation(2, [A, B]).commits("t:0-3", 60_000)
    log.commits("t:0-1", S + 1_500).wait(700).generation(3, [ALL_A])
    row, crash = (last(each.commits("t:0-3", 10_000)) for each in (log, dies()))
    assert (row.cause, row.confidence) == (crash.cause, crash.confidence) == (Cause.SESSION_EXPIRED, 0.9)


def goes_at_rest() -> GroupLog:
    return GroupLog().generation(0, []).wait(3_000).generation(1, [A, B]).wait(S + 60_000).generation(2, [ALL_A])


def test_a_member_that_showed_no_sign_is_gone_and_nothing_more_is_said():
    row = last(goes_at_rest())
    assert (row.cause, row.confidence) == (Cause.MEMBER_GONE, 0.95)
    assert {each.cause for each in row.alternatives} == DEPARTURES
    assert row.is_rebalance


def test_who_joins_as_another_is_gone_at_rest_is_what_is_known():
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [A, B]).wait(S + 60_000)
    row = last(log.generation(2, [A, M("c-1", "t:2-3")]))
    assert row.cause is Cause.JOINED
    assert {each.cause for each in row.alternatives} == DEPARTURES


def static_comes_back_as_another_leaves() -> GroupLog:
    a, b, c = A.with_(instance="i1"), B.with_(has="t:2"), M("c-1", "t:3")
    log = running(a, b, c).wait(2_000).commit("t:3").wait(500).commit("t:0-2").wait(800)
    return log.generation(2, [a.with_(id="a-2"), b.with_(has="t:2-3")])


def static_brings_another_topic_as_another_leaves() -> GroupLog:
    a, b, c = A.with_(instance="i1"), B.with_(has="t:2"), M("c-1", "t:3")
    log = running(a, b, c).wait(2_000).commit("t:3").wait(500).commit("t:0-2").wait(800)
    return log.generation(2, [a.with_(id="a-2", topics="t u"), b.with_(has="t:2-3")])


def static_comes_back_as_another_joins() -> GroupLog:
    a = A.with_(instance="i1")
    return running(a, B).wait(2_000).generation(2, [a.with_(id="a-2"), B.with_(has="t:2"), M("c-1", "t:3")])


@pytest.mark.parametrize(
    ("life", "cause"),
    [
        (static_comes_back_as_another_leaves, Cause.LEFT),
        (static_brings_another_topic_as_another_leaves, Cause.LEFT),
        (static_comes_back_as_another_joins, Cause.JOINED),
    ],
)
def test_a_static_member_that_comes_back_explains_no_other_one(life, cause):
    row = last(life())
    assert row.cause is not Cause.STATIC_MEMBER_REPLACED, row
    assert cause in {row.cause, *(each.cause for each in row.alternatives)}, row
    assert any("instance i1" in sentence for sentence in row.evidence), row


def slow_and_back_848() -> GroupLog:
    """It heartbeats, and commits the same offsets, until its poll interval is over; it returns with the same id."""
    b = B.with_(poll_ms=20_000)
    log = epochs(A, b)
    for _ in range(3):
        log.wait(5_000).commit("t:0-1").commit("t:2-3", by=0)
    log.wait(5_000).commit("t:0-1").gone(b).epoch(2).target(2, [ALL_A]).standing(2, ALL_A)
    return log.commits("t:0-3", 10_000).member(b).epoch(3).target(3, [A, b]).standing(3, A, b)


def test_a_member_of_kip_848_that_comes_back_under_its_id_lived_on():
    left, back = slow_and_back_848().history().rebalances[-2:]
    assert (left.cause, back.cause) == (Cause.POLL_INTERVAL_EXCEEDED, Cause.JOINED), left
    assert 0.6 <= left.confidence < 0.9
    assert Cause.LEFT in {each.cause for each in left.alternatives}


def grows_by_counts_848(before: dict[str, int], after: dict[str, int], members: list[M]) -> Rebalance:
    """Before Kafka 4.1 the epoch's record has no hash; the counts of partitions are in a record of their own."""
    log = GroupLog()
    for each in (A, B):
        log.member(each)
    log.partitions(before).epoch(1, metadata_hash=0).target(1, [A, B]).standing(1, A, B).commits("t:0-3", 60_000)
    log.partitions(after).epoch(2, metadata_hash=0).target(2, members).standing(2, *members)
    return log.history().rebalances[-1]


def test_other_counts_of_partitions_are_other_metadata():
    row = grows_by_counts_848({"t": 4, "u": 2}, {"t": 4, "u": 5}, [A, B])
    assert (row.cause, row.confidence < 0.6) == (Cause.NOT_KNOWN, True)
    assert "topics' metadata changed" in row.evidence[0]
    assert Cause.PARTITIONS_ADDED in {each.cause for each in row.alternatives}


# ------------------------------------------------------------------------------------------------------------- KIP-848


def epochs(*members: M) -> GroupLog:
    log = GroupLog()
    for each in members:
        log.member(each)
    log.epoch(1).target(1, members).standing(1, *members)
    return log.commits(" ".join(each.has for each in members), 60_000)


def closes_848() -> GroupLog:
    log = epochs(A, B).wait(1_000).commit("t:2-3").gone(B).epoch(2)
    return log.wait(3_000).target(2, [ALL_A]).standing(2, ALL_A)


def dies_848() -> GroupLog:
    log = epochs(A, B).commits("t:0-1", S - 2_000).gone(B).epoch(2)
    return log.wait(3_000).target(2, [ALL_A]).standing(2, ALL_A)


def too_long_848() -> GroupLog:
    return epochs(A, B).commits("t:0-1", P).gone(B).epoch(2).target(2, [ALL_A]).standing(2, ALL_A)


def static_away_848() -> GroupLog:
    b = B.with_(instance="i2")
    log = epochs(A, b).wait(1_000).commit("t:2-3").standing(-2, b)
    return log.commits("t:0-1", S).gone(b).epoch(2).target(2, [ALL_A])


def static_back_848() -> GroupLog:
    b = B.with_(instance="i2")
    again = b.with_(id="b-2")
    log = epochs(A, b).wait(1_000).commit("t:2-3").standing(-2, b).wait(5_000)
    return log.gone(b).member(again).target(1, [again]).standing(1, again)


def joins_848() -> GroupLog:
    return epochs(ALL_A).member(B).epoch(2).target(2, [A, B]).standing(2, A, B)


def topic_grows_848() -> GroupLog:
    a, b = A.with_(has="t:0-1 t:4"), B.with_(has="t:2-3 t:5")
    return epochs(A, B).epoch(2, metadata_hash=2).target(2, [a, b]).standing(2, a, b)


def subscribes_848() -> GroupLog:
    b = B.with_(topics="t u", has="t:2-3 u:0")
    return epochs(A, B).member(b).epoch(2, metadata_hash=2).target(2, [b]).standing(2, A, b)


def racks_change_848() -> GroupLog:
    return epochs(A, B).epoch(2, metadata_hash=2).target(2, [A, B]).standing(2, A, B)


def regex_matches_more_848() -> GroupLog:
    a = ALL_A.with_(topics="", regex="t.*")
    log = GroupLog().member(a).epoch(1).target(1, []).regex("t.*", "t").epoch(2, metadata_hash=2)
    log.target(2, [a]).standing(2, a).commits("t:0-3", 60_000)
    a = a.with_(has="t:0-3 tt:0-1")
    return log.regex("t.*", "t tt").epoch(3, metadata_hash=3).target(3, [a]).standing(3, a)


CONSUMER = [
    (closes_848, Cause.LEFT, 0.9),
    (dies_848, Cause.SESSION_EXPIRED, 0.85),
    (too_long_848, Cause.POLL_INTERVAL_EXCEEDED, 0.85),
    (static_away_848, Cause.SESSION_EXPIRED, 0.9),
    (static_back_848, Cause.STATIC_MEMBER_REPLACED, 0.9),
    (joins_848, Cause.JOINED, 0.9),
    (topic_grows_848, Cause.PARTITIONS_ADDED, 0.9),
    (subscribes_848, Cause.SUBSCRIPTION_CHANGED, 0.9),
    (racks_change_848, Cause.NOT_KNOWN, 0.0),
    (regex_matches_more_848, Cause.PARTITIONS_ADDED, 0.8),
]


@pytest.mark.parametrize(("life", "cause", "sure"), CONSUMER, ids=lambda value: getattr(value, "__name__", ""))
def test_of_a_consumer_group(life, cause, sure):
    row = last(life().commits("t:0-3", 8_000))
    assert row.cause is cause, row
    assert row.confidence >= sure, row


def test_topics_of_consumer_groups_have_their_names():
    rows = subscribes_848().history().generations
    assert rows[-1].members[1].assignment == (("t", 2), ("t", 3), ("u", 0))
    log = GroupLog().member(A.with_(topics="t u")).epoch(1).target(1, [A])
    (row,) = log.history().generations
    assert row.members[0].assignment[0][0] == "dAEBAQEBAQEBAQEBAQEBAQ"
    (row,) = log.history(Limits(topic_names={topic_id("t").hex(): "t"})).generations
    assert row.members[0].assignment == (("t", 0), ("t", 1))


# -------------------------------------------------------------------------------------------- causes that are not known


def test_a_group_that_is_converted_there_and_back():
    log = running(A, B).wait(1_000).tombstone().member(A).member(B).epoch(1).target(1, [A, B]).standing(1, A, B)
    c = M("c-1", "t:3")
    log.member(c).epoch(2).target(2, [A, B.with_(has="t:2"), c]).standing(2, A, B.with_(has="t:2"), c)
    log.commits("t:0-3", 60_000).gone(A, B, c).epoch(None).generation(2, [A, B]).wait(500).generation(3, [A, B])
    rows = log.history()
    kinds = [(row.generation, row.kind) for row in rows.generations]
    classic, consumer = GroupKind.CLASSIC, GroupKind.CONSUMER
    assert kinds == [(0, classic), (1, classic), (1, consumer), (2, consumer), (2, classic), (3, classic)]
    causes = [(row.generation, row.cause, row.phase) for row in rows.rebalances]
    assert causes == [(1, Cause.STARTED, 1), (2, Cause.JOINED, 1), (2, Cause.LEFT, 1), (3, Cause.LEFT, 2)]
    assert [row.is_rebalance for row in rows.rebalances] == [True, True, True, False]


def test_a_log_that_begins_in_the_middle():
    log = GroupLog().commits("t:0-3", 20_000).generation(17, [A, B]).wait(1_000).generation(18, [A, B, M("c-1")])
    first, second = log.history().rebalances
    assert (first.previous_generation, first.cause, first.confidence) == (None, Cause.NOT_KNOWN, 0.0)
    assert (second.previous_generation, second.cause) == (17, Cause.JOINED)


def test_generations_that_left_no_record():
    row = last(running(A, B).wait(1_000).generation(5, [ALL_A]))
    assert (row.previous_generation, row.cause) == (1, Cause.LEFT)
    assert any("3 generations between 1 and 5 left no record" in sentence for sentence in row.evidence)


def test_a_number_that_falls():
    row = last(running(A, B, number=9).wait(1_000).generation(2, [ALL_A]))
    assert (row.previous_generation, row.cause, row.left) == (None, Cause.STARTED, ())


def test_members_of_another_protocol_type():
    log = GroupLog().generation(1, [A], protocol_type="connect").wait(5_000)
    rows = log.generation(2, [A, B], protocol_type="connect").history()
    assert rows.rebalances[-1].cause is Cause.JOINED
    member = rows.generations[-1].members[0]
    assert (member.topics, member.assignment) == ((), ())


def test_a_group_without_members_of_its_own():
    (row,) = GroupLog().commits("t:0-1", 20_000).history().generations
    assert (row.kind, row.members) == (GroupKind.OFFSETS_ONLY, ())


def test_what_broken_records_leave():
    log = running(A, B).raw(b"\0\2\0\1g", b"\0\3\0\5conn").raw(b"\0\x2a", b"x").raw(b"\0", None)
    assert [row.generation for row in log.history().generations] == [0, 1]


# --------------------------------------------------------------------------------------------- in addition to the cause


def test_how_long_partitions_were_silent():
    log = running(A, B).wait(2_000).generation(2, [ALL_A]).wait(3_000).commit("t:0-2")
    assert last(log).stopped == (("t", 0, 5_000), ("t", 1, 5_000), ("t", 2, 5_000))


def test_a_group_with_many_partitions_that_were_never_committed():
    log = GroupLog().member(A.with_(has="t:0-40")).epoch(1).target(1, [A.with_(has="t:0-40")])
    row = last(log.wait(1_000).member(B).epoch(2).target(2, [A.with_(has="t:0-20"), B.with_(has="t:21-40")]))
    assert (row.cause, row.moved, row.stopped) == (Cause.JOINED, 20, ())


def test_a_silence_over_two_rebalances_is_counted_once():
    log = running(A, B).wait(2_000).generation(2, [ALL_A]).wait(1_000).generation(3, [A, B]).wait(500).commit("t:0-3")
    first, second = log.history().rebalances[-2:]
    assert [ms for *_, ms in first.stopped] == [3_000] * 4
    assert [ms for *_, ms in second.stopped] == [500] * 4


@pytest.mark.parametrize(
    ("after", "moved", "needless"),
    [
        ([("a-1", "t:0-1"), ("b-1", "t:2"), ("c-1", "t:3")], 1, 0),
        ([("a-1", "t:2-3"), ("b-1", "t:0-1")], 4, 4),
        ([("a-1", "t:0 t:2"), ("b-1", "t:1 t:3")], 2, 2),
        ([("a-1", "t:0"), ("b-1", "t:1-3")], 1, 1),
        ([("b-1", "t:0-3")], 2, 0),
    ],
)
def test_which_moves_were_needless(after, moved, needless):
    log = running(A, B).generation(2, [M(member, has) for member, has in after])
    row = last(log)
    assert (row.moved, row.moved_needlessly) == (moved, needless)


def test_notes_of_commits():
    log = running(A).commit("t:0", by=-20).commit("t:9").expire("t:1")
    notes = [(note.kind, note.partition) for note in log.history().notes]
    assert notes == [("rewind", 0), ("non_member", 9), ("deleted", 1)]


def test_of_a_rebalance_far_from_others_patterns_say_nothing():
    log, number = running(A, B), 1
    for start in range(4):
        number += 1
        log.commits("t:0-1", S + 1_000).generation(number, [ALL_A]).commits("t:0-3", 400_000)
        number += 1
        log.generation(number, [A, B.with_(id=f"b-{start + 2}")]).commits("t:0-3", 400_000)
    causes = {row.cause for row in log.history().rebalances[1:]}
    assert causes == {Cause.SESSION_EXPIRED, Cause.JOINED}


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (Limits(consumer_session_timeout_ms=45_000), Cause.SESSION_EXPIRED),
        (Limits(consumer_session_timeout_ms=200_000), Cause.LEFT),
        (Limits(consumer_session_timeout_ms=200_000, session_timeouts_ms={"g": 45_000}), Cause.SESSION_EXPIRED),
        (Limits(consumer_session_timeout_ms=200_000, session_timeouts_ms={"other": 45_000}), Cause.LEFT),
    ],
    ids=["the brokers'", "a longer one", "the group's own", "another group's"],
)
def test_a_consumer_group_has_its_own_session_timeout_or_the_brokers(limits, cause):
    log = epochs(A, B).commits("t:0-1", 44_000).gone(B).epoch(2).wait(3_000).target(2, [ALL_A]).standing(2, ALL_A)
    assert log.history(limits).rebalances[-1].cause is cause
