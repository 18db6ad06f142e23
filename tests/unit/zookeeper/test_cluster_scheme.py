"""The cluster's rules: tables of leaders, one controller, and turns that are interrupted at every step."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest

from muster.broker.identity import uuid_bytes
from muster.errors import ConfigError
from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.image import ClusterImage, TopicImage
from muster.zookeeper.base.znodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    TopicRegistration,
    partition_state_path,
    read_topic,
    topic_config_path,
    topic_path,
)
from muster.zookeeper.cluster import scheme as cluster_scheme
from muster.zookeeper.cluster.deletions import deletions_path
from muster.zookeeper.cluster.scheme import (
    CLUSTER_ID,
    PRODUCER_IDS,
    BrokerIdTakenError,
    ClusterMember,
    cluster_id,
    create_topic,
    elect,
    load_of,
    next_state,
    request_deletion,
    reserve_producer_ids,
    settle,
    spread,
)
from tests.support.cluster_rules import World, made_world, registration, state
from tests.support.plans import one_by_one, outcome, through


@pytest.fixture
def world():
    return made_world()


@pytest.mark.parametrize(
    ("replicas", "known", "alive", "due"),
    [
        # a new partition waits for its first replica that is alive
        ([1], None, [1], state(1, controller=7)),
        ([1], None, [2], None),
        ([1, 2, 3], None, [2, 3], state(2, 0, [2], 7)),
        # a leader that is alive stays, even if a better one is back
        ([1, 2], state(2, 4, [2]), [1, 2], None),
        # the only replica dies, and comes back
        ([1], state(1, 4), [], state(-1, 5, [1], 7)),
        ([1], state(-1, 5, [1]), [], None),
        ([1], state(-1, 5, [1]), [1], state(1, 6, [1], 7)),
        # only replicas that were in sync may lead, in the order of the replicas
        ([1, 2, 3], state(1, 4, [3, 2, 1]), [2, 3], state(2, 5, [3, 2], 7)),
        ([1, 2], state(1, 4, [1]), [2], state(-1, 5, [1], 7)),
        ([1, 2], state(-1, 5, [1]), [2], None),
        # a leader that is no longer a replica
        ([2], state(1, 4, [1, 2]), [1, 2], state(2, 5, [2], 7)),
    ],
)
def test_which_state_a_partition_should_have(replicas, known, alive, due):
    assert next_state(replicas, known, alive, 7) == due


def test_partitions_go_to_the_brokers_with_fewest():
    assert spread(5, [3, 1, 2], {1: 4, 2: 1, 3: 1}) == {0: [2], 1: [3], 2: [1], 3: [2], 4: [3]}
    topics = [TopicImage(TopicRegistration({0: [1], 1: [2, 1]}))]
    assert load_of(topics) == {1: 2, 2: 1}


def test_one_broker_is_elected_and_each_has_an_epoch_of_its_own(world):
    first = world.run(elect(1, 5), "one")
    assert (first.epoch, world.data(CONTROLLER_EPOCH)) == (1, b"1")
    assert world.data(CONTROLLER) == b'{"version":1,"brokerid":1,"timestamp":"5"}'
    assert world.run(elect(2, 6), "two") is None
    world.zookeeper.expire(world.session("one"))
    second = world.run(elect(2, 7), "two")
    assert (second.epoch, second.version) == (2, first.version + 1)


def test_no_two_controllers_have_one_epoch(world):
    """The sequence: a broker reads the epoch; another becomes the controller and disappears again; the first one
    claims."""
    world.do(zk.Create(CONTROLLER_EPOCH, b"0"))
    plan = elect(1, 5)
    answer = world.do(next(plan))
    assert world.run(elect(2, 6), "two").epoch == 1
    world.do(zk.Delete(CONTROLLER))
    claim = plan.send(answer)
    with pytest.raises(zk.BadVersionError) as refused:
        world.do(claim)
    answer = world.do(plan.throw(refused.value))
    answer = world.do(plan.send(answer))
    with pytest.raises(StopIteration) as done:
        plan.send(answer)
    assert (done.value.value.epoch, world.data(CONTROLLER_EPOCH)) == (2, b"2")


def test_a_topic_is_deleted_once_however_often_it_is_asked_for(world):
    for _ in range(2):
        world.run(request_deletion("t"))
    assert world.image().deletions == {"t"}


def test_ids_of_topics_are_ids_as_kafka_writes_them():
    """Kafka's tools would mistake one that begins with '-' for an option."""
    ids = [cluster_scheme._id_of_creation("t", czxid) for czxid in range(500)]
    assert len(set(ids)) == 500
    assert not [each for each in ids if each.startswith("-")]
    assert {raw[6] >> 4 for raw in map(uuid_bytes, ids)} == {4}


