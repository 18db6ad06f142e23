"""JoinGroup: who may join, how long the group waits for others, and who is answered at once."""

import pytest

from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.classic_join import MOST_METADATA_BYTES, UNCOUNTED_METADATA_BYTES
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import (
    EventCause,
    ExpiryKind,
    JoinRefused,
    MemberExpired,
    MemberJoined,
    RebalanceCompleted,
    RebalanceStarted,
)
from muster.coordinator.groups.group import GroupState
from muster.errors import ErrorCode
from tests.support.group_harness import DEFAULT_PROTOCOLS, GroupHarness, classic

SUBSCRIPTION = DEFAULT_PROTOCOLS["range"]


# ------------------------------------------------------------------------------------------------------------- guards


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"p" * 8_001: b""}}, ErrorCode.INVALID_REQUEST),
        ({"instance": "i" * 8_001}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_join_that_no_group_could_take(group, fields, error):
    assert group.join("a", **fields).error("a") == error


@pytest.mark.parametrize("group_id", ["", "g" * 8_001])
def test_a_group_must_have_a_name_that_a_record_can_hold(group_id):
    assert GroupHarness(group_id=group_id).join("a").error("a") == ErrorCode.INVALID_GROUP_ID


def test_the_longest_names_can_be_written():
    """Encoded they are four times as long; a client id is part of the member id."""
    group = GroupHarness(group_id="\U0001f600" * 8_000)
    longest = "\U0001f600" * 8_000
    group.join("a", instance=longest, protocols={longest: SUBSCRIPTION}).tick(3000).sync_leader()
    assert classic(group.replayed().groups[group.group_id]).protocol_name == longest


def test_errors_come_in_kafkas_order():
    """The session timeout is checked before the member, and the group's size before the protocols."""
    group = GroupHarness(GroupConfig(group_max_size=1)).stable_with("a")
    assert group.join("x", member_id="nobody", session_timeout_ms=1).error("x") == ErrorCode.INVALID_SESSION_TIMEOUT
    assert group.join("x", protocol_type="connect").error("x") == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocols": {"sticky": SUBSCRIPTION}}])
def test_a_join_that_does_not_fit_the_group(group, fields):
    """C1."""
    group.stable_with("a")
    assert group.join("b", **fields).error("b") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.join("a", **fields).error("a") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.state is GroupState.STABLE


def test_a_member_id_that_the_group_does_not_know(group):
    """C2. The client starts over as unknown, and may join."""
    group.stable_with("a")
    assert group.join("b", member_id="made-up").error("b") == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.join("b").waits("b")


def test_the_protocol_that_most_members_like_best(group):
    group.join("a", protocols={"range": SUBSCRIPTION, "sticky": SUBSCRIPTION})
    group.join("b", protocols={"sticky": SUBSCRIPTION, "range": SUBSCRIPTION, "own": SUBSCRIPTION})
    group.join("c", protocols={"sticky": SUBSCRIPTION, "range": SUBSCRIPTION}).tick(6000)
    assert group.reply("a").protocol_name == "sticky"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("chosen", "other"),
    [
        ("range", "roundrobin"),
        ("range", "cooperative-sticky"),
        ("sticky", "range"),
        ("sticky", "roundrobin"),
        ("roundrobin", "cooperative-sticky"),
        ("own", "sticky"),
    ],
)
def test_with_as_many_votes_kafkas_hash_map_decides(group, chosen, other, first):
    """Not the order in which the members came. The names were compared with Apache Kafka 4.2."""
    likes = [chosen, other] if first else [other, chosen]
    group.join("a", protocols=dict.fromkeys(likes, SUBSCRIPTION))
    group.join("b", protocols=dict.fromkeys(reversed(likes), SUBSCRIPTION)).tick(6000)
    assert group.reply("b").protocol_name == chosen


def test_a_protocol_that_is_named_twice_is_chosen_only_if_there_is_no_other(group):
    twice = [("range", SUBSCRIPTION), ("range", b""), ("sticky", SUBSCRIPTION)]
    group.join("a", protocols=twice).tick(6000)
    assert group.reply("a").protocol_name == "sticky"
    group.leave("a").join("b", protocols=twice[:2]).tick(6000)
    assert group.reply("b").protocol_name == "range"


# -------------------------------------------------------------------------------------------------------- member ids


def test_a_new_member_gets_its_id_first(group):
    """KIP-394, since version 4 of JoinGroup."""
    group.join_once("a", version=4)
    assert group.error("a") == ErrorCode.MEMBER_ID_REQUIRED
    assert group.reply("a").member_id == group.ids["a"] != ""
    assert group.state is GroupState.EMPTY
    assert group.join_once("a", version=4).waits("a")


