"""Committed offsets: who may commit, what is kept, when it expires."""

import pytest

from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.offsets import expired
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.group_records import OffsetCommitRecord
from tests.support.group_harness import DEFAULT_PROTOCOLS, GroupHarness

RETENTION_MS = 7 * 24 * 60 * 60 * 1000
CHECK_MS = 600_000
ZERO = bytes(16)


def fetch(group: GroupHarness, version: int, topic: m.OffsetFetchRequestTopics | None):
    """The answer to an OffsetFetch for one topic, or for all (None)."""
    wanted = None if topic is None else [topic]
    found = group.shard.fetch_offsets(m.OffsetFetchRequestGroup(group.group_id, topics=wanted), version)
    return [
        (t.name, t.topic_id, [(p.partition_index, p.committed_offset, p.error_code) for p in t.partitions])
        for t in found.topics
    ]


# ------------------------------------------------------------------------------------------------------------- commit


def test_what_is_committed_can_be_fetched(group):
    group.stable_with("a").commit("a", {("t", 0): 42}, metadata="as of noon")
    (partition,) = (
        group.shard.fetch_offsets(
            m.OffsetFetchRequestGroup("g", topics=[m.OffsetFetchRequestTopics("t", ZERO, [0])]), 9
        )
        .topics[0]
        .partitions
    )
    assert (partition.committed_offset, partition.committed_leader_epoch, partition.metadata) == (42, 3, "as of noon")


def test_what_is_committed_survives_a_restart_and_the_members(group):
    group.stable_with("a").commit("a", {("t", 0): 42})
    group.leave("a").restart()
    assert group.committed("t", 0) == 42


@pytest.mark.parametrize(
    ("generation", "version", "error"),
    [
        (3, 9, ErrorCode.GROUP_ID_NOT_FOUND),
        (3, 8, ErrorCode.ILLEGAL_GENERATION),
        (0, 8, ErrorCode.ILLEGAL_GENERATION),
        (-1, 9, ErrorCode.NONE),
    ],
)
def test_commits_for_a_group_that_is_not_there(group, generation, version, error):
    assert group.commit(None, {("t", 0): 1}, generation=generation, version=version) == [error]


def test_a_simple_consumer_makes_a_group_of_its_own(group):
    """J7: it assigns itself and never joins."""
    group.commit(None, {("t", 0): 7})
    assert group.committed("t", 0) == 7
    (listed,) = group.shard.list_groups([], [])
    assert (listed.group_id, listed.protocol_type, listed.group_state) == ("g", "", "Empty")
    assert group.replayed().groups.keys() == {"g"}


def test_offsets_are_deleted_where_no_member_reads(group):
    both = {("t", 0): 1, ("u", 0): 2, ("u", 1): 3}
    group.stable_with("a").commit("a", both)
    gone, read = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    asked = [("t", 0), ("u", 0), ("u", 9), ("none", 0)]
    codes = {("t", 0): read, ("u", 0): 0, ("u", 9): gone, ("none", 0): gone}
    assert group.delete_offsets(*asked) == (0, codes)
    assert [group.committed(*each) for each in both] == [1, -1, 3]
    group.leave("a")
    assert group.delete_offsets(*asked) == (0, codes | {("t", 0): 0})
    assert [group.restart().committed(*each) for each in both] == [-1, -1, 3]


def test_offsets_that_were_never_committed_may_be_deleted_and_nothing_is_written(group):
    group.commit(None, {("t", 0): 7})
    written = len(group.log)
    assert group.delete_offsets(("t", 1), ("t", 1)) == (0, {("t", 1): 0})
    assert len(group.log) == written
    assert group.delete_offsets(("t", 0), ("t", 0)) == (0, {("t", 0): 0})
    assert len(group.log) == written + 1


@pytest.mark.parametrize("group_id", ["", "g"])
def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(group, group_id):
    group.group_id = group_id
    error = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
    assert group.delete_offsets(("t", 0)) == (error, {})


def test_what_members_read_that_are_not_consumers_is_not_known(group):
    group.stable_with("a", protocol_type="connect").commit("a", {("t", 0): 1})
    assert group.delete_offsets(("t", 0)) == (ErrorCode.NON_EMPTY_GROUP, {})
    group.leave("a")
    assert group.delete_offsets(("t", 0)) == (0, {("t", 0): 0})


