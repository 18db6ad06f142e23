"""The groups' store in ZooKeeper: what is written where, in how many operations, and how a lost answer is handled."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

import pytest

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.shards.store import FencedError
from muster.errors import ErrorCode
from muster.log.producers.producer_state import PartitionProducers
from muster.protocol import messages as m
from muster.protocol.group_records import OffsetCommitRecord, decode_record, encode_record
from muster.protocol.records.record_batch import BatchBuilder
from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.znodes import GROUPS, slot_epoch_path
from muster.zookeeper.cluster import group_store, slot_plans
from muster.zookeeper.cluster.cached_znode import MAX_OFFSET_METADATA, OFFSETS_OF_A_ZNODE
from muster.zookeeper.cluster.group_store import READ_AHEAD, READERS, GroupStore
from muster.zookeeper.cluster.group_znodes import read_znode
from tests.support.slot_world import SESSION_MS, START_MS, SlotWorld, commit_request, runner

ALPHABET = "".join(map(chr, range(33, 127)))


@pytest.fixture
def world() -> SlotWorld:
    """One coordinator that has all slots."""
    return SlotWorld.settled(1)


def multis(world, act):
    """The writes of each multi for groups that is carried out meanwhile, and the result of `act`."""
    found = []
    session = world.nodes[1].session
    submit = session.submit

    def note(what, reply, life):
        if isinstance(what, zk.Multi) and any(write.path.startswith(GROUPS) for write in what.writes):
            found.append([(type(write).__name__, write.path) for write in what.writes])
        submit(what, reply, life)

    session.submit = note
    try:
        result = act()
    finally:
        session.submit = submit
    return found, result


def all_of(world, requests):
    """Send requests in one turn, and wait for all their answers."""
    answers: list[Any] = []
    for request in requests:
        world.nodes[1].submit(request, 8, answers.append)
    world.until(lambda: len(answers) == len(requests))
    return [ErrorCode(answer.topics[0].partitions[0].error_code) for answer in answers]


def stored(world, path):
    found = read_znode(path, world.zookeeper.tree.get(path).data)
    assert isinstance(found, dict), found
    return [decode_record(key, value) for key, value in found.items()]


# --- what is written, in how many operations -------------------------------------------------------------------------


def test_where_a_group_is(world):
    slot = world.slot_of("g")
    generation, ids = world.form("g")
    assert world.commit("g", 5, generation=generation, member_id=ids[0]) == 0
    group, offsets = f"/muster/groups/{slot}/g", f"/muster/groups/{slot}/g~0"
    assert world.znodes() == [group, offsets]
    [record] = stored(world, group)
    assert (record.key.group, record.value.generation, record.value.leader) == ("g", generation, ids[0])
    assert {member.member_id: bytes(member.assignment).rstrip(b".").decode() for member in record.value.members} == {
        each: each for each in ids
    }
    [commit] = stored(world, offsets)
    assert (commit.key.topic, commit.key.partition, commit.value.offset) == ("t", 0, 5)


@pytest.mark.parametrize("members", [1, 2, 20])
def test_one_multi_for_a_rebalance_however_many_members(world, members):
    world.form("g", members)
    generation, _ = world.form("other", 1)  # a group is written when it is created, too
    found, (again, _) = multis(world, lambda: world.form("g", members))
    assert again > generation
    slot = world.slot_of("g")
    assert found == [[("Check", slot_epoch_path(slot)), ("SetData", f"/muster/groups/{slot}/g")]]


def test_the_commits_of_one_turn_go_together_and_those_of_the_time_of_a_multi_with_the_next(world):
    names = [name for name in map(str, range(400)) if world.slot_of(name) == 0][:30]
    first = [commit_request(name, {0: 1, 1: 1}) for name in names]
    found, errors = multis(world, lambda: all_of(world, first))
    assert set(errors) == {ErrorCode.NONE}
    assert [len(writes) for writes in found] == [1 + len(names)]

    def one_after_another():
        answers: list[Any] = []
        for number in range(20):
            for name in names:
                world.nodes[1].submit(commit_request(name, {0: 2 + number}), 8, answers.append)
            world.run(1)
        world.until(lambda: len(answers) == 20 * len(names))

    found, _ = multis(world, one_after_another)
    assert len(found) < 15
    assert world.committed(names[0]) == {0: 21, 1: 1}


def test_many_offsets_are_in_few_znodes(world):
    world.topics.partitions["t"] = 1_000
    assert all_of(world, [commit_request("g", dict.fromkeys(range(950), 1))]) == [ErrorCode.NONE]
    slot = world.slot_of("g")
    assert len(world.znodes(slot)) == 950 // OFFSETS_OF_A_ZNODE
    found, _ = multis(world, lambda: world.commit("g", 2, partition=901))
    assert [[kind for kind, _ in writes] for writes in found] == [["Check", "SetData"]]
    world.kill(1)
    world.start(2)
    world.settle()
    assert world.committed("g") == {**dict.fromkeys(range(950), 1), 901: 2}


def test_what_does_not_fit_into_one_multi_goes_into_several(world):
    """And every znode fits, even if each offset has metadata of the maximum length, added later."""
    world.topics.partitions["t"] = 1_000
    assert all_of(world, [commit_request("g", dict.fromkeys(range(400), 1))]) == [ErrorCode.NONE]
    request, rng = commit_request("g", dict.fromkeys(range(400), 2)), Random(1)
    for partition in request.topics[0].partitions:
        partition.committed_metadata = "".join(rng.choices(ALPHABET, k=MAX_OFFSET_METADATA))
    found, errors = multis(world, lambda: all_of(world, [request, commit_request("h", {0: 1})]))
    assert errors == [ErrorCode.NONE] * 2
    writes = [path for writes in found for kind, path in writes if kind == "SetData"]
    assert len(set(writes)) == len(writes) == 400 // OFFSETS_OF_A_ZNODE
    assert len(found) >= 2
    assert world.committed("g") == dict.fromkeys(range(400), 2)


def test_a_multi_that_would_be_too_large_is_two(world, monkeypatch):
    monkeypatch.setattr(group_store, "WRITES_OF_A_MULTI", 3)
    names = [name for name in map(str, range(400)) if world.slot_of(name) == 0][:5]
    there: list[bool] = []

    def all_at_once():
        for name in names:
            path = f"/muster/groups/0/{name}~0"
            reply = lambda answer, path=path: there.append(world.zookeeper.tree.find(path) is not None)  # noqa: E731
            world.nodes[1].submit(commit_request(name, {0: 1}), 8, reply)
        world.until(lambda: len(there) == len(names))

    found, _ = multis(world, all_at_once)
    assert there == [True] * len(names)  # when it was acknowledged
    assert [len(writes) for writes in found] == [4, 3]


def test_offsets_that_expire_and_groups_that_are_deleted_leave_no_znode():
    config = GroupConfig(offsets_retention_minutes=1, offsets_topic_num_partitions=4)
    config.offsets_retention_check_interval_ms = 10_000
    world = SlotWorld.settled(1, config=config)
    assert world.commit("g", 5) == 0
    world.run(30_000)
    assert world.commit("g", 6, partition=1) == 0
    assert all_of(world, [commit_request("h", dict.fromkeys(range(40), 1))]) == [ErrorCode.NONE]
    world.run(45_000)
    [left] = stored(world, f"/muster/groups/{world.slot_of('g')}/g~0")
    assert left.key.partition == 1
    [answer] = world.ask(world.nodes[1], m.DeleteGroupsRequest(["h"]), 2).results
    assert answer.error_code == 0
    assert [path for path in world.znodes() if "/h" in path] == []
    world.run(60_000)
    assert world.znodes() == []
    journals: list[Any] = [served.journal for served in world.nodes[1].runtime._served.values()]
    assert not any(journal._own or journal._offsets or journal._where for journal in journals)
    assert world.commit("g", 7) == 0
    assert world.committed("g") == {0: 7}


ODD = ["", ".", "..", "a/b", "/", "größe", "\0", "a~0", "%", "\uffff", "𝔤" * 100, "x" * 8_000]


@pytest.mark.parametrize("group_id", ODD, ids=lambda group_id: repr(group_id[:5]))
def test_odd_group_ids(world, group_id):
    assert world.commit(group_id, 5) == 0
    if group_id:
        generation, (leader,) = world.form(group_id, 1)
    world.kill(1)
    world.start(2)
    world.settle()
    assert world.committed(group_id) == {0: 5}
    if group_id:
        assert world.heartbeat(group_id, generation, leader) is ErrorCode.NONE


@pytest.mark.parametrize("length", [8_001, 65_535])
def test_group_ids_that_are_too_long_are_refused(world, length):
    assert world.commit("x" * length, 5) == ErrorCode.INVALID_GROUP_ID
    assert world.znodes() == []


# --- what can go wrong -----------------------------------------------------------------------------------------------


def cut(world, act, after):
    """Break the connection after the next multi for groups was sent: before it has arrived, or `after` it was carried
    out and before its answer is back."""
    node = world.nodes[1]
    submit = node.session.submit
    is_cut: list[Any] = []

    def lose(what, reply, life):
        if not isinstance(what, zk.Multi) or is_cut:
            submit(what, reply, life)
            return
        is_cut.append(what)
        if after:
            world.zookeeper.cut(node.session, directions=("to client",))
            submit(what, reply, life)
            world.clock.call_later(50, broken)
        else:
            world.zookeeper.cut(node.session, directions=("to server",))
            submit(what, reply, life)
            broken()

    def broken():
        connection = node.session._connection
        connection.to_server.queue.clear()
        world.zookeeper.heal(node.session)
        connection.end()

    node.session.submit = lose
    result = act()
    node.session.submit = submit
    assert is_cut
    return result


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", ["nothing", "a group"])
def test_a_lost_answer(world, before, after):
    """The commit waits, is settled when the connection is back, and the next one finds the correct versions."""
    if before == "a group":
        assert world.commit("g", 1) == 0
    assert cut(world, lambda: world.commit("g", 2), after) == 0
    assert world.commit("g", 3) == 0
    assert world.committed("g") == {0: 3}
    path = f"/muster/groups/{world.slot_of('g')}/g~0"
    assert world.zookeeper.tree.get(path).version == (2 if before == "a group" else 1)


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_to_a_deletion(world, after):
    assert world.commit("g", 1) == 0
    [answer] = cut(world, lambda: world.ask(world.nodes[1], m.DeleteGroupsRequest(["g"]), 2), after).results
    assert answer.error_code == 0
    assert world.znodes() == []
    assert world.commit("g", 3) == 0
    assert world.committed("g") == {0: 3}


def test_while_zookeeper_is_away_commits_wait_then_are_refused_and_nothing_acknowledged_is_forgotten(world):
    assert world.commit("g", 1) == 0
    node = world.nodes[1]
    world.zookeeper.cut(node.session)
    answers: list[Any] = []
    node.submit(commit_request("g", {0: 2}), 8, answers.append)
    world.run(SESSION_MS // 2)
    assert answers == []
    fetched: list[Any] = []
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup("g", topics=None)])
    node.submit(request, 8, fetched.append)
    assert fetched == []  # the answer would not be durable
    world.run(SESSION_MS)
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert fetched[0].groups[0].error_code == ErrorCode.NOT_COORDINATOR
    world.run(30_000)
    world.zookeeper.heal(node.session)
    world.settle()
    assert world.committed("g")[0] in (1, 2)
    assert world.commit("g", 3) == 0


def test_a_zookeeper_that_is_away_for_a_moment_costs_that_moment(world):
    generation, (leader, _) = world.form("g")
    node, history = world.nodes[1], len(world.nodes[1].history)
    answers: list[Any] = []
    world.zookeeper.reset(node.session)
    node.submit(commit_request("g", {0: 2}, generation, leader), 8, answers.append)
    world.until(lambda: bool(answers))
    assert answers[0].topics[0].partitions[0].error_code == 0
    assert len(node.history) == history
    assert world.heartbeat("g", generation, leader) is ErrorCode.NONE


def test_a_record_too_large_is_refused_before_anything_is_written(world):
    """The last safeguard; a group is refused earlier, with a clear error."""
    noise = Random(1).randbytes(1_000_000)
    journal = world.nodes[1].runtime._served[0].journal
    batch = BatchBuilder()
    batch.append(START_MS, *encode_record(offset_record("g", 0, 1)))
    batch.append(START_MS, b"\0\2\0\1g", noise)
    with pytest.raises(zk.TooLargeError):
        journal.write(batch, START_MS)
    metadata = BatchBuilder()
    metadata.append(START_MS, *encode_record(offset_record("g", 0, 1, "x" * (4 * MAX_OFFSET_METADATA + 200))))
    with pytest.raises(zk.TooLargeError):
        journal.write(metadata, START_MS)
    assert (journal.failed, journal.durable, world.znodes()) == (None, 0, [])


def offset_record(group_id, partition, offset, metadata=""):
    return OffsetCommitRecord(
        m.OffsetCommitKey(group_id, "t", partition), m.OffsetCommitValue(offset, -1, metadata, 0, -1)
    )


def test_a_znode_that_another_program_changed_fails_the_slot_and_is_read_again(world):
    assert world.commit("g", 1) == 0
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    path = f"/muster/groups/{world.slot_of('g')}/g~0"
    data, _ = world.zookeeper.do(operator, zk.GetData(path))
    world.zookeeper.do(operator, zk.SetData(path, data))
    assert world.commit("g", 2) == ErrorCode.NOT_COORDINATOR
    world.until(lambda: world.slot_of("g") in world.nodes[1].runtime._served)
    assert world.commit("g", 3) == 0
    assert world.committed("g") == {0: 3}


@pytest.mark.parametrize("name", ["g", "g~0"])
def test_a_damaged_znode_is_skipped_and_written_over(world, name, caplog):
    slot = world.slot_of("g")
    other = next(each for each in map(str, range(99)) if world.slot_of(each) == slot)
    world.form("g", 1)
    assert world.commit(other, 1) == 0
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.kill(1)
    path = f"/muster/groups/{slot}/{name}"
    if name == "g~0":
        world.zookeeper.do(operator, zk.Create(path, b"rubbish"))
    else:
        world.zookeeper.do(operator, zk.SetData(path, b"rubbish"))
    world.start(2)
    world.settle()
    assert f"at {path}: of 7 bytes, 0 are records" in caplog.text
    assert world.committed(other) == {0: 1}
    if name == "g":
        generation, (leader,) = world.form("g", 1)
        assert world.commit("g", 9, generation=generation, member_id=leader) == 0
    else:
        record = next(record for record in stored(world, f"/muster/groups/{slot}/g"))
        member = record.value.members[0].member_id
        assert world.commit("g", 9, generation=record.value.generation, member_id=member) == 0
    assert world.committed("g") == {0: 9}
    assert stored(world, path)


def test_a_group_that_is_deleted_takes_its_damaged_znodes_along(world):
    slot = world.slot_of("g")
    assert world.commit("g", 1) == 0
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.kill(1)
    world.zookeeper.do(operator, zk.Create(f"/muster/groups/{slot}/g~1", b"rubbish"))
    world.start(2)
    world.settle()
    _, (leader,) = world.form("g", 1)
    world.ask(world.nodes[2], m.LeaveGroupRequest("g", "", [m.MemberIdentity(leader)]), 3)
    [answer] = world.ask(world.nodes[2], m.DeleteGroupsRequest(["g"]), 2).results
    assert answer.error_code == 0
    assert world.znodes(slot) == []


# --- reading ---------------------------------------------------------------------------------------------------------


def test_thousands_of_groups_are_read_a_few_at_a_time(world):
    names = [f"group-{number}" for number in range(3_000)]
    for start in range(0, len(names), 500):
        all_of(world, [commit_request(name, {0: 1, 1: 2}) for name in names[start : start + 500]])
    world.kill(1)
    world.start(2)
    node = world.nodes[2]
    most: Counter[str] = Counter()

    def look():
        for loading in node.runtime._loading.values():
            most["under way"] = max(most["under way"], len(loading.journal._fetching))
            most["arrived"] = max(most["arrived"], len(loading.journal._arrived))
        return world.is_settled()

    world.until(look)
    assert most["under way"] == READERS
    assert most["arrived"] <= READ_AHEAD + READERS
    assert sum(len(served.shard.groups) for served in node.runtime._served.values()) == 3_000
    assert world.committed("group-2999") == {0: 1, 1: 2}


def test_a_load_that_is_given_up_asks_for_nothing_more(world):
    all_of(world, [commit_request(f"group-{number}", {0: 1}) for number in range(300)])
    node = world.nodes[1]
    journal = node.store.load(0, node.keeper.held[0])
    world.until(lambda: bool(journal._arrived))
    journal.close()
    world.run(10)
    before = world.zookeeper.counts.copy()
    world.run(1_000)
    assert world.zookeeper.counts.since(before).reads == 0
    with pytest.raises(Exception, match="unloaded"):
        journal.read(1)
    with pytest.raises(Exception, match="unloaded"):
        journal.write(BatchBuilder(), START_MS)


@pytest.mark.parametrize("epoch", [0, 2, 9])
def test_an_epoch_that_is_not_the_slots_is_fenced(world, epoch):
    fenced = []
    store = GroupStore(
        runner(world.nodes[1].session), lambda: None, PartitionProducers, lambda *what: fenced.append(what)
    )
    journal = store.load(0, epoch)
    world.until(lambda: journal.failed is not None)
    with pytest.raises(FencedError, match=re.escape("slot 0 has epoch 1")):
        journal.read(1)
    assert fenced == [(0, epoch)]


def test_a_session_that_ends_while_a_slot_is_read_fences(world):
    all_of(world, [commit_request(f"group-{number}", {0: 1}) for number in range(100)])
    store = GroupStore(runner(world.nodes[1].session), lambda: None, PartitionProducers)
    journal = store.load(0, 1)
    world.until(lambda: bool(journal._arrived))
    world.zookeeper.expire(world.nodes[1].session)
    world.until(lambda: journal.failed is not None)
    assert isinstance(journal.failed, FencedError)


# --- the plan --------------------------------------------------------------------------------------------------------


SET = zk.SetData("/muster/groups/0/g", b"new", 4)


def test_a_multi_that_is_refused_after_a_loss_was_carried_out_if_the_version_says_so(world):
    """The sequence: sent, the connection is lost, the znode is read and not there yet, sent again - and then the first
    one arrives."""
    plan = slot_plans.write_all(0, 1, (SET,))
    tree = world.zookeeper.tree
    operator = world.zookeeper.connect("operator")
    world.zookeeper.settle()
    world.zookeeper.do(operator, zk.Create(SET.path))
    for version in range(4):
        world.zookeeper.do(operator, zk.SetData(SET.path, b"", version))
    first = next(plan)
    reconnect = plan.throw(zk.ConnectionLossError())
    what = plan.send(None)
    while not isinstance(what, zk.Multi):
        what = plan.send(world.zookeeper.do(operator, what))
    assert (what, type(reconnect).__name__) == (first, "Reconnected")
    world.zookeeper.do(operator, first)
    what = plan.throw(zk.BadVersionError(SET.path))
    for _ in range(2):
        what = plan.send(world.zookeeper.do(operator, what))
    answer = world.zookeeper.do(operator, what)
    with pytest.raises(StopIteration):  # it is done
        plan.send(answer)
    assert tree.get(SET.path).data == b"new"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (zk.BadVersionError(slot_epoch_path(0)), FencedError),
        (zk.BadVersionError(SET.path), zk.BadVersionError),
        (zk.SessionExpiredError(), zk.SessionExpiredError),
    ],
)
def test_what_is_refused_without_a_loss_is_refused(error, raised):
    plan = slot_plans.write_all(0, 1, (SET,))
    next(plan)
    with pytest.raises(raised):
        plan.throw(error)


@pytest.mark.parametrize(
    ("write", "version", "done"),
    [
        (SET, 5, True),
        (SET, 4, False),
        (SET, 6, False),
        (SET, None, False),
        (zk.Create(SET.path, b""), 0, True),
        (zk.Create(SET.path, b""), None, False),
        (zk.Delete(SET.path, 4), None, True),
        (zk.Delete(SET.path, 4), 4, False),
    ],
)
def test_what_tells_whether_a_write_was_carried_out(write, version, done):
    found = None if version is None else zk.Stat(version, 0, 0, 1, 1, 0)
    assert slot_plans.is_done(write, found) is done