def test_an_older_controller_writes_nothing_more(world):
    """It was frozen, its session has expired, and it continues in a new session with its old state."""
    term = world.run(elect(1, 5), "one")
    world.do(zk.Create("/brokers/ids/1", registration(1).encode(), ephemeral=True))
    world.run(create_topic("t", TopicRegistration({0: [1]}), {}))
    image = world.image()
    world.do(zk.Delete(CONTROLLER))
    assert world.run(elect(2, 7), "two").epoch == 2
    with pytest.raises(zk.BadVersionError) as refused:
        world.run(settle(term, image))
    assert refused.value.path == CONTROLLER_EPOCH
    assert world.data(partition_state_path("t", 0)) is None
    world.run(request_deletion("t"))
    with pytest.raises(zk.BadVersionError):
        world.run(settle(term, world.image()))
    assert world.data(topic_path("t")) is not None


@pytest.mark.parametrize("partitions", [1, cluster_scheme.WRITES_OF_A_MULTI + 50])
@pytest.mark.parametrize("what", ["new", "without an id", "without its leader", "to be deleted"])
def test_each_write_of_a_controller_is_refused_when_there_is_a_newer_one(world, what, partitions):
    world.do(zk.Create("/brokers/ids/1", registration(1).encode(), ephemeral=True))
    topic_id = None if what == "without an id" else "A" * 22
    world.run(create_topic("t", TopicRegistration({number: [1] for number in range(partitions)}, topic_id), {}))
    term = world.run(elect(1, 5), "one")
    if what in ("without its leader", "to be deleted"):
        world.run(settle(term, world.image()))
        assert world.state("t", partitions - 1).leader == 1
    if what == "to be deleted":
        world.run(request_deletion("t"))
    image = world.image()
    if what == "without its leader":
        del image.brokers[1]
    world.do(zk.Delete(CONTROLLER))
    assert world.run(elect(2, 7), "two").epoch == 2
    tree = world.zookeeper.tree
    before = {path: (tree.get(path).mzxid, tree.get(path).version) for path in tree.paths()}
    with pytest.raises(zk.BadVersionError) as refused:
        world.run(settle(term, image))
    assert refused.value.path == CONTROLLER_EPOCH
    assert {path: (tree.get(path).mzxid, tree.get(path).version) for path in tree.paths()} == before


def test_a_state_that_changed_meanwhile_is_not_written_over(world):
    term = world.run(elect(1, 5), "one")
    world.do(zk.Create("/brokers/ids/1", registration(1).encode(), ephemeral=True))
    world.run(create_topic("t", TopicRegistration({0: [1]}), {}))
    world.run(settle(term, world.image()))
    image = world.image()
    del image.brokers[1]
    world.do(zk.SetData(partition_state_path("t", 0), state(1, 9).encode()))
    with pytest.raises(zk.BadVersionError) as refused:
        world.run(settle(term, image))
    assert refused.value.path == partition_state_path("t", 0)
    assert world.state("t", 0).leader_epoch == 9


