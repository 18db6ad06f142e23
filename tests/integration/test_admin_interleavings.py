"""Several admins at once, and kill -9 meanwhile: what was answered holds, in one of the orders that are allowed
(tests/support/admin_model.py). Each run has its own seeds, which a failure prints; `soak` runs as many as wanted."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support import scale
from tests.support.admin_model import (
    UNKNOWN,
    Alter,
    Answer,
    Append,
    Ask,
    Change,
    Create,
    Cut,
    Delete,
    Grow,
    Settings,
    State,
    Step,
    Topic,
    explains,
)
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.written import build_batch

pytestmark = [pytest.mark.slow, pytest.mark.soak]

ADMINS, WAVES = 6, 4
BROKER = ""
"""Represents the broker among the names of topics."""
NAMES = ("one", "two", "t" * 249)
TOPIC_KIND, BROKER_KIND = 2, 4
OPERATIONS = {"SET": 0, "DELETE": 1, "APPEND": 2, "SUBTRACT": 3}
GIVEN_SOURCES = {TOPIC_KIND: 1, BROKER_KIND: 2}
NOT_OPEN_YET = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)

Asked = list[tuple[str, Ask]]
"""A request: the operation and the names that it is about."""


# ------------------------------------------------------------------------------------------------------------- requests


def some_request(rng: random.Random) -> Asked:
    """A request of a random kind; some kinds may be about two topics."""
    names = rng.sample(NAMES, rng.choice((1, 1, 1, 2)))
    kind = rng.choice(("create", "create", "delete", "grow", "grow", "alter", "alter", "broker", "append", "cut"))
    if kind == "broker":
        name = rng.choice(("message.max.bytes", "log.retention.bytes", "log.segment.bytes"))
        change = Change(name, "SET", str(rng.randrange(2 * 10**6, 10**7)))
        return [(BROKER, Alter((change if rng.random() < 0.8 else Change(name, "DELETE"),)))]
    if kind in ("append", "cut"):
        names = names[:1]
    asks: dict[str, Any] = {
        "create": lambda: Create(rng.choice((1, 2, 60, 120)), frozenset({("retention.ms", "-1")})),
        "delete": Delete,
        "grow": lambda: Grow(rng.choice((2, 3, 60, 61, 130, 140))),
        "alter": lambda: some_alteration(rng),
        "append": Append,
        "cut": lambda: Cut(rng.randrange(4)),
    }
    one = asks[kind]()
    return [(name, one) for name in names]


def some_alteration(rng: random.Random) -> Alter:
    number = str(rng.randrange(1, 10**6))
    return rng.choice(
        (
            Alter((Change("flush.ms", "SET", number), Change("retention.ms", "SET", "-1"))),
            Alter((Change("retention.ms", "DELETE"), Change("segment.ms", "SET", number))),
            Alter((Change("cleanup.policy", rng.choice(("APPEND", "SUBTRACT")), "compact"),)),
            Alter((Change("max.message.bytes", "SET", number),)),
            Alter((Change("flush.messages", "SET", number),), whole=True),
        )
    )


def encoded(asked: Asked) -> tuple[Any, int]:
    """The request and its version."""
    name, first = asked[0]
    match first:
        case Create():
            topics = [m.CreatableTopic(n, one.partitions, 1, configs=configs(one.settings)) for n, one in asked]  # type: ignore[union-attr]
            return m.CreateTopicsRequest(topics, 30_000), 7
        case Delete():
            return m.DeleteTopicsRequest([m.DeleteTopicState(n) for n, _ in asked], [], 30_000), 6
        case Grow():
            grown = [a.CreatePartitionsTopic(n, one.partitions, None) for n, one in asked]  # type: ignore[union-attr]
            return a.CreatePartitionsRequest(grown, 30_000), 3
        case Alter():
            return alteration(asked, whole=first.whole)
        case Append():
            records = bytes(build_batch([(wall_clock_ms(), b"k", b"v", [])]))
            data = m.TopicProduceData(name, ZERO_UUID, [m.PartitionProduceData(0, records)])
            return m.ProduceRequest(None, -1, 30_000, [data]), 9
        case Cut(before):
            return a.DeleteRecordsRequest(
                [a.DeleteRecordsTopic(name, [a.DeleteRecordsPartition(0, before)])], 30_000
            ), 2


def configs(settings: Settings) -> list[m.CreatableTopicConfig]:
    return [m.CreatableTopicConfig(name, value) for name, value in sorted(settings)]


def alteration(asked: Asked, *, whole: bool) -> tuple[Any, int]:
    resources: list[Any] = []
    for name, one in asked:
        assert isinstance(one, Alter)
        kind = (BROKER_KIND, "1") if name == BROKER else (TOPIC_KIND, name)
        if whole:
            each = [a.AlterConfigsRequestAlterableConfig(c.name, c.value) for c in one.changes]
            resources.append(a.AlterConfigsRequestAlterConfigsResource(*kind, each))
        else:
            made = a.IncrementalAlterConfigsRequestAlterableConfig
            changes = [made(c.name, OPERATIONS[c.operation], c.value or None) for c in one.changes]
            resources.append(a.IncrementalAlterConfigsRequestAlterConfigsResource(*kind, changes))
    return (a.AlterConfigsRequest(resources), 2) if whole else (a.IncrementalAlterConfigsRequest(resources), 1)


def answers(asked: Asked, response: Any) -> list[Answer]:
    """What a response says about each thing that was requested."""
    match asked[0][1]:
        case Create():
            by_name = {one.name: one for one in response.topics}
            found = [by_name[name] for name, _ in asked]
            return [Answer(one.error_code, None if one.error_code else one.topic_id) for one in found]
        case Append():
            [part] = response.responses[0].partition_responses
            return [Answer(part.error_code, None if part.error_code else part.base_offset)]
        case Cut():
            [cut] = response.topics[0].partitions
            return [Answer(cut.error_code, None if cut.error_code else cut.low_watermark)]
        case Grow():
            codes = {one.name: one.error_code for one in response.results}
        case Delete():
            codes = {one.name: one.error_code for one in response.responses}
        case Alter():
            codes = {one.resource_name: one.error_code for one in response.responses}
            codes[BROKER] = codes.get("1", 0)
    return [Answer(codes[name]) for name, _ in asked]


# --------------------------------------------------------------------------------------------------------- observations


def seen(broker: BrokerProcess) -> dict[str, State]:
    """Everything that the requests are about, as the broker reports it now."""
    with RawClient(broker.bootstrap) as client:
        found: dict[str, State] = {BROKER: own_settings(client, BROKER_KIND, "1")}
        for topic in client.ask(m.MetadataRequest(None), 12).topics:
            assert topic.name is not None
            assert {part.error_code for part in topic.partitions} == {0}
            assert sorted(part.partition_index for part in topic.partitions) == list(range(len(topic.partitions)))
            begin, end = (offset(client, topic.name, at) for at in (-2, -1))
            settings = own_settings(client, TOPIC_KIND, topic.name)
            found[topic.name] = Topic(topic.topic_id, len(topic.partitions), settings, begin, end)
        return found


def own_settings(client: RawClient, kind: int, name: str) -> Settings:
    request = m.DescribeConfigsRequest([m.DescribeConfigsResource(kind, name, None)])
    entries = client.ask(request, 4).results[0].configs
    given = GIVEN_SOURCES[kind]
    return frozenset((one.name, one.value or "") for one in entries if one.config_source == given)


def offset(client: RawClient, name: str, timestamp: int) -> int:
    topics = [m.ListOffsetsTopic(name, [m.ListOffsetsPartition(0, -1, timestamp)])]
    found: int = client.ask(m.ListOffsetsRequest(-1, 0, topics), 4).topics[0].partitions[0].offset
    return found


def check_folders(broker: BrokerProcess, found: dict[str, State]) -> None:
    """There is no folder of a partition that does not exist. (One that was interrupted is created with the first
    record.)"""
    there = {path.name for path in broker.folder.iterdir() if path.is_dir() and not path.name.endswith("-delete")}
    topics = {name: topic for name, topic in found.items() if isinstance(topic, Topic)}
    wanted = {f"{name}-{index}" for name, topic in topics.items() for index in range(topic.partitions)}
    assert not there - wanted


# ------------------------------------------------------------------------------------------------- a wave


Line = list[tuple[Asked, list[Answer] | None]]


def wave(broker: BrokerProcess, rng: random.Random, *, kill: bool) -> list[Line]:
    """Several connections send requests at once, and each sends all of its requests before it reads the first
    answer."""
    plan = [[some_request(rng) for _ in range(rng.randrange(1, 5))] for _ in range(ADMINS)]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in plan]
        for client, line in zip(clients, plan, strict=True):
            for asked in line:
                client.send(*encoded(asked))
        if kill:
            time.sleep(rng.random() * 0.1)  # anything may be in flight
            broker.kill()
        lines = [list(answered(client, line)) for client, line in zip(clients, plan, strict=True)]
    if kill:
        broker.start()
    return lines


def answered(client: RawClient, line: list[Asked]) -> Iterator[tuple[Asked, list[Answer] | None]]:
    """The requests of a connection with their answers, as far as answers arrive."""
    over = False
    for asked in line:
        found = None
        if not over:
            request, version = encoded(asked)
            try:
                found = answers(asked, client.receive(type(request), version))
            except (EOFError, ConnectionError):
                over = True
        yield asked, found


def steps(lines: list[Line], name: str) -> list[list[Step]]:
    """The requests about one name, connection by connection, without those answered before a partition was open."""
    found = []
    for line in lines:
        about = []
        for asked, reported in line:
            for at, (each, ask) in enumerate(asked):
                answer = reported[at] if reported is not None else None
                if each == name and not (answer is not None and answer.code in NOT_OPEN_YET):
                    about.append(Step(ask, answer))
        found.append(about)
    return found


def run(broker: BrokerProcess, seed: int) -> None:
    rng = random.Random(seed)
    before = seen(broker)
    for number in range(WAVES):
        lines = wave(broker, rng, kill=number % 2 == 1)
        now = seen(broker)
        for name in (BROKER, *NAMES):
            done = steps(lines, name)
            reported = f"seed {seed}, wave {number}, {name or 'broker'}: {before.get(name)}, {done}, {now.get(name)}"
            assert explains(before.get(name), done, now.get(name)), reported
        check_folders(broker, now)
        before = now


@pytest.mark.timeout(3600)
def test_admins_at_once_and_kill_9(tmp_path: Path) -> None:
    settings = {"group.events.enable": False, "offsets.topic.num.partitions": 1}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        for seed in (*scale.schedules(1), *scale.fresh_seeds(1)):
            run(broker, seed)
            assert "Traceback" not in broker.log(), f"seed {seed}"
        assert broker.stop() == 0


def test_the_model_knows_what_cannot_be() -> None:
    one, other = Topic(b"a", 1, frozenset()), Topic(b"a", 3, frozenset())
    done, refused = Answer(0), Answer(ErrorCode.INVALID_PARTITIONS)
    assert explains(one, [[Step(Grow(2), done)], [Step(Grow(3), done)]], other)
    assert not explains(one, [[Step(Grow(3), done)], [Step(Grow(2), done)]], one._replace(partitions=2))
    assert explains(one, [[Step(Grow(3), done)], [Step(Grow(2), refused)]], other)
    assert not explains(one, [[Step(Grow(3), done), Step(Delete(), done)]], other)
    assert explains(one, [[Step(Grow(3), done), Step(Delete(), None)]], other)
    assert explains(one, [[Step(Delete(), None), Step(Grow(3), None)]], None)
    assert not explains(None, [[Step(Append(), UNKNOWN)], [Step(Create(1), done)]], one._replace(end=1))