def test_older_versions_join_at_once(group):
    """J5."""
    group.join_once("a", version=3).tick(3000)
    assert group.joined("a") == (1, "a", ["a"])


def test_an_id_that_was_handed_out_expires(group):
    group.join_once("a").tick(group.session_timeout_ms)
    assert group.join_once("a").error("a") == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_rebalance_waits_for_ids_that_were_handed_out(group):
    group.stable_with("a").join_once("b").join("a")
    assert group.waits("a")
    group.join_once("b")
    assert group.joined("a") == (2, "a", ["a", "b"])


def test_an_id_that_expires_lets_the_rebalance_go_on(group):
    group.stable_with("a").join_once("b").join("a").tick(group.session_timeout_ms)
    assert group.joined("a") == (2, "a", ["a"])


def test_an_id_that_is_given_back_lets_the_rebalance_go_on(group):
    group.stable_with("a").join_once("b").join("a").leave("b")
    assert group.left("b") == [0, 0]
    assert group.joined("a") == (2, "a", ["a"])


def test_an_id_that_was_handed_out_is_not_for_static_members(group):
    group.join_once("a")
    assert group.join_once("a", instance="i").error("a") == ErrorCode.UNKNOWN_SERVER_ERROR
    assert group.reply("a").member_id == ""


# ------------------------------------------------------------------------------------------------- the first rebalance


def test_an_empty_group_waits_for_more(group):
    group.join("a").tick(2999)
    assert group.waits("a")
    assert group.tick(1).joined("a") == (1, "a", ["a"])


def test_the_wait_continues_while_members_keep_coming(group):
    group.join("a").tick(2000).join("b").tick(1000)
    assert group.waits("a")
    group.tick(2000).join("c").tick(1000)
    assert group.waits("a")
    assert group.tick(3000).joined("a") == (1, "a", ["a", "b", "c"])


def test_the_wait_ends_with_the_rebalance_timeout(group):
    group.join("a0", rebalance_timeout_ms=7000)
    for i in range(1, 7):
        assert group.waits("a0")
        group.tick(1000).join(f"a{i}", rebalance_timeout_ms=7000)
    assert group.tick(999).waits("a0")
    assert group.tick(1).joined("a0")[0] == 1


def test_all_who_come_in_one_turn_share_a_rebalance_without_delay():
    group = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=0))
    group.join("a").join("b").tick(1)
    assert group.joined("a") == (1, "a", ["a", "b"])


def test_without_delay_the_wait_continues_while_members_keep_coming():
    group = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=0))
    group.join("a").join("b").tick(0)
    for name in "cdef":
        group.join(name).tick(1)
        assert group.waits("a")
    assert group.tick(1).joined("a") == (1, "a", list("abcdef"))


def test_without_delay_the_wait_ends_with_the_rebalance_timeout():
    """Otherwise members that join and leave, one in each millisecond, keep all others waiting."""
    group = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=0))
    group.join("a0", rebalance_timeout_ms=5).join("a1", rebalance_timeout_ms=5).tick(0)
    for i in range(2, 6):
        assert group.waits("a0")
        group.join(f"a{i}", rebalance_timeout_ms=5).tick(1)
    assert group.waits("a0")
    assert group.join("a6", rebalance_timeout_ms=5).tick(1).joined("a0")[0] == 1


def test_a_wait_that_continues_looks_at_no_session(monkeypatch):
    """It is extended each millisecond while a thousand members join."""
    group = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=0))
    group.join("a").join("b")
    monkeypatch.setattr(ClassicGroup, "sessions", None)
    assert group.tick(0).join("c").tick(1).waits("a")
    assert group.tick(1).joined("a") == (1, "a", ["a", "b", "c"])


def test_the_first_rebalance_runs_its_time_though_all_have_joined(group):
    group.stable_with("a").leave("a").join("b")
    assert group.waits("b")
    assert group.tick(3000).joined("b")[0] == 3


# --------------------------------------------------------------------------------------------------- later rebalances


def test_who_does_not_rejoin_in_time_is_dropped(group):
    """H2: the rebalance timeout is how long members are waited for."""
    group.stable_with("a", "b", "c").join("a")
    for _ in range(6):
        group.tick(9_999)
        assert group.waits("a")
        assert group.heartbeat("b") == group.heartbeat("c") == ErrorCode.REBALANCE_IN_PROGRESS
    group.join("c").tick(6)
    assert group.joined("a") == (2, "a", ["a", "c"])
    assert group.heartbeat("b") == ErrorCode.UNKNOWN_MEMBER_ID
    (expired,) = group.events_of(MemberExpired)
    assert (expired.member_id, expired.kind, expired.timeout_ms) == (group.ids["b"], ExpiryKind.REJOIN, 60_000)


