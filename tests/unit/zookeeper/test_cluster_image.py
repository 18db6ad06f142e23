"""A session's image of the cluster: what it learns, and what it watches."""

from __future__ import annotations

import pytest

from muster.zookeeper.base import operations as zk
from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.znodes import TopicRegistration, partition_state_path, topic_path
from muster.zookeeper.cluster import scheme as cluster_scheme
from muster.zookeeper.cluster.scheme import ClusterMember, create_topic, request_deletion
from tests.support.cluster_rules import World, made_world, registration, state
from tests.support.plans import one_by_one


@pytest.fixture
def world():
    return made_world()


def follow(world, image, name="one"):
    """An image that receives the events; it is read after each one."""
    session = world.session(name)

    def read(event):
        if image.changed(event):
            dirty.append(event)

    dirty = [None]
    session.listen(read)

    def catch_up():
        world.zookeeper.settle()
        while dirty:
            dirty.clear()
            world.run(image.refresh(), name)
            world.zookeeper.settle()

    return catch_up


def test_an_image_learns_of_partitions_that_are_added(world):
    """Their states are written later, by another session: the image belongs to a broker which is not the controller."""
    world.run(create_topic("t", TopicRegistration({0: [1]}, "A" * 22), {}))
    image = ClusterImage()
    catch_up = follow(world, image)
    catch_up()
    world.do(zk.SetData(topic_path("t"), TopicRegistration({0: [1], 1: [2]}, "A" * 22).encode()), "two")
    world.clock.advance(100)
    catch_up()
    assert list(image.topics["t"].registration.partitions) == [0, 1]
    world.run(zk.ensure_path(partition_state_path("t", 1)), "two")
    world.do(zk.SetData(partition_state_path("t", 1), state(2, 3).encode()), "two")
    world.clock.advance(100)
    catch_up()
    assert image.topics["t"].states[1].state == state(2, 3)


def test_an_image_of_nothing_learns_of_what_comes():
    world, image = World(), ClusterImage()
    catch_up = follow(world, image)
    catch_up()
    assert (image.brokers, image.topics, image.deletions) == ({}, {}, set())
    for path in cluster_scheme.PERSISTENT:
        world.run(zk.ensure_path(path), "two")
    world.run(create_topic("t", TopicRegistration({0: [1]}, "A" * 22), {}), "two")
    world.run(request_deletion("u"), "two")
    world.do(zk.Create("/brokers/ids/1", registration(1).encode(), ephemeral=True), "two")
    world.clock.advance(100)
    catch_up()
    assert (list(image.brokers), list(image.topics), image.deletions) == ([1], ["t"], {"u"})


@pytest.mark.parametrize("partitions", [1, 3, 150])
def test_nothing_is_watched_of_a_topic_that_is_gone_until_it_comes_again(world, partitions):
    member = ClusterMember(1)
    world.run(member.turn(registration(1), 5), "one")
    image = ClusterImage()
    catch_up = follow(world, image, "two")
    catch_up()
    before = world.zookeeper.servers[0].watched
    replicas = {number: [1] for number in range(partitions)}
    for _ in range(2):
        world.run(create_topic("t", TopicRegistration(replicas, version=1), {"retention.ms": "5"}))
        catch_up()
        member.image.forget()
        world.run(member.turn(registration(1), 5), "one")
        catch_up()
        topic = image.topics["t"]
        assert (sorted(topic.states), topic.settings) == (list(range(partitions)), {"retention.ms": "5"})
        world.run(request_deletion("t"))
        catch_up()
        member.image.forget()
        world.run(member.turn(registration(1), 5), "one")
        catch_up()
        assert image.topics == {}
        assert {path for path in world.zookeeper.servers[0].watched - before if "/t" in path} == set()


@pytest.mark.parametrize("change", [zk.ZnodeChange.LOST, zk.ZnodeChange.DATA, zk.ZnodeChange.CREATED])
@pytest.mark.parametrize("path", ["/muster/slots/5/owner", "/muster/coordinators", "/consumers/g/ids"])
def test_an_image_leaves_alone_what_others_of_its_session_watch(world, path, change):
    world.run(create_topic("5", TopicRegistration({0: [1]}, "id"), {}))
    image = world.image()
    assert image.changed(zk.Watched(change, path)) is False
    assert image.is_current


def test_a_change_that_is_reported_before_the_answer_to_a_first_reading_is_not_lost(world):
    """The session reports events and answers in order, but the caller gets an answer a moment later."""
    image = ClusterImage()
    reported: list[object] = []
    world.session("one").listen(image.changed)
    world.session("one").listen(reported.append)
    world.run(create_topic("t", TopicRegistration({0: [1]}, version=1), {}), "other")
    named = TopicRegistration({0: [1]}, "0000000000000000000001")

    def until_the_end():
        plan, outcome = one_by_one(image.refresh()), None
        while True:
            try:
                what = zk.next_ask(plan, outcome)
            except StopIteration:
                return
            try:
                outcome = world.do(what)
            except zk.ZooKeeperError as error:
                outcome = error
            if what == zk.GetData(topic_path("t"), watch=True) and named.encode() != world.data(topic_path("t")):
                world.do(zk.SetData(topic_path("t"), named.encode()), "other")
                assert world.clock.run_until(
                    lambda: zk.Watched(zk.ZnodeChange.DATA, topic_path("t")) in reported, 1_000
                )

    until_the_end()
    assert image.is_current
    assert image.topics["t"].registration == named
