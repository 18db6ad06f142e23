"""An admin's requests to muster and to Apache Kafka 4.2 with the same bytes: answers have the same shape and codes.

As test_broker_matches_kafka.py; what is changed for good is changed in the same way on both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.api import ApiKey
from muster.protocol.primitives import Request
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import read_header
from tests.support.brokers import BrokerProcess
from tests.support.faces import rest, until
from tests.support.peers import NEVER_KILLED, KafkaBroker
from tests.support.same_answers import (
    Step,
    World,
    compare,
    connect,
    list_offsets,
    plain,
    produce,
    until_ready,
    versions,
)
from tests.support.written import build_batch

pytestmark = pytest.mark.slow


def messages_agree(steps: list[Step], worlds: tuple[World, World], version: int, results: str) -> None:
    """Both brokers give the same reason in the same words."""
    for label, build in steps:
        ours, theirs = (
            sorted(str(one.error_message) for one in getattr(world.client.ask(build(world), version), results))
            for world in worlds
        )
        assert ours == theirs, label


# --------------------------------------------------------------------------------------------------------- partitions


def grow(*topics: tuple[str, int, list[list[int]] | None], validate: bool = True) -> Request[Any]:
    asked = [
        a.CreatePartitionsTopic(
            name, count, None if brokers is None else [a.CreatePartitionsAssignment(each) for each in brokers]
        )
        for name, count, brokers in topics
    ]
    return a.CreatePartitionsRequest(asked, 300_000, validate)


GROWTHS: list[Step] = [
    ("two more", lambda w: grow((w.topic, 4, None))),
    ("as many as there are", lambda w: grow((w.topic, 2, None))),
    ("fewer", lambda w: grow((w.topic, 1, None))),
    ("less than none", lambda w: grow((w.topic, -1, None))),
    ("of no topic", lambda w: grow((f"{w.prefix}-none", 4, None))),
    ("of a bad name", lambda w: grow(("a b", 4, None))),
    ("twice the same", lambda w: grow((w.topic, 4, None), (w.topic, 5, None))),
    ("one and none", lambda w: grow((w.topic, 4, None), (f"{w.prefix}-none", 4, None))),
    ("nothing", lambda w: grow()),
    ("assigned", lambda w: grow((w.topic, 4, [[1], [1]]))),
    ("too few assigned", lambda w: grow((w.topic, 4, [[1]]))),
    ("none assigned", lambda w: grow((w.topic, 4, []))),
    ("assigned to no broker", lambda w: grow((w.topic, 3, [[]]))),
    ("assigned elsewhere", lambda w: grow((w.topic, 3, [[9]]))),
    ("assigned twice", lambda w: grow((w.topic, 3, [[1, 1]]))),
    ("the most at once", lambda w: grow((w.topic, 10_002, None))),
]


def test_create_partitions(worlds: tuple[World, World]) -> None:
    compare(GROWTHS, worlds, versions(ApiKey.CREATE_PARTITIONS))
    messages_agree(GROWTHS, worlds, 3, "results")


def test_partitions_that_were_added_are_there(worlds: tuple[World, World]) -> None:
    reported = []
    for world in worlds:
        answers = [world.client.ask(grow((world.topic, 5, None), validate=False), version) for version in (3, 0)]
        while world.client.ask(list_offsets(world, -1, 4), 4).topics[0].partitions[0].error_code:
            pass  # the leader of the new partition is being announced
        appended = world.client.ask(produce(world, bytes(build_batch([(1000, b"k", b"v", [])])), 4), 9)
        metadata = world.client.ask(m.MetadataRequest([m.MetadataRequestTopic(name=world.topic)]), 12)
        reported.append([plain(answer, world) for answer in (*answers, appended, metadata.topics)])
    assert reported[0] == reported[1]
    assert reported[0][0]["results"][0]["error_code"] == 0


# ----------------------------------------------------------------------------------------------------------- settings

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4


def alter(name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, validate: bool = True) -> Request[Any]:
    configs = [a.IncrementalAlterConfigsRequestAlterableConfig(*each) for each in changes]
    resource = a.IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, configs)
    return a.IncrementalAlterConfigsRequest([resource], validate)


def put(name: str, *settings: tuple[str, str | None], kind: int = TOPIC, validate: bool = True) -> Request[Any]:
    configs = [a.AlterConfigsRequestAlterableConfig(*each) for each in settings]
    return a.AlterConfigsRequest([a.AlterConfigsRequestAlterConfigsResource(kind, name, configs)], validate)


def of_topic(*changes: tuple[str, int, str | None]) -> Step:
    return f"{changes}", lambda w: alter(w.topic, *changes)


def of_broker(*changes: tuple[str, int, str | None], name: str = "1") -> Step:
    return f"broker {name!r}: {changes}", lambda w: alter(name, *changes, kind=BROKER)


ALTERATIONS: list[Step] = [
    of_topic(("retention.ms", SET, "5000")),
    of_topic(("retention.ms", SET, " 5000 ")),
    of_topic(("no.such", SET, "5")),
    of_topic(("no.such", DELETE, None)),
    of_topic(("no.such", APPEND, "x")),
    of_topic(("retention.ms", SET, "abc")),
    of_topic(("retention.ms", SET, "-2")),
    of_topic(("retention.ms", SET, None)),
    of_topic(("retention.ms", SET, None), ("segment.ms", APPEND, None)),
    of_topic(("retention.ms", APPEND, "5")),
    of_topic(("retention.ms", SUBTRACT, "5")),
    of_topic(("retention.ms", SET, "5"), ("retention.ms", DELETE, None)),
    of_topic(("cleanup.policy", SET, "foo")),
    of_topic(("cleanup.policy", SET, "")),
    *(
        of_topic(("cleanup.policy", operation, words))
        for operation in (SET, APPEND, SUBTRACT)
        for words in ("", ",", "delete,", ",compact", "compact,,delete", " compact ,delete")
    ),
    *(of_topic(("compression.gzip.level", SET, level)) for level in ("-2", "-1", "0", "1", "9", "10")),
    of_topic(("cleanup.policy", APPEND, "compact")),
    of_topic(("cleanup.policy", SUBTRACT, "delete")),
    of_topic(("min.compaction.lag.ms", SET, "50"), ("max.compaction.lag.ms", SET, "10")),
    of_topic(("remote.storage.enable", SET, "true")),
    of_topic(("segment.bytes", SET, "100")),
    of_topic(("compression.type", SET, "foo")),
    of_topic(("preallocate", SET, "maybe")),
    of_topic(("min.cleanable.dirty.ratio", SET, "2")),
    of_topic(("leader.replication.throttled.replicas", SET, "x")),
    of_topic(("leader.replication.throttled.replicas", SET, "*")),
    of_topic(),
    ("of no topic", lambda w: alter(f"{w.prefix}-none", ("retention.ms", SET, "5"))),
    ("of no topic, and wrong", lambda w: alter(f"{w.prefix}-none", ("no.such", SET, "5"))),
    ("of a bad name", lambda w: alter("a b", ("retention.ms", SET, "5"))),
    ("of no name", lambda w: alter("", ("retention.ms", SET, "5"))),
    ("of a kind that is none", lambda w: alter(w.topic, ("retention.ms", SET, "5"), kind=77)),
    ("of no kind", lambda w: alter(w.topic, kind=0)),
    of_broker(("log.retention.ms", SET, "5000")),
    of_broker(("log.retention.ms", SET, "5000"), name=""),
    of_broker(("num.partitions", SET, "3")),
    of_broker(("num.partitions", SET, "3"), ("node.id", SET, "3")),
    of_broker(("log.retention.hours", SET, "3")),
    of_broker(("no.such", DELETE, None)),
    of_broker(("log.retention.ms", SET, "abc")),
    of_broker(("log.retention.ms", 9, "5")),
    of_broker(("log.retention.ms", SET, "-2")),
    of_broker(("log.retention.ms", SET, "-2"), name=""),
    of_broker(("log.retention.ms", SET, "-9223372036854775808")),
    of_broker(("log.retention.ms", SET, "0")),
    of_broker(("log.retention.ms", SET, "0"), ("log.segment.bytes", SET, "5")),
    of_broker(("log.segment.bytes", SET, "5")),
    of_broker(("log.cleanup.policy", SET, "foo")),
    of_broker(("log.cleanup.policy", APPEND, "compact")),
    of_broker(("log.retention.ms", APPEND, "5")),
    of_broker(("log.retention.ms", SUBTRACT, "5")),
    of_broker(("log.retention.ms", SET, "5"), name="17"),
    of_broker(("log.retention.ms", SET, "5"), name="abc"),
    of_broker(),
]

REPLACEMENTS: list[Step] = [
    ("one", lambda w: put(w.topic, ("retention.ms", "5000"))),
    ("an unknown one", lambda w: put(w.topic, ("no.such", "5"))),
    ("a wrong one", lambda w: put(w.topic, ("retention.ms", "abc"))),
    ("a null", lambda w: put(w.topic, ("retention.ms", None))),
    ("one twice", lambda w: put(w.topic, ("retention.ms", "1"), ("retention.ms", "2"))),
    ("none", lambda w: put(w.topic)),
    ("of no topic", lambda w: put(f"{w.prefix}-none", ("retention.ms", "5"))),
    ("of a bad name", lambda w: put("a b", ("retention.ms", "5"))),
    ("of no name", lambda w: put("", ("retention.ms", "5"))),
    ("of a logger", lambda w: put("1", ("kafka", "INFO"), kind=8)),
    ("of a kind that is none", lambda w: put("1", kind=77)),
    ("of the broker", lambda w: put("1", ("log.retention.ms", "5000"), kind=BROKER)),
    ("what a broker keeps", lambda w: put("1", ("num.partitions", "5"), kind=BROKER)),
    ("of another broker", lambda w: put("17", ("log.retention.ms", "5"), kind=BROKER)),
]


@pytest.mark.parametrize(
    ("steps", "key"), [(ALTERATIONS, ApiKey.INCREMENTAL_ALTER_CONFIGS), (REPLACEMENTS, ApiKey.ALTER_CONFIGS)]
)
def test_alter_configs(worlds: tuple[World, World], steps: list[Step], key: ApiKey) -> None:
    compare(steps, worlds, versions(key))
    messages_agree(steps, worlds, versions(key)[-1], "responses")


def test_several_resources_at_once(worlds: tuple[World, World]) -> None:
    resource = a.IncrementalAlterConfigsRequestAlterConfigsResource
    config = a.IncrementalAlterConfigsRequestAlterableConfig

    def of(name: str, *settings: str) -> Any:
        return resource(TOPIC, name, [config(setting, SET, "5") for setting in settings])

    steps: list[Step] = [
        ("none", lambda w: a.IncrementalAlterConfigsRequest([], True)),
        ("one twice", lambda w: a.IncrementalAlterConfigsRequest(
            [of(w.topic, "retention.ms"), of(w.topic, "segment.ms")], True)),
        ("some good", lambda w: a.IncrementalAlterConfigsRequest(
            [of(w.topic, "retention.ms"), of("nowhere", "retention.ms"), of("no-where", "no.such")], True)),
    ]  # fmt: skip
    compare(steps, worlds, versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))


def test_what_is_altered_is_reported_with_its_source(tmp_path: Path) -> None:
    """With separate brokers, because their settings apply to all their topics."""
    with KafkaBroker(tmp_path / "kafka", NEVER_KILLED) as kafka, BrokerProcess(tmp_path / "muster") as muster:
        reported = [settings_through_changes(broker.bootstrap) for broker in (muster, kafka)]
    for number, (ours, theirs) in enumerate(zip(*reported, strict=True)):
        assert ours == theirs, f"step {number}: ours, then Kafka's"


def settings_through_changes(bootstrap: str) -> list[Any]:
    """How some settings are described at first and after each change, with the answers to the changes."""
    both, nothing = [(TOPIC, "topic"), (BROKER, "1"), (BROKER, "")], {"": None}
    names = ["log.segment.delete.delay.ms", "log.preallocate", "file.delete.delay.ms", "preallocate", "cleanup.policy"]
    world = connect(bootstrap, "altered")
    found: list[Any] = []

    def look() -> None:
        asked = [m.DescribeConfigsResource(kind, world.topic if kind == TOPIC else name, names) for kind, name in both]
        answer = world.client.ask(m.DescribeConfigsRequest(asked, True, False), 4)
        found.append(plain(answer, world) | nothing)

    with world.client:
        look()
        for name, changes, then in (
            ("1", [("log.segment.delete.delay.ms", SET, "61000"), ("log.preallocate", SET, "true")], ["61000", "true"]),
            ("", [("log.segment.delete.delay.ms", SET, "62000")], ["62000"]),
            (
                world.topic,
                [("file.delete.delay.ms", SET, " 63000 "), ("cleanup.policy", APPEND, "compact")],
                ["63000", "delete,compact"],
            ),
            ("1", [("log.segment.delete.delay.ms", DELETE, None), ("log.preallocate", DELETE, None)], [None, None]),
            ("", [("log.segment.delete.delay.ms", DELETE, None)], [None]),
            (world.topic, [("cleanup.policy", SUBTRACT, "delete")], ["compact"]),
            (world.topic, [("file.delete.delay.ms", DELETE, None), ("cleanup.policy", DELETE, None)], [None, None]),
        ):
            kind = TOPIC if name == world.topic else BROKER
            answer = world.client.ask(alter(name, *changes, kind=kind, validate=False), 1)
            found.append(plain(answer, world))
            wait_until_known(world, kind, name, {change[0]: value for change, value in zip(changes, then, strict=True)})
            look()
    return found


def wait_until_known(world: World, kind: int, name: str, values: dict[str, str | None]) -> None:
    """Kafka's broker learns of a change after the answer. The values are the resource's own, None if it has none."""
    source = 1 if kind == TOPIC else 2 if name else 3
    asked = m.DescribeConfigsRequest([m.DescribeConfigsResource(kind, name, list(values))], True, False)
    found: dict[str, str | None] = {}

    def look() -> None:
        (result,) = world.client.ask(asked, 4).results
        found.update(dict.fromkeys(values))
        found.update((each.name, one.value) for each in result.configs for one in each.synonyms if one.source == source)

    until(lambda: found == values, look)


def test_what_is_altered_holds(worlds: tuple[World, World]) -> None:
    """The largest batch and the codec of stored batches."""
    reported = []
    large = bytes(build_batch([(1000, b"k", bytes(1000), [])]))
    for world in worlds:
        ask = world.client.ask
        found: list[Any] = []

        def stored(records: bytes, world: World = world) -> tuple[int, int, Compression | None]:
            """The outcome of a batch: the error, how many records precede it, and how it is stored."""
            end = world.client.ask(list_offsets(world, -1), 4).topics[0].partitions[0].offset
            answer = world.client.ask(produce(world, records), 9)
            result = answer.responses[0].partition_responses[0]
            if result.error_code:
                return result.error_code, result.base_offset, None
            asked = m.FetchPartition(0, -1, result.base_offset, partition_max_bytes=1)
            topics = [m.FetchTopic(world.topic, partitions=[asked])]
            fetched = world.client.ask(m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 11)
            read: Any = fetched.responses[0].partitions[0].records
            return 0, result.base_offset - end, read_header(read, 0).compression

        for changes, holds in (
            ([("max.message.bytes", SET, "200")], (ErrorCode.MESSAGE_TOO_LARGE, -1, None)),
            (
                [("max.message.bytes", DELETE, None), ("compression.type", SET, "gzip")],
                (0, 0, Compression.GZIP),
            ),
            ([("compression.type", SET, "uncompressed")], (0, 0, Compression.NONE)),
        ):
            assert ask(alter(world.topic, *changes, validate=False), 1).responses[0].error_code == 0
            # Kafka's broker hears of it after the answer, and its log last of all.
            until(lambda: stored(large) == holds, rest)  # noqa: B023
            for compression in (Compression.NONE, Compression.ZSTD):
                batch = build_batch([(1000, b"k", bytes(1000), [])], compression=compression)
                found.append(stored(bytes(batch)))
        reported.append(found)
    assert reported[0] == reported[1]


# ------------------------------------------------------------------------------------------------------------ records


def cut(*asked: tuple[str, int, int]) -> Request[Any]:
    topics = [a.DeleteRecordsTopic(name, [a.DeleteRecordsPartition(index, offset)]) for name, index, offset in asked]
    return a.DeleteRecordsRequest(topics, 300_000)


def test_delete_records(worlds: tuple[World, World]) -> None:
    steps: list[Step] = [
        ("nothing", lambda w: cut()),
        ("of no topic", lambda w: cut((f"{w.prefix}-none", 0, 1))),
        ("of no partition", lambda w: cut((w.topic, 9, 1))),
        ("before a negative offset", lambda w: cut((w.topic, 0, -2))),
        ("behind the end", lambda w: cut((w.topic, 0, 7))),
        ("some", lambda w: cut((w.topic, 0, 2))),
        ("fewer than before", lambda w: cut((w.topic, 0, 1))),
        ("the beginning then", lambda w: list_offsets(w, -2)),
        ("what is left by time", lambda w: list_offsets(w, 0)),
        ("of an empty partition", lambda w: cut((w.topic, 1, -1))),
        ("a partition twice", lambda w: a.DeleteRecordsRequest(
            [a.DeleteRecordsTopic(w.topic, [a.DeleteRecordsPartition(0, 4), a.DeleteRecordsPartition(0, 3)])], 60_000)),
        ("one and none", lambda w: cut((w.topic, 0, 4), (f"{w.prefix}-none", 0, 4))),
        ("all", lambda w: cut((w.topic, 0, -1))),
        ("the beginning at last", lambda w: list_offsets(w, -2)),
        ("the end at last", lambda w: list_offsets(w, -1)),
    ]  # fmt: skip
    for version in versions(ApiKey.DELETE_RECORDS):
        answers = [
            [
                plain(world.client.ask(request, 4 if isinstance(request, m.ListOffsetsRequest) else version), world)
                for _, build in steps
                if (request := build(world))
            ]
            for world in worlds
        ]
        assert answers[0] == answers[1], f"v{version}: ours, then Kafka's"


def test_deleted_records_cannot_be_fetched(worlds: tuple[World, World]) -> None:
    answers = []
    for world in worlds:
        deleted = world.client.ask(cut((world.topic, 0, 4)), 2)
        found = [deleted]
        for offset in (3, 4):
            asked = m.FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
            topics = [m.FetchTopic(world.topic, partitions=[asked])]
            found.append(world.client.ask(m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 11))
        answers.append([plain(answer, world) for answer in found])
    assert answers[0] == answers[1]


def test_records_of_a_compacted_topic_stay(worlds: tuple[World, World]) -> None:
    codes = []
    for world in worlds:
        settings = [m.CreatableTopicConfig("cleanup.policy", "compact")]
        topic = m.CreatableTopic(f"{world.prefix}-compacted", 1, 1, [], settings)
        assert world.client.ask(m.CreateTopicsRequest([topic], 300_000), 7).topics[0].error_code == 0
        while world.client.ask(list_offsets(world, -1, topic=topic.name), 4).topics[0].partitions[0].error_code:
            pass
        codes.append(plain(world.client.ask(cut((topic.name, 0, -1)), 2), world))
    assert codes[0] == codes[1]


def test_internal_topics_keep_their_records(worlds: tuple[World, World]) -> None:
    for world in worlds:
        until_ready(world, m.FindCoordinatorRequest(world.prefix), 3)
    compare([("all", lambda w: cut(("__consumer_offsets", 0, -1)))], worlds, versions(ApiKey.DELETE_RECORDS))


# ----------------------------------------------------------------------------------- descriptions of logs and producers


def test_describe_log_dirs(worlds: tuple[World, World]) -> None:
    def some(*indices: int, topic: str | None = None) -> Step:
        return f"{topic or 'the topic'}: {indices}", lambda w: a.DescribeLogDirsRequest(
            [a.DescribableLogDirTopic(topic or w.topic, list(indices))]
        )

    def same_folder(found: Any) -> None:
        for result in found["results"]:
            result["log_dir"], result["usable_bytes"] = "", result["usable_bytes"] > 0

    steps = [some(0, 1), some(1, 9), some(0, topic="nowhere"), ("nothing", lambda w: a.DescribeLogDirsRequest([]))]
    compare(steps, worlds, versions(ApiKey.DESCRIBE_LOG_DIRS), same_folder)
    for world in worlds:
        (result,) = world.client.ask(a.DescribeLogDirsRequest(None), 4).results
        (topic,) = [topic for topic in result.topics if topic.name == world.topic]
        assert {one.partition_index for one in topic.partitions} == {0, 1}


def test_describe_producers(worlds: tuple[World, World]) -> None:
    for world in worlds:
        for producer_id, epoch in ((7, 1), (8, 0)):
            batch = build_batch(
                [(1000, b"k", b"v", []), (900, b"k", b"v", [])],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=3,
            )
            answer = world.client.ask(produce(world, bytes(batch)), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
    asked = a.TopicRequest
    steps: list[Step] = [
        ("some", lambda w: a.DescribeProducersRequest([asked(w.topic, [0, 1, 9])])),
        ("twice", lambda w: a.DescribeProducersRequest([asked(w.topic, [0, 0]), asked(w.topic, [0])])),
        ("of no topic", lambda w: a.DescribeProducersRequest([asked("nowhere", [0])])),
        ("of a bad name", lambda w: a.DescribeProducersRequest([asked("a b", [0])])),
        ("of none", lambda w: a.DescribeProducersRequest([])),
    ]
    compare(steps, worlds, versions(ApiKey.DESCRIBE_PRODUCERS))


def test_list_config_resources(worlds: tuple[World, World]) -> None:
    """Kafka also lists the levels of its loggers as settings, and knows the topics of other tests, on other workers
    of the run those of this file too."""

    def of_this_test(found: Any) -> None:
        found["config_resources"] = sorted(
            (one["resource_type"], one["resource_name"])
            for one in found["config_resources"]
            if one["resource_type"] != 8
            and (one["resource_type"] != 2 or one["resource_name"].startswith(worlds[0].prefix))
            if one["resource_type"] not in (16, 32)
        )

    steps: list[Step] = [
        (f"{kinds}", lambda w, kinds=kinds: a.ListConfigResourcesRequest(kinds))  # type: ignore[misc]
        for kinds in ([], [2], [4], [8], [16], [32], [2, 4], [2, 2], [0], [3], [2, 7])
    ]
    ours = worlds[0].client.ask(a.ListConfigResourcesRequest([2]), 1)
    assert worlds[0].topic in {one.resource_name for one in ours.config_resources}
    compare(steps, worlds, versions(ApiKey.LIST_CONFIG_RESOURCES), of_this_test)


# ------------------------------------------------------------------------------------------------------------- groups


def forget(group: str, *asked: tuple[str, int]) -> Request[Any]:
    topics: dict[str, list[a.OffsetDeleteRequestPartition]] = {}
    for name, index in asked:
        topics.setdefault(name, []).append(a.OffsetDeleteRequestPartition(index))
    return a.OffsetDeleteRequest(group, [a.OffsetDeleteRequestTopic(name, found) for name, found in topics.items()])


def committed(world: World, group: str) -> Any:
    return plain(world.client.ask(m.OffsetFetchRequest(group, None), 7), world)


def test_delete_offsets(worlds: tuple[World, World]) -> None:
    """For a group with members and for one without: the offsets of topics that members read are kept."""
    found = []
    for world in worlds:
        group, ask = f"{world.prefix}-g", world.client.ask
        until_ready(world, m.FindCoordinatorRequest(group), 3)
        until_ready(world, m.OffsetFetchRequest(group, []), 7)
        other = f"{world.prefix}-other"
        assert ask(m.CreateTopicsRequest([m.CreatableTopic(other, 1, 1)], 300_000), 7).topics[0].error_code == 0
        topics = [
            m.OffsetCommitRequestTopic(name, partitions=[m.OffsetCommitRequestPartition(i, 1) for i in indices])
            for name, indices in ((world.topic, (0, 1)), (other, (0,)))
        ]
        commit = m.OffsetCommitRequest(group, topics=topics)
        while any(one.error_code for topic in ask(commit, 8).topics for one in topic.partitions):
            pass
        all_of_it = (world.topic, 0), (world.topic, 9), (other, 0), ("nowhere", 0)
        steps: list[Any] = [
            ask(forget("", *all_of_it), 0),
            ask(forget(f"{group}-none", *all_of_it), 0),
            ask(forget(group), 0),
        ]
        subscription = b"\0\0\0\0\0\1" + len(world.topic).to_bytes(2, "big") + world.topic.encode() + b"\xff" * 4
        first = ask(join(group, "consumer", subscription), 5)
        steps.append(ask(forget(group, *all_of_it), 0))
        steps.append(committed(world, group))
        left = ask(m.LeaveGroupRequest(group, members=[m.MemberIdentity(first.member_id)]), 3)
        assert left.error_code == 0
        steps.append(ask(forget(group, *all_of_it, (world.topic, 0)), 0))
        steps.append(committed(world, group))
        second = ask(join(f"{group}-2", "connect", b"x"), 5)
        steps.append(ask(forget(f"{group}-2", *all_of_it), 0))
        ask(m.LeaveGroupRequest(f"{group}-2", members=[m.MemberIdentity(second.member_id)]), 3)
        steps.append(ask(forget(f"{group}-2", *all_of_it), 0))
        found.append([plain(step, world) for step in steps])
    assert found[0] == found[1]
    codes = {
        (topic["name"].removeprefix(worlds[0].prefix), one["partition_index"]): one["error_code"]
        for topic in found[0][3]["topics"]
        for one in topic["partitions"]
    }
    assert codes == {("-topic", 0): 86, ("-topic", 9): 3, ("-other", 0): 0, ("nowhere", 0): 3}


def join(group: str, kind: str, metadata: bytes) -> Request[Any]:
    protocols = [m.JoinGroupRequestProtocol("r", metadata)]
    return m.JoinGroupRequest(group, 300_000, 300_000, "", f"{group}-instance", kind, protocols)