def test_a_topic_is_created_once_and_with_its_own_settings(world):
    world.do(zk.Create(topic_config_path("t"), b'{"version":1,"config":{"of":"a former one"}}'))
    world.run(create_topic("t", TopicRegistration({0: [1]}), {"retention.ms": "5"}))
    assert world.data(topic_config_path("t")) == b'{"version":1,"config":{"retention.ms":"5"}}'
    with pytest.raises(zk.NodeExistsError) as refused:
        world.run(create_topic("t", TopicRegistration({0: [2]}), {}))
    assert refused.value.path == topic_path("t")


def test_the_first_broker_names_the_cluster(world):
    assert world.run(cluster_id("first")) == "first"
    assert world.run(cluster_id("second"), "two") == "first"
    assert world.data(CLUSTER_ID) == b'{"version":"1","id":"first"}'


@pytest.mark.parametrize("data", [None, b"", b"no json", b"[]", b'{"id":5}', b'{"id":""}'])
def test_a_cluster_without_a_readable_id_is_refused(world, data):
    world.run(zk.ensure_path("/cluster"))
    world.do(zk.Create(CLUSTER_ID, data))
    with pytest.raises(ConfigError, match="is not a cluster id"):
        world.run(cluster_id("x"))


def test_an_id_that_another_session_has_is_taken(world):
    world.do(zk.Create("/brokers/ids/1", registration(1).encode(), ephemeral=True), "former")
    member = ClusterMember(1)
    with pytest.raises(BrokerIdTakenError, match="registered with the id 1"):
        world.run(member.turn(registration(1), 0), "one")
    world.zookeeper.expire(world.session("former"))
    world.run(member.turn(registration(1), 0), "one")
    assert member.is_registered


def test_a_controller_whose_znode_is_deleted_by_hand_is_elected_again(world):
    member = ClusterMember(1)
    world.session("one").listen(member.on_event)
    world.run(member.turn(registration(1), 0))
    world.do(zk.Delete(CONTROLLER), "user")
    world.clock.advance(100)
    assert not member.image.is_current
    world.run(member.turn(registration(1), 0))
    assert member.term is not None
    assert (member.term.epoch, world.data(CONTROLLER_EPOCH)) == (2, b"2")


def test_a_controller_that_another_has_followed_notices(world):
    member = ClusterMember(1)
    world.session("one").listen(member.on_event)
    world.run(member.turn(registration(1), 0))
    world.do(zk.Delete(CONTROLLER), "user")
    assert world.run(elect(2, 7), "two") is not None
    world.clock.advance(100)
    world.run(member.turn(registration(1), 0))
    assert member.term is None


# --- interrupted ------------------------------------------------------------------------------------------------------


def broken(plan, at, *, carried_out):
    """The plan, whose ask number `at` loses its connection, before or after it was carried out; returns the number of
    asks."""
    number = 0

    def one(what):
        nonlocal number
        breaks, number = number == at, number + 1
        answer = (yield from outcome(what)) if carried_out or not breaks else None
        return zk.ConnectionLossError() if breaks else answer

    yield from through(one_by_one(plan), one)
    return number


