"""Elections, reassignments and folders of logs, requested from muster and from Apache Kafka 4.2 with the same bytes.

Like test_admin_matches_kafka.py. The requests are limited to those that one broker can answer: none of them moves
anything.
"""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.api import ApiKey
from muster.protocol.primitives import Request, Struct
from tests.support.faces import until_known
from tests.support.same_answers import Step, World, compare, versions

pytestmark = pytest.mark.slow

ELSEWHERE = "/no/folder"
"""A folder that neither broker has."""


def sentences(steps: list[Step], worlds: tuple[World, World], version: int) -> None:
    """Both give the reason in the same words, partition by partition."""
    for label, build in steps:
        ours, theirs = (reported(world.client.ask(build(world), version)) for world in worlds)
        assert ours == theirs, label


def reported(value: Any) -> list[str | None]:
    """All messages of a response, in its order."""
    if isinstance(value, list):
        return [each for one in value for each in reported(one)]
    fields = value.__slots__ if isinstance(value, Struct) else ()
    own = [value.error_message] if "error_message" in fields else []
    return own + [each for field in fields for each in reported(getattr(value, field))]


# ---------------------------------------------------------------------------------------------------------- elections

PREFERRED, UNCLEAN = range(2)


def elect(kind: int, *asked: tuple[str, list[int]]) -> Request[Any]:
    return a.ElectLeadersRequest(kind, [a.TopicPartitions(*each) for each in asked], 20_000)


ELECTIONS: list[Step] = [
    ("preferred", lambda w: elect(PREFERRED, (w.topic, [0, 1, 9, -1]))),
    ("unclean", lambda w: elect(UNCLEAN, (w.topic, [1, 0, 9]))),
    ("of no kind", lambda w: elect(7, (w.topic, [0, 9]), ("nowhere", [0]))),
    ("of no kind, of nothing", lambda w: elect(-1)),
    ("of no topics", lambda w: elect(PREFERRED, ("nowhere", [0]), ("a b", [0, 1]), ("", [0]))),
    ("of nothing", lambda w: elect(PREFERRED)),
    ("of no partitions", lambda w: elect(PREFERRED, (w.topic, []))),
    ("of some twice", lambda w: elect(PREFERRED, (w.topic, [0, 0]), (w.topic, [1, 0]))),
]


def test_elect_leaders(worlds: tuple[World, World]) -> None:
    compare(ELECTIONS, worlds, versions(ApiKey.ELECT_LEADERS))
    sentences(ELECTIONS, worlds, 2)


def test_elect_all_leaders(worlds: tuple[World, World]) -> None:
    """Each topic is named; its partitions are not, because none of them needs an election."""

    def of_this_test(found: Any) -> None:
        results = found["replica_election_results"]
        found["replica_election_results"] = [one for one in results if one["topic"].startswith(worlds[0].prefix)]

    everything: list[Step] = [
        ("preferred", lambda w: a.ElectLeadersRequest(PREFERRED, None, 20_000)),
        ("unclean", lambda w: a.ElectLeadersRequest(UNCLEAN, None, 20_000)),
        ("of no kind", lambda w: a.ElectLeadersRequest(7, None, 20_000)),
    ]
    compare(everything, worlds, versions(ApiKey.ELECT_LEADERS), of_this_test)
    (ours,) = [
        one
        for one in worlds[0].client.ask(a.ElectLeadersRequest(PREFERRED, None, 20_000), 2).replica_election_results
        if one.topic == worlds[0].topic
    ]
    assert ours.partition_result == []


# ------------------------------------------------------------------------------------------------------ reassignments


def move(*asked: tuple[str, int, list[int] | None], change: bool = True) -> Request[Any]:
    topics = [a.ReassignableTopic(name, [a.ReassignablePartition(index, to)]) for name, index, to in asked]
    return a.AlterPartitionReassignmentsRequest(20_000, change, topics)


