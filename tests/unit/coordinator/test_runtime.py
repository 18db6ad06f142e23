"""The runtime: durability before answers, one write a turn, loading, and requests about many groups."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.broker.net.calls import at_once
from muster.coordinator.groups.effects import MemberJoined
from muster.coordinator.runtime import group_partition
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.group_records import OffsetCommitRecord, encode_record
from tests.support.memory_log import MemoryLog
from tests.support.runtime_broker import Broker, code
from tests.support.written import build_batch

GROUPS = ("g", "h")
"""Two groups in different partitions."""


# ------------------------------------------------------------------------------------------- which partition is whose


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("", 0),
        ("golden", 43),  # seen on a Kafka broker, like the next one; the others were computed by Java
        ("golden-static", 8),
        ("a" * 100, 40),
        ("消费组", 35),
        ("\U0001f600", 49),
        ("polygenelubricants", 0),  # its hash is Java's least integer, whose absolute value is negative
    ],
)
def test_groups_live_where_kafka_keeps_them(group_id, partition):
    assert group_partition(group_id, 50) == partition


# ------------------------------------------------------------------------------------------- durability before answers


def test_an_answer_waits_for_the_write_at_the_end_of_the_turn(broker):
    answers = broker.commit()
    assert answers == []
    assert broker.flushes_wanted == 1
    broker.turn()
    assert code(answers) == 0


def test_all_commits_of_a_turn_share_a_write(broker):
    answers = [broker.commit(offset=i, partition=i % 4) for i in range(100)]
    assert broker.flushes_wanted == 1
    broker.turn()
    assert [code(answer) for answer in answers] == [0] * 100
    assert (broker.log_of("g").appends, broker.log_of("g").log_end_offset) == (1, 100)
    broker.commit()
    assert broker.flushes_wanted == 2
    broker.turn()
    broker.commit(offset=96, turn=True)
    assert {p.partition_index: p.committed_offset for p in broker.fetch("g")[0].groups[0].topics[0].partitions} == {
        0: 96,
        1: 97,
        2: 98,
        3: 99,
    }


def test_a_turn_that_writes_much_is_written_in_parts(broker):
    topic = m.OffsetCommitRequestTopic(
        "t", partitions=[m.OffsetCommitRequestPartition(p, 1, committed_metadata="x" * 4000) for p in range(4)]
    )
    answers = [broker.send(m.OffsetCommitRequest("g", topics=[topic]), 8) for _ in range(100)]
    assert broker.log_of("g").appends == 1
    broker.turn()
    assert [code(answer) for answer in answers] == [0] * 100


def test_without_turns_every_request_is_written_at_once():
    broker = Broker(turns=False).loaded()
    assert code(broker.commit()) == 0


def test_an_answer_waits_until_the_log_is_durable(broker):
    """--fsync always: written is not enough."""
    broker.commit(turn=True)
    broker.log_of("g").hold()
    answers, reads = broker.commit(offset=5), broker.fetch("g")
    broker.turn()
    assert (answers, reads) == ([], [])
    broker.log_of("g").sync()
    assert answers == []
    broker.runtime.release_durable()
    assert code(answers) == 0
    assert reads[0].groups[0].topics[0].partitions[0].committed_offset == 5


def test_what_was_read_is_durable_too(broker):
    """A fetch that saw a commit which was then lost in a crash would have returned a value that never existed."""
    broker.commit(offset=5)
    assert broker.fetch("g") == []


def test_a_heartbeat_waits_for_nothing(broker):
    broker.commit()
    assert broker.runtime.heartbeat("g", 1, "x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(broker.send(m.HeartbeatRequest("g", 1, "x"))) == ErrorCode.UNKNOWN_MEMBER_ID


# ---------------------------------------------------------------------------------------------------- loading, closing


def test_everybody_must_wait_until_it_is_loaded():
    broker = Broker()
    assert code(broker.join()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(broker.commit()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(broker.send(m.ListGroupsRequest())) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (
        code(broker.send(m.HeartbeatRequest("g", 1, "x"))) == ErrorCode.NONE
    )  # so that members stay calm, as in Kafka


def test_only_logs_that_exist_are_read_at_the_start():
    broker = Broker({5: MemoryLog(), 7: MemoryLog()}).loaded()
    assert broker.opened == [5, 7]
    broker.commit("g")
    assert broker.opened == [5, 7, broker.runtime.partition_for("g")]


def test_groups_come_back_from_their_logs(broker):
    joined = broker.join(instance="a")
    broker.turn()
    member_id = joined[0].member_id
    broker.send(m.SyncGroupRequest("g", 1, member_id), 4)
    broker.commit("h", 7, turn=True)
    again = Broker(broker.logs).loaded()
    assert again.runtime.heartbeat("g", 1, member_id, "a") == ErrorCode.NONE
    assert again.fetch("h")[0].groups[0].topics[0].partitions[0].committed_offset == 7
    assert again.runtime.next_deadline() == again.now + 10_000


def test_transactions_in_a_log_are_skipped(broker):
    """No part of muster writes them here, and whether they were committed is not tracked."""
    broker.commit(offset=1, turn=True)
    log = broker.log_of("g")
    key, value = encode_record(OffsetCommitRecord(m.OffsetCommitKey("g", "t", 0), m.OffsetCommitValue(99)))
    log.append(build_batch([(broker.now, key, value, [])], transactional=True), now=broker.now)
    log.append(build_batch([(broker.now, b"\0\0\0\1", None, [])], transactional=True, control=True), now=broker.now)
    again = Broker(broker.logs).loaded()
    assert again.fetch("g")[0].groups[0].topics[0].partitions[0].committed_offset == 1


def test_closing_writes_what_is_left_and_answers_whoever_waits(broker):
    waiting = broker.join(instance="a")
    commit = broker.commit("h")
    broker.runtime.close()
    assert code(commit) == ErrorCode.NONE
    assert code(waiting) == ErrorCode.NOT_COORDINATOR
    assert code(broker.commit()) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.runtime.close()


# ----------------------------------------------------------------------------------------------------- many groups


def test_a_fetch_of_many_groups_waits_for_all_their_logs(broker):
    for group_id in GROUPS:
        broker.commit(group_id)
    broker.turn()
    for group_id in GROUPS:
        broker.log_of(group_id).hold()
        broker.commit(group_id, 9)
    answers = broker.fetch(*GROUPS, "nobody")
    broker.turn()
    broker.log_of("h").sync()
    broker.runtime.release_durable()
    assert answers == []
    broker.log_of("g").sync()
    broker.runtime.release_durable()
    (answer,) = answers
    assert [(g.group_id, len(g.topics)) for g in answer.groups] == [("g", 1), ("h", 1), ("nobody", 0)]


@pytest.mark.parametrize("version", [1, 2, 7])
def test_a_fetch_of_one_group_in_older_versions(broker, version):
    broker.commit(offset=3, turn=True)
    request = m.OffsetFetchRequest("g", [m.OffsetFetchRequestTopic("t", [0, 1])])
    (answer,) = broker.send(request, version)
    assert [p.committed_offset for p in answer.topics[0].partitions] == [3, -1]
    (answer,) = Broker().send(request, version)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert answer.error_code == loading
    assert [p.error_code for t in answer.topics for p in t.partitions] == ([loading] * 2 if version == 1 else [])


def test_a_fetch_of_all_partitions_in_older_versions(broker):
    broker.commit(offset=3, turn=True)
    (answer,) = broker.send(m.OffsetFetchRequest("g", None), 7)
    assert [(t.name, [p.committed_offset for p in t.partitions]) for t in answer.topics] == [("t", [3])]


def test_describe_list_and_delete(broker):
    joined = broker.join(instance="a")
    broker.commit("h", turn=True)
    (described,) = broker.send(m.DescribeGroupsRequest(["g", "h", "nobody"]))
    states = {group.group_id: group.group_state for group in described.groups}
    assert states == {"g": "CompletingRebalance", "h": "Empty", "nobody": "Dead"}
    (listed,) = broker.send(m.ListGroupsRequest())
    assert sorted(group.group_id for group in listed.groups) == ["g", "h"]
    deleted = broker.send(m.DeleteGroupsRequest(["g", "h", "nobody"]))
    assert deleted == []
    broker.turn()
    codes = {result.group_id: result.error_code for result in deleted[0].results}
    assert codes == {"g": ErrorCode.NON_EMPTY_GROUP, "h": ErrorCode.NONE, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    left = broker.send(m.LeaveGroupRequest("g", members=[m.MemberIdentity(joined[0].member_id, "a")]))
    broker.turn()
    assert code(left) == ErrorCode.NONE


def test_requests_about_no_group_are_answered(broker):
    assert broker.fetch()[0].groups == []
    assert broker.send(m.DescribeGroupsRequest())[0].groups == []
    assert broker.send(m.DeleteGroupsRequest())[0].results == []


# ------------------------------------------------------------------------------------------------------ time and events


def test_joins_of_one_turn_share_a_rebalance(broker):
    first, second = broker.join(instance="a"), broker.join(instance="b")
    assert broker.runtime.next_deadline() == broker.now
    broker.turn()
    assert broker.runtime.next_deadline() == broker.now + 1  # more than one has come, so more may follow
    broker.now += 1
    broker.turn()
    assert (first[0].generation_id, second[0].generation_id) == (1, 1)
    assert len(first[0].members) == 2
    assert [type(event) for event in broker.events].count(MemberJoined) == 2


def test_member_ids_are_made_from_client_or_instance(broker):
    reported, _ = broker.join(), broker.join(instance="i")
    broker.turn()
    assert reported[0].member_id == "cli-1"
    joined = [event for event in broker.events if isinstance(event, MemberJoined)]
    assert [event.member_id for event in joined] == ["i-2"]


def test_offsets_of_a_deleted_topic_go_in_all_groups(broker):
    for group_id in GROUPS:
        broker.commit(group_id)
    at_once(broker.runtime.topics_deleted(["t"]))
    broker.turn()
    assert [group.topics for group in broker.fetch(*GROUPS)[0].groups] == [[], []]
    assert [group.topics for group in Broker(broker.logs).loaded().fetch(*GROUPS)[0].groups] == [[], []]


def test_offsets_of_a_topic_that_was_deleted_unheard_go_when_the_log_is_read(broker):
    """The broker died between the topic and its committed offsets; or the shard was not loaded."""
    for group_id in GROUPS:
        broker.commit(group_id)
    broker.turn()
    again = Broker(broker.logs)
    again.topics.partitions.pop("t")
    again.loaded()
    again.turn()
    again.topics.partitions["t"] = 4
    assert [group.topics for group in again.fetch(*GROUPS)[0].groups] == [[], []]
    assert [group.topics for group in Broker(broker.logs).loaded().fetch(*GROUPS)[0].groups] == [[], []]


@pytest.mark.parametrize(
    "request_of", [m.DescribeGroupsRequest, m.ListGroupsRequest, m.OffsetFetchRequest, m.DeleteGroupsRequest]
)
@pytest.mark.interpreted
def test_a_look_that_raises_is_answered(broker, caplog, monkeypatch, request_of):
    broker.commit("g", turn=True)
    waiting = broker.commit("g")
    shard = broker.runtime._served[broker.runtime.partition_for("g")].shard
    for name in ("describe", "list_groups", "fetch_offsets", "delete_group"):
        monkeypatch.setattr(type(shard), name, lambda *_: 1 // 0)
    many = {m.DescribeGroupsRequest: ["g"], m.DeleteGroupsRequest: ["g"], m.OffsetFetchRequest: "g"}
    argument = many.get(request_of)
    answers = broker.send(request_of() if argument is None else request_of(argument), 2)
    monkeypatch.undo()
    assert len(answers) == len(waiting) == 1
    assert "UNKNOWN_SERVER_ERROR" in str(answers) or "-1" in str(answers)
    assert code(waiting) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_groups_are_listed_when_they_are_durable(broker):
    """--fsync always: a group that a crash could take back is not shown."""
    broker.logs.setdefault(broker.runtime.partition_for("g"), MemoryLog()).hold()
    broker.join("g", instance="a")
    listed = broker.send(m.ListGroupsRequest())
    broker.turn()
    assert listed == []
    broker.log_of("g").sync()
    broker.runtime.release_durable()
    assert [group.group_id for group in listed[0].groups] == ["g"]


def test_groups_of_a_log_that_fails_are_not_listed(broker):
    broker.commit("g")
    broker.commit("h", turn=True)
    broker.log_of("g").fails = True
    broker.commit("g")
    listed = broker.send(m.ListGroupsRequest())
    broker.turn()
    assert (listed[0].error_code, [group.group_id for group in listed[0].groups]) == (0, ["h"])


# -------------------------------------------------------------------------------------------------- Kafka's own order

DELETED_BY_KAFKA = [0, 15, 13, 11, 32, 30, 18, 28, 2, 4, 26, 38, 24, 6, 36, 8, 22, 34, 16, 14]
DELETED_BY_KAFKA += [12, 20, 10, 31, 21, 9, 19, 17, 39, 29, 1, 37, 3, 27, 35, 25, 5, 33, 7, 23]
"""Kafka 4.2's answer, with 50 partitions, to a DeleteGroups of nope-0 to nope-39."""