def settled(world, members):
    """Turns until no coordinator has anything to do."""
    for _ in range(10):
        world.clock.advance(200)
        due = [member for member in members if not member.image.is_current or not member.is_registered]
        if not due:
            return
        for member in due:
            world.run(member.turn(registration(member.broker_id), 0), str(member.broker_id))


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_turn_that_is_broken_off_anywhere_is_made_good_by_the_next(monkeypatch, carried_out):
    monkeypatch.setattr(cluster_scheme, "WRITES_OF_A_MULTI", 3)
    at, ended = 0, False
    while not ended:
        world = World()
        world.run(zk.ensure_path("/brokers/topics"), "user")
        world.run(zk.ensure_path("/config/topics"), "user")
        world.run(zk.ensure_path("/admin/delete_topics"), "user")
        world.run(create_topic("old", TopicRegistration({0: [1], 1: [2]}, "AAAAAAAAQACAAAAAAAAAAA"), {}), "user")
        world.run(create_topic("new", TopicRegistration({0: [1], 1: [1], 2: [2], 3: [1]}), {"a": "b"}), "user")
        world.run(request_deletion("old"), "user")
        members = [ClusterMember(1), ClusterMember(2)]
        for member in members:
            world.session(str(member.broker_id)).listen(member.on_event)
        with suppress(zk.ConnectionLossError):
            ended = world.run(broken(members[0].turn(registration(1), 0), at, carried_out=carried_out), "1") <= at
        world.run(members[0].turn(registration(1), 0), "1")
        settled(world, members)
        assert world.data(topic_path("old")) is None, at
        assert world.do(zk.Exists("/admin/delete_topics/old"), "user") is None
        for broker in (1, 2):
            assert world.do(zk.GetChildren(deletions_path(broker)), "user") == ["AAAAAAAAQACAAAAAAAAAAA"], at
        assert [world.state("new", number).leader for number in range(4)] == [1, 1, 2, 1], at
        assert [world.state("new", number).leader_epoch for number in range(4)] == [0, 0, 0, 0]
        assert members[0].term is not None
        assert b"%d" % members[0].term.epoch == world.data(CONTROLLER_EPOCH)
        for member in members:
            assert list(member.image.topics) == ["new"], at
            assert sorted(member.image.brokers) == [1, 2]
            assert member.image.topics["new"].settings == {"a": "b"}
            assert {n: s.state for n, s in member.image.topics["new"].states.items()} == {
                number: world.state("new", number) for number in range(4)
            }
        at += 1
    assert at > 40


def refused(plan):
    """The plan, with each multi after the election refused as if another had written; returns how many there were."""
    multis = 0

    def one(what):
        nonlocal multis
        multis += isinstance(what, zk.Multi)
        return (
            zk.BadVersionError("/elsewhere")
            if isinstance(what, zk.Multi) and multis > 1
            else (yield from outcome(what))
        )

    return through(plan, one)


def test_a_turn_that_is_always_refused_is_given_up(world):
    world.run(create_topic("t", TopicRegistration({0: [1]}), {}))
    with pytest.raises(zk.BadVersionError, match="elsewhere"):
        world.run(refused(ClusterMember(1).turn(registration(1), 0)))


def test_a_deletion_with_something_below_it_is_finished(world):
    world.run(zk.ensure_path("/admin/delete_topics/t/remark"), "user")
    world.run(ClusterMember(1).turn(registration(1), 0))
    assert world.do(zk.GetChildren("/admin/delete_topics")) == []


def test_what_cannot_be_read_is_noted_and_skipped(world):
    world.do(zk.Create("/brokers/ids/1", b"rubbish", ephemeral=True))
    world.do(zk.Create("/brokers/ids/x", registration(1).encode(), ephemeral=True))
    world.do(zk.Create("/brokers/topics/bad", b"{}"))
    world.run(create_topic("good", TopicRegistration({0: [1]}), {}))
    world.run(zk.ensure_path("/brokers/topics/good/partitions/0"))
    world.do(zk.Create(partition_state_path("good", 0), b"[]"))
    world.do(zk.Create(CONTROLLER, b"?"))
    image = world.image()
    assert (image.brokers, list(image.topics), image.controller_id) == ({}, ["good"], -1)
    assert sorted(image.unreadable) == [
        "/brokers/ids/1",
        "/brokers/ids/x",
        "/brokers/topics/bad",
        "/brokers/topics/good/partitions/0/state",
        CONTROLLER,
    ]
    world.do(zk.SetData("/brokers/topics/bad", TopicRegistration({0: [1]}).encode()))
    assert "bad" in world.image().topics
    assert world.do(zk.GetData(CONTROLLER))[0] == b"?"


def test_producer_ids_are_reserved_in_blocks_that_never_overlap(world):
    blocks = [world.run(reserve_producer_ids(broker_id, 0)) for broker_id in (1, 2, 1)]
    assert blocks == [range(1_000), range(1_000, 2_000), range(2_000, 3_000)]
    data, _ = world.do(zk.GetData(PRODUCER_IDS))
    assert data == b'{"version":1,"broker":1,"block_start":"2000","block_end":"2999"}'


