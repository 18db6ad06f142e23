"""The chaos on muster's own brokers: its schedules contain everything, and the judge of topics can fail."""

from __future__ import annotations

import pytest

from tests.support.cluster_chaos import AWAY
from tests.support.own_cluster_chaos import LONG_S, SERVERS, TOGETHER, Known, Reported, World, draw, judge_topics, world

KNOWN = {
    "kept": Known(True, {2}),
    "grown": Known(True, {2, 3}),
    "gone": Known(False, {1}),
    "made, perhaps": Known(None, {1}),
}


@pytest.mark.parametrize("perhaps", [{}, {"made, perhaps": 1}])
@pytest.mark.parametrize("grown", [2, 3])
def test_nothing_is_said_where_all_brokers_tell_what_was_acknowledged(grown, perhaps):
    led = {"kept": 2, "grown": grown, **perhaps}
    assert list(judge_topics(KNOWN, Reported({1: led, 2: led}, frozenset({"kept", "grown"})))) == []


@pytest.mark.parametrize(
    ("wrong", "folders", "reported"),
    [
        ({"kept": 1, "grown": 3}, (), "broker 2 has 1 partitions of kept, of [2]"),
        ({"kept": 2, "grown": 4}, (), "broker 2 has 4 partitions of grown, of [2, 3]"),
        ({"grown": 3}, (), "broker 2 has None partitions of kept, of [2]"),
        ({"kept": 2, "grown": 3, "gone": 0}, (), "broker 2 has gone, which was deleted"),
        ({"kept": 2, "grown": 3}, ("gone",), "there are records of gone, which was deleted"),
    ],
)
def test_what_is_wrong_is_reported(wrong, folders, reported):
    right = {"kept": 2, "grown": 3}
    assert list(judge_topics(KNOWN, Reported({1: right, 2: wrong}, frozenset(folders)))) == [reported]


def test_every_schedule_has_every_server_away_for_a_minute_in_all_and_the_seeds_have_all_there_is():
    schedules = [draw(seed) for seed in range(100)]
    for schedule in schedules:
        assert {step.servers for step in schedule.steps} >= {(server,) for server in SERVERS}
        assert sum(step.for_s + step.then_s for step in schedule.steps) >= LONG_S
    steps = {(step.do, step.servers) for schedule in schedules for step in schedule.steps}
    assert steps >= {(do, servers) for do in AWAY for servers in TOGETHER}
    assert draw(5) == draw(5)


def test_answers_of_brokers_that_go_are_lost_in_some_steps_and_zookeepers_connections_are_never_cut():
    steps = [step for seed in range(100) for step in draw(seed).steps]
    of_brokers = {(step.do, step.mute) for step in steps if "zookeeper" not in step.servers}
    assert of_brokers == {(do, mute) for do in AWAY for mute in (True, False)} | {("cut", True)}
    assert {(step.do, step.mute) for step in steps} - of_brokers == set()
    assert all(step.do != "cut" for step in steps if "zookeeper" in step.servers)


def test_half_of_the_seeds_have_the_usual_world_and_the_others_have_every_other():
    worlds = [world(seed) for seed in range(200)]
    assert 80 < worlds.count(World()) < 140
    assert len(set(worlds)) == 8
    assert world(5) == world(5)