def test_groups_are_deleted_and_described_in_kafkas_order(broker):
    (answer,) = broker.send(m.DeleteGroupsRequest([f"nope-{n}" for n in range(40)]), 2)
    assert [result.group_id for result in answer.results] == [f"nope-{n}" for n in DELETED_BY_KAFKA]
    (answer,) = broker.send(m.DeleteGroupsRequest(["", "a", "", "nope-1", "a"]), 2)
    assert [result.group_id for result in answer.results] == ["a", "", "nope-1"]
    (answer,) = broker.send(m.DescribeGroupsRequest(["", "a", "", "nope-1", "a"]))
    assert [group.group_id for group in answer.groups] == ["a", "a", "", "", "nope-1"]


BEFORE_EXPIRY_CHECK = [("g", step, number) for step, number in (("join", 0), ("wait", 2), ("join", 1), ("wait", 1))]
"""The group's alarm is due just before the shard's own check for what has expired, and its next one after that."""


@given(
    st.lists(
        st.tuples(
            st.sampled_from("gh"), st.sampled_from(["join", "leave", "beat", "wait", "delete"]), st.integers(0, 4)
        ),
        max_size=60,
    )
)
@example([("g", step, 0) for step in ("join", "leave", "delete")])
@example([("g", "join", 0), ("g", "wait", 4), *[("g", "wait", 3)] * 28, ("g", "wait", 1), *BEFORE_EXPIRY_CHECK])
@example([("g", "join", 0), ("g", "wait", 1), ("h", "join", 0), ("g", "leave", 0), ("g", "delete", 0)])
def test_the_next_deadline_is_the_earliest_of_all_groups(steps):
    """Deadlines move: alarms of groups are replaced by earlier ones, and groups are deleted while theirs are set."""
    broker = Broker().loaded()
    ids: dict[str, str] = {}
    for group, step, number in steps:
        who = group + str(number % 2)
        if step == "join":
            (answer,) = broker.join(group, ids.get(who, ""), who if number == 4 else None) or [None]
            if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                ids[who] = answer.member_id
        elif step == "leave":
            broker.send(m.LeaveGroupRequest(group, members=[m.MemberIdentity(ids.pop(who, ""), None)]), 5)
        elif step == "beat":
            broker.runtime.heartbeat(group, 1, ids.get(who, ""))
        elif step == "delete":
            broker.send(m.DeleteGroupsRequest([group]))
        else:
            broker.now += [1, 3_000, 9_999, 10_000, 300_000][number % 5]
            broker.turn()
        shards = [served.shard for served in broker.runtime._served.values()]
        due = [min([s._expiry_check_at, *[found.armed_at for found in s.groups.values()]]) for s in shards]
        assert all(shard.first_alarm <= earliest for shard, earliest in zip(shards, due, strict=True))
        assert broker.runtime.next_deadline() == min(due, default=None)