def test_two_brokers_that_reserve_at_once_get_blocks_of_their_own(world):
    world.run(reserve_producer_ids(1, 0))
    slow = reserve_producer_ids(1, 0)
    found = world.do(next(slow))
    assert world.run(reserve_producer_ids(2, 0)) == range(1_000, 2_000)
    asked = slow.send(found)
    with pytest.raises(zk.BadVersionError) as refused:
        world.do(asked)
    asked = slow.throw(refused.value)
    asked = slow.send(world.do(asked))
    with pytest.raises(StopIteration) as ended:
        slow.send(world.do(asked))
    assert ended.value.value == range(2_000, 3_000)


@pytest.mark.parametrize("has_lost", ["what came later", "all of it"])
def test_an_older_zookeeper_names_no_producer_id_again(world, has_lost):
    given = world.run(reserve_producer_ids(1, 1_700_000_000_000))
    before = world.data(PRODUCER_IDS)
    later = [world.run(reserve_producer_ids(2, 1_700_000_000_000 + at)) for at in (0, 1, 5_000)]
    world.do(zk.Delete(PRODUCER_IDS) if has_lost == "all of it" else zk.SetData(PRODUCER_IDS, before))
    again = world.run(reserve_producer_ids(1, 1_700_000_006_000))
    assert len({*given, *again, *(found for block in later for found in block)}) == 5 * 1_000


@pytest.mark.parametrize("data", [b"7", b"{}", b"x", b'{"block_end":"many"}'])
def test_producer_ids_are_not_guessed(world, data):
    world.do(zk.Create(PRODUCER_IDS, data))
    with pytest.raises(ConfigError):
        world.run(reserve_producer_ids(1, 0))


def test_a_topic_of_kafkas_older_tools_is_given_an_id_that_no_former_one_had(world):
    member = ClusterMember(1)
    found = []
    for _ in range(2):
        member.image.forget()
        world.run(create_topic("t", TopicRegistration({0: [1]}, version=1), {}), "user")
        world.run(member.turn(registration(1), 0))
        data, _ = world.do(zk.GetData(topic_path("t")))
        named = read_topic("t", data)
        assert isinstance(named, TopicRegistration)
        assert named.topic_id is not None
        assert member.term is not None
        found.append(named.topic_id)
        assert len(base64.urlsafe_b64decode(named.topic_id + "==")) == 16
        assert named == TopicRegistration({0: [1]}, named.topic_id, 3)
        topic = member.image.topics["t"]
        assert (topic.registration, topic.states[0].state) == (named, state(1, 0, [1], member.term.epoch))
        world.run(request_deletion("t"), "user")
        member.image.forget()
        world.run(member.turn(registration(1), 0))
        assert "t" not in member.image.topics
    assert found[0] != found[1]


def test_events_of_others_that_share_the_session_are_none_of_its_own():
    image = ClusterImage()
    image._dirty.clear()
    for path in ("/brokers/topics/t/partitions", "/brokers/seqid", "/muster/slots/0/owner", "/config/changes", "/"):
        assert not image.changed(zk.Watched(zk.ZnodeChange.CHILDREN, path))
    assert image.changed(zk.Watched(zk.ZnodeChange.DATA, "/brokers/topics/t/partitions/0/state"))


def test_a_broker_does_not_take_control_of_a_zookeeper_that_was_emptied(world):
    member = ClusterMember(1)
    member.cluster_id = world.run(cluster_id("abc"))
    world.run(member.turn(registration(1), 5))
    for path in (CONTROLLER, CONTROLLER_EPOCH, "/brokers/ids/1", CLUSTER_ID):
        world.do(zk.Delete(path), "other")
    member.image.forget()
    with pytest.raises(ConfigError, match="ZooKeeper has lost cluster abc"):
        world.run(member.turn(registration(1), 6))
    assert world.do(zk.Exists(CONTROLLER)) is None
    assert world.do(zk.Exists(CONTROLLER_EPOCH)) is None