def test_the_longest_rebalance_timeout_counts(group):
    group.stable_with("a", "b").join("a", rebalance_timeout_ms=6_000)
    group.tick(9_000)
    assert group.waits("a")


def test_version_0_means_the_session_timeout(group):
    group.join_once("a", version=0, session_timeout_ms=6_000, rebalance_timeout_ms=-1)
    assert group.group.rebalance_timeout_ms == 6_000


def test_a_leader_that_does_not_rejoin_is_replaced(group):
    group.stable_with("a", "b", "c", session_timeout_ms=100_000).join("b", protocols={"range": SUBSCRIPTION + b"more"})
    group.join("c").tick(60_000)
    assert group.joined("b") == (2, "b", ["b", "c"])


def test_a_leader_that_leaves_is_replaced_by_the_longest_standing_member(group):
    group.stable_with("a", "b", "c").leave("a").join("c").join("b")
    assert group.joined("b") == (2, "b", ["b", "c"])


def test_changed_metadata_starts_a_rebalance(group):
    """C5."""
    group.stable_with("a", "b").join("b", protocols={"range": SUBSCRIPTION + b"more"})
    assert group.waits("b")
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.MEMBER_REJOINED


def test_who_missed_its_answer_gets_it_again(group):
    group.join("a").join("b").tick(6000)
    assert group.join("a").joined("a") == (1, "a", ["a", "b"])
    assert group.join("b").joined("b") == (1, "a", [])


def test_changed_metadata_in_the_sync_phase_starts_over(group):
    group.join("a").join("b").tick(6000).sync("a", {}).join("b")
    group.stable_with("c").join("a").join("b").join("c").sync("b")
    waiting = group.last_ticket["b"]
    group.join("a", protocols={"range": SUBSCRIPTION + b"more"})
    assert group.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.state is GroupState.PREPARING_REBALANCE


def test_a_join_that_is_sent_twice_is_answered_twice(group):
    """Kafka leaves the first one hanging; here every request must be answered."""
    group.stable_with("a", "b").join("a")
    first = group.last_ticket["a"]
    group.join("a")
    assert group.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    group.join("b")
    assert group.joined("a") == (2, "a", ["a", "b"])


# ------------------------------------------------------------------------------------------------------------ max size


def test_a_full_group_takes_nobody_else():
    group = GroupHarness(GroupConfig(group_max_size=2)).stable_with("a", "b")
    assert group.join("c").error("c") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.state is GroupState.STABLE
    group.join("a").join("b")
    assert group.joined("a") == (2, "a", ["a", "b"])


def test_a_group_that_its_store_does_not_take_starts_over():
    """Waiting members are refused, so they leave; another one learns it from its next request, and may fit."""
    config = GroupConfig(record_fits=lambda record: len(record.value.members if record.value else ()) < 3)
    group = GroupHarness(config).stable_with("a", "b")
    group.join("c").join("a").join("b")
    records = len(group.log)
    group.sync("b")
    group.sync_leader()
    assert [group.error(name) for name in "ab"] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.TOO_LARGE
    assert (group.state, len(group.log)) == (GroupState.EMPTY, records + 1)  # all or nothing: it is written as empty
    assert group.sync("c").error("c") == ErrorCode.UNKNOWN_MEMBER_ID
    group.stable_with("c", "d")
    assert group.state is GroupState.STABLE


def test_a_group_that_has_become_too_large_loses_the_last_to_come():
    """The setting was lowered while the coordinator was down."""
    group = GroupHarness().stable_with("a", "b", "c")
    group.config.group_max_size = 2
    group.restart()
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.OVER_CAPACITY
    group.join("b").join("c").join("a")
    assert group.error("a") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.joined("b") == (2, "b", ["b", "c"])


# -------------------------------------------------------------------------------------------------------------- events