def test_nobody_commits_by_hand_for_a_group_with_members(group):
    assert group.stable_with("a").commit(None, {("t", 0): 7}) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_that_was_removed_cannot_commit(group):
    """This keeps it from overwriting what the new owner has committed."""
    group.stable_with("a", "b").tick(9_999)
    group.heartbeat("a")
    group.tick(1).join("a").sync_all()
    assert group.commit("b", {("t", 0): 1}, generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert group.commit("a", {("t", 0): 1}, generation=1) == [ErrorCode.ILLEGAL_GENERATION]


def test_each_partition_has_its_own_answer(group):
    group.stable_with("a")
    codes = group.commit("a", {("t", 0): 1, ("t", 4): 1, ("nowhere", 0): 1})
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_commit_for_nothing_that_exists_does_not_ask_the_group(group):
    """Kafka's broker answers it before the coordinator sees it."""
    assert group.commit(None, {("nowhere", 0): 1}, generation=5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not group.shard.groups


def commit_topics(group: GroupHarness, version: int, **topics: list[int]) -> list[tuple[str, list[int]]]:
    """Commit for partitions of topics; returns the answer."""
    asked = [
        m.OffsetCommitRequestTopic(name, partitions=[m.OffsetCommitRequestPartition(index, 9) for index in indexes])
        for name, indexes in topics.items()
    ]
    group._take(group.shard.commit(m.OffsetCommitRequest("g", topics=asked), group._origin("x", version), group.now))
    return [(topic.name, [each.error_code for each in topic.partitions]) for topic in group.reply("x").topics]


def test_a_commit_for_none_of_a_topics_partitions_is_answered_where_there_is_no_such_topic(group):
    assert commit_topics(group, 9, t=[], nowhere=[], u=[0]) == [("nowhere", []), ("u", [0])]


def test_an_empty_name_is_that_of_an_unknown_topic(group):
    assert commit_topics(group, 9, **{"": [0]}) == [("", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])]


@pytest.mark.parametrize(("length", "error"), [(4096, ErrorCode.NONE), (4097, ErrorCode.OFFSET_METADATA_TOO_LARGE)])
def test_metadata_of_an_offset_has_a_limit(group, length, error):
    assert group.commit(None, {("t", 0): 1}, metadata="é" * length) == [error]


def test_a_note_may_be_null(group):
    assert group.commit(None, {("t", 0): 1}, metadata=None) == [ErrorCode.NONE]


# ------------------------------------------------------------------------------------------------ topics by their ids


def commit_by_id(group: GroupHarness, topic_id: bytes) -> tuple[str, list[int]]:
    topic = m.OffsetCommitRequestTopic("", topic_id, [m.OffsetCommitRequestPartition(0, 9)])
    group._take(group.shard.commit(m.OffsetCommitRequest("g", topics=[topic]), group._origin("x", 10), group.now))
    answer = group.reply("x").topics[0]
    return answer.name, [partition.error_code for partition in answer.partitions]


def test_version_10_names_topics_by_id(group):
    topic_id = group.topics.topic_id("t")
    assert commit_by_id(group, topic_id) == ("t", [0])
    assert group.committed("t", 0) == 9
    by_id = m.OffsetFetchRequestTopics("", topic_id, [0, 1])
    assert fetch(group, 10, by_id) == [("t", topic_id, [(0, 9, 0), (1, -1, 0)])]


def test_an_id_that_nobody_knows(group):
    unknown = b"?" * 16
    assert commit_by_id(group, unknown) == ("", [ErrorCode.UNKNOWN_TOPIC_ID])
    answer = fetch(group, 10, m.OffsetFetchRequestTopics("", unknown, [0]))
    assert answer == [("", unknown, [(0, -1, ErrorCode.UNKNOWN_TOPIC_ID)])]


def test_an_offset_of_a_topic_that_was_made_again_is_none(group):
    topic_id = group.topics.topic_id("t")
    commit_by_id(group, topic_id)
    group.topics.topic_id = lambda topic: b"the topic made 2"
    group.topics.topic_name = lambda topic_id: "t"
    assert fetch(group, 10, m.OffsetFetchRequestTopics("", b"the topic made 2", [0]))[0][2] == [(0, -1, 0)]
    assert fetch(group, 9, m.OffsetFetchRequestTopics("t", ZERO, [0]))[0][2] == [(0, 9, 0)]


def test_all_that_a_group_has_committed(group):
    group.commit(None, {("t", 0): 1, ("t", 3): 2, ("u", 1): 3})
    assert [(name, ps) for name, _, ps in fetch(group, 9, None)] == [("t", [(0, 1, 0), (3, 2, 0)]), ("u", [(1, 3, 0)])]
    del group.topics.partitions["u"]
    assert [name for name, _, _ in fetch(group, 9, None)] == ["t", "u"]
    assert [name for name, _, _ in fetch(group, 10, None)] == ["t"]


def test_a_group_that_is_not_there_has_committed_nothing(group):
    assert fetch(group, 9, None) == []
    assert fetch(group, 9, m.OffsetFetchRequestTopics("t", ZERO, [0])) == [("t", ZERO, [(0, -1, 0)])]


# --------------------------------------------------------------------------------------------------- expiry, deletion


@pytest.mark.slow
def test_offsets_expire_after_the_group_became_empty():
    """KIP-211: not after the commit, which may be long ago."""
    group = GroupHarness(GroupConfig(offsets_retention_check_interval_ms=1_000))
    group.stable_with("a", session_timeout_ms=1_800_000).commit("a", {("t", 0): 1})
    group.tick(60_000).leave("a").restart().tick(RETENTION_MS - 1_000)
    assert group.committed("t", 0) == 1
    group.tick(1_000)
    assert group.committed("t", 0) == -1
    assert "g" not in group.shard.groups
    assert group.replayed().groups == {}


def test_offsets_of_a_simple_consumer_expire_after_their_commit(group):
    group.commit(None, {("t", 0): 1})
    group.tick(RETENTION_MS // 2).commit(None, {("t", 1): 1})
    group.tick(RETENTION_MS // 2 + CHECK_MS)
    assert (group.committed("t", 0), group.committed("t", 1)) == (-1, 1)
    group.tick(RETENTION_MS)
    assert "g" not in group.shard.groups


def test_offsets_that_the_group_still_reads_do_not_expire(group):
    group.config = GroupConfig(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
    group.shard.config = group.config
    group.shard.loaded(group.now)
    group.stable_with("a", session_timeout_ms=1_800_000).commit("a", {("t", 0): 1, ("u", 0): 2})
    group.tick(120_000)
    assert (group.committed("t", 0), group.committed("u", 0)) == (1, -1)


@pytest.mark.parametrize("protocols", [{"range": b""}, {"range": b"\0\0\0\0\0\1"}], ids=["none", "cut short"])
def test_offsets_do_not_expire_where_subscriptions_cannot_be_read(group, protocols):
    group.stable_with("a", session_timeout_ms=1_800_000, protocols=protocols).commit("a", {("t", 0): 1})
    for _ in range(8 * 24 * 2):
        group.tick(1_799_000)
        group.heartbeat("a")
    assert group.committed("t", 0) == 1


def test_a_commit_may_carry_a_retention_time_of_its_own(group):
    """Versions 2 to 4. It is kept, because the record has a field for it."""
    group.commit(None, {("t", 0): 1}, retention_ms=1000, version=4)
    group.restart().tick(CHECK_MS)
    assert group.committed("t", 0) == -1


@pytest.mark.parametrize(
    ("protocol_type", "emptied", "own", "now", "goes"),
    [
        ("consumer", 5_000, -1, 5_999, False),  # emptied long after the commit
        ("consumer", 5_000, -1, 6_000, True),
        ("consumer", -1, -1, 1_999, False),  # the oldest records do not say when it was emptied: since its commit
        ("consumer", -1, -1, 2_000, True),
        (None, 5_000, -1, 1_999, False),  # never had members: since its commit
        (None, 5_000, -1, 2_000, True),
        ("consumer", 5_000, 7_000, 6_999, False),  # a retention time of its own has priority
        ("consumer", 5_000, 7_000, 7_000, True),
    ],
)
def test_from_when_an_offset_of_an_empty_group_may_go(protocol_type, emptied, own, now, goes):
    """Committed at 1,000, to be kept for 1,000."""
    group = ClassicGroup("g", GroupConfig())
    group.protocol_type, group.state_timestamp, group.subscribed_topics = protocol_type, emptied, frozenset()
    committed = {"t": {0: (1, -1, "", 1_000, own, bytes(16))}}
    tombstones, none_left = expired(group, committed, {}, 1_000, now)
    assert (len(tombstones), none_left) == (int(goes), goes)


def test_there_are_no_partitions_before_the_first(group):
    assert group.commit(None, {("t", -1): 1}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert group.shard.groups == {}


def test_a_rebalance_puts_expiry_off(group):
    group.stable_with("a", "b", session_timeout_ms=1_800_000, rebalance_timeout_ms=2**31 - 1)
    group.commit("a", {("u", 0): 1})
    group.join("a", rebalance_timeout_ms=2**31 - 1, session_timeout_ms=1_800_000)
    while group.now < 1_700_000_000_000 + RETENTION_MS + CHECK_MS:
        group.tick(1_799_000)
        group.heartbeat("b")
    assert group.committed("u", 0) == 1


def test_offsets_of_a_deleted_topic_go_with_it(group):
    group.commit(None, {("t", 0): 1, ("t", 3): 1, ("u", 0): 1})
    group._take(group.shard.forget_offsets("g", "t", [0, 1, 3]))
    assert [name for name, _, _ in fetch(group, 9, None)] == ["u"]
    gone = [r.key for r in group.records if isinstance(r, OffsetCommitRecord) and r.value is None]
    assert [(key.topic, key.partition) for key in gone] == [("t", 0), ("t", 3)]


def test_a_group_that_was_only_asked_about_goes_at_the_next_check(group):
    group.join_once("a").tick(CHECK_MS)
    assert "g" not in group.shard.groups


def test_subscriptions_are_known_again_after_a_restart(group):
    assert DEFAULT_PROTOCOLS["range"]
    group.stable_with("a").restart()
    assert group.group.subscribed_topics == {"t"}


def test_a_group_whose_last_offset_is_gone_leaves_nothing(group):
    group.commit(None, {("t", 0): 5, ("u", 0): 6})
    group.delete()
    assert not group.shard.offsets.by_group
    assert not list(group.shard.offsets)