MOVES: list[Step] = [
    ("where it is", lambda w: move((w.topic, 0, [1]))),
    ("where it is, and no other factor", lambda w: move((w.topic, 0, [1]), change=False)),
    ("to no broker", lambda w: move((w.topic, 0, [9]))),
    ("to a second one that is none", lambda w: move((w.topic, 0, [1, 9]))),
    ("to a second one that is none, and no other factor", lambda w: move((w.topic, 0, [1, 9]), change=False)),
    ("to one twice", lambda w: move((w.topic, 0, [1, 1]))),
    ("to none", lambda w: move((w.topic, 0, []))),
    ("to none, and no other factor", lambda w: move((w.topic, 0, []), change=False)),
    ("to a negative one", lambda w: move((w.topic, 0, [-1]))),
    ("cancelled", lambda w: move((w.topic, 0, None))),
    ("of no partition", lambda w: move((w.topic, 9, [1]), (w.topic, -1, None))),
    ("of no topic", lambda w: move(("nowhere", 0, [1]), ("a b", 0, None), ("nowhere", 0, [9]))),
    ("nothing", lambda w: move()),
    ("no partitions", lambda w: a.AlterPartitionReassignmentsRequest(
        20_000, True, [a.ReassignableTopic(w.topic), a.ReassignableTopic("nowhere")])),
    ("one twice", lambda w: move((w.topic, 0, [1]), (w.topic, 0, [9]), (w.topic, 1, [1]))),
]  # fmt: skip


def test_alter_partition_reassignments(worlds: tuple[World, World]) -> None:
    compare(MOVES, worlds, versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
    sentences(MOVES, worlds, 1)


def test_list_partition_reassignments(worlds: tuple[World, World]) -> None:
    def of(*asked: tuple[str, list[int]]) -> Request[Any]:
        return a.ListPartitionReassignmentsRequest(
            20_000, [a.ListPartitionReassignmentsTopics(*each) for each in asked]
        )

    steps: list[Step] = [
        ("all", lambda w: a.ListPartitionReassignmentsRequest(20_000, None)),
        ("of a topic", lambda w: of((w.topic, [0, 1, 9]))),
        ("of no topic", lambda w: of(("nowhere", [0]), ("a b", [0]))),
        ("of nothing", lambda w: of()),
    ]
    compare(steps, worlds, versions(ApiKey.LIST_PARTITION_REASSIGNMENTS))
    sentences(steps, worlds, 0)


# --------------------------------------------------------------------------------------------------- folders of logs


def test_alter_replica_log_dirs(worlds: tuple[World, World]) -> None:
    long = "l" * 213  # with one more letter, Kafka also says that the folder's name would be too long
    for world in worlds:
        created = world.client.ask(m.CreateTopicsRequest([m.CreatableTopic(long, 1, 1)], 20_000), 7).topics
        assert created[0].error_code == 0
        host, port = world.client.socket.getpeername()
        until_known(f"{host}:{port}", long, 1)
    folders = {id(world): world.client.ask(a.DescribeLogDirsRequest([]), 4).results[0].log_dir for world in worlds}

    def place(world: World, folder: str) -> str:
        return folder.replace("HERE", folders[id(world)])

    def put(*asked: tuple[str, str, list[int]]) -> Step:
        def build(world: World) -> Request[Any]:
            dirs = [
                a.AlterReplicaLogDir(place(world, folder), [a.AlterReplicaLogDirTopic(topic or world.topic, indices)])
                for folder, topic, indices in asked
            ]
            return a.AlterReplicaLogDirsRequest(dirs)

        return f"{asked}", build

    def in_order(found: Any) -> None:
        found["results"].sort(key=lambda one: one["topic_name"])

    steps = [
        put(("HERE", "", [0, 1, 9, -1])),
        put(("HERE/", "", [0])),
        put((ELSEWHERE, "", [0, 9])),
        put(("folder", "", [0])),
        put(("", "", [0])),
        put(("HERE", "nowhere", [0]), (ELSEWHERE, "", [0])),
        put((ELSEWHERE, "nowhere", [0])),
        put(("HERE", "a b", [0])),
        put(("HERE", "", [0, 0])),
        put(("HERE", "", [0]), (ELSEWHERE, "", [0])),
        put((ELSEWHERE, "", [0]), ("HERE", "", [0])),
        put(("HERE", "", [0]), ("HERE", "", [1])),
        put(("HERE", long, [0]), ("HERE", "l" * 214, [0]), ("HERE", "l" * 300, [0])),
        put(("HERE", long, [10]), (ELSEWHERE, "l" * 214, [0])),
        put(),
        ("nothing", lambda w: a.AlterReplicaLogDirsRequest([a.AlterReplicaLogDir(place(w, "HERE"))])),
    ]
    compare(steps, worlds, versions(ApiKey.ALTER_REPLICA_LOG_DIRS), in_order)
    for world in worlds:
        world.client.ask(m.DeleteTopicsRequest([m.DeleteTopicState(long)], [], 20_000), 6)