def test_events_tell_who_why_and_how_long(group):
    """The data of `groups describe` and the log lines. The join reason is KIP-800's."""
    group.stable_with("a").join("b", reason="the pod was scaled up").tick(1500).join("a").sync_all()
    joined = group.events_of(MemberJoined)[-1]
    assert (joined.client_id, joined.client_host, joined.reason) == ("client-b", "/127.0.0.1", "the pod was scaled up")
    started = group.events_of(RebalanceStarted)[-1]
    assert (started.generation_id, started.cause, started.member_id) == (1, EventCause.MEMBER_JOINED, group.ids["b"])
    assert started.reason.endswith("client reason: the pod was scaled up")
    completed = group.events_of(RebalanceCompleted)[-1]
    assert (completed.generation_id, completed.members, completed.duration_ms) == (2, 2, 1500)
    assert (completed.protocol_name, completed.leader) == ("range", group.ids["a"])


def test_a_rebalance_that_is_outdated_is_timed_from_its_beginning(group):
    group.stable_with("a", "b").join("a").tick(1000).join("b").tick(1000).join("c").tick(1000)
    group.join("a").join("b").sync_all()
    assert [e.cause for e in group.events_of(RebalanceStarted)[1:]] == [
        EventCause.LEADER_REJOINED,
        EventCause.MEMBER_JOINED,
    ]
    assert group.events_of(RebalanceCompleted)[-1].duration_ms == 3000


def test_an_id_that_nobody_came_back_with_is_forgotten_without_a_generation(group):
    """KIP-394: a client gets its id and disappears; its group is empty, and stays as it is."""
    group.join_once("a")
    assert group.error("a") == ErrorCode.MEMBER_ID_REQUIRED
    written = list(group.log)
    group.tick(group.session_timeout_ms)
    assert (group.state, group.generation, group.log, group.events) == (GroupState.EMPTY, 0, written, [])
    assert not group.group.pending_members


# ---------------------------------------------------------------------------------------- the size of members' metadata


def telling(size: int, protocols: int = 1) -> dict[str, bytes]:
    return {f"p{number}": bytes(size // protocols) for number in range(protocols)}


@pytest.mark.parametrize("protocols", [1, 8])
@pytest.mark.parametrize(("more", "error"), [(0, None), (8, ErrorCode.UNKNOWN_SERVER_ERROR)])
def test_a_member_that_tells_more_than_a_group_can_hold_is_refused(protocols, more, error):
    group = GroupHarness(GroupConfig(record_too_large=ErrorCode.UNKNOWN_SERVER_ERROR))
    group.join_once("a", version=3, protocols=telling(MOST_METADATA_BYTES + more, protocols))
    assert (None if group.waits("a") else group.error("a")) == error
    assert group.config.metadata_bytes == (0 if error else MOST_METADATA_BYTES)
    size = MOST_METADATA_BYTES + more
    why = f"its protocols take {size} bytes; the limit for a member is {MOST_METADATA_BYTES}"
    assert [(one.client_id, one.reason) for one in group.events_of(JoinRefused)] == (
        [("client-a", why)] if error else []
    )


def test_what_all_members_tell_has_a_bound_and_most_are_let_in_all_the_same():
    large, small = 1024 * 1024, UNCOUNTED_METADATA_BYTES
    group = GroupHarness(GroupConfig(metadata_max_bytes=3 * large))
    for name in "abc":
        group.join_once(name, version=3, protocols=telling(large))
        assert group.waits(name)
    group.join_once("d", version=3, protocols=telling(large))
    assert group.error("d") == ErrorCode.COORDINATOR_NOT_AVAILABLE  # it comes again
    (refused,) = group.events_of(JoinRefused)
    assert refused.reason == (
        f"its protocols take {large} bytes and those of all other members {3 * large}, together more than "
        f"queued.max.request.bytes ({3 * large})"
    )
    group.join_once("e", version=3, protocols=telling(small))
    assert group.waits("e")
    group.tick(6_000)
    group.leave("a").leave("e")
    group.join_once("d", version=3, protocols=telling(large))
    assert group.waits("d")


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_member_that_joins_again_is_counted_once(instance):
    """Its earlier metadata is forgotten, as is that of the member that a static one replaces."""
    large = 1024 * 1024
    group = GroupHarness(GroupConfig(metadata_max_bytes=2 * large))
    for name in "ab":
        group.join(name, protocols=telling(large), instance=instance and f"{instance}-{name}")
    group.tick(6_000)
    static = instance and f"{instance}-b"
    group.join_once("b", version=3, member_id="" if instance else None, protocols=telling(large - 8), instance=static)
    assert group.waits("b")
    group.join_once("c", version=3, protocols=telling(large))
    assert group.error("c") == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_no_member_is_counted_after_its_group_has_gone():
    group = GroupHarness().stable_with("a", "b")
    assert group.config.metadata_bytes > 0
    group.shard.unload(ErrorCode.NOT_COORDINATOR)
    assert group.config.metadata_bytes == 0
