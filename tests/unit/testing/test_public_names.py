"""What users import from the testing kit: its names, their docstrings and types, and the same methods for asyncio."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import muster.testing
from muster.testing import async_kit, kit
from muster.testing.rules.faults import Rule

BLOCKING_ALONE = {
    "admin",  # AsyncAdmin is for event loops
    "ask_all",
    "ask_coordinator",
    "brokers",
    "forget",
    "strict",
}
"""Members that AsyncKafka only has under `blocking`."""
FACES = [
    (kit.Kafka, async_kit.AsyncKafka, BLOCKING_ALONE),
    (kit.Fault, async_kit.AsyncFault, {"body"}),
    (kit.Group, async_kit.AsyncGroup, {"group_id"}),
    (kit.GroupClock, async_kit.AsyncGroupClock, set[str]()),
]


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "face", "alone"), FACES, ids=lambda one: getattr(one, "__name__", ""))
def test_each_method_is_there_for_asyncio_with_the_same_arguments(blocking: type, face: type, alone: set[str]) -> None:
    theirs = public(face)
    for name, value in public(blocking).items():
        if name in alone:
            assert name not in theirs
        elif callable(value):
            assert (
                str(inspect.signature(theirs[name])).split(" -> ")[0] == str(inspect.signature(value)).split(" -> ")[0]
            )
        else:
            assert name in theirs
    assert theirs.keys() - public(blocking).keys() <= {"of", "clock"}


def test_brokers_are_started_with_the_same_arguments() -> None:
    starters: list[Callable[..., Any]] = [muster.testing.kafka, muster.testing.Kafka, muster.testing.AsyncKafka]
    first, *others = [inspect.signature(each).parameters for each in starters]
    assert all(other == first for other in others)


def test_the_fields_of_faults_are_those_of_rules() -> None:
    of_rules = {each.name for each in fields(Rule)} - {"do", "apis"}
    assert set(get_type_hints(kit.FaultFields)) == of_rules
    assert set(get_type_hints(kit.FaultFields)) - set(get_type_hints(kit.When)) == {"error", "delay_ms", "throttle_ms"}


@pytest.mark.parametrize("name", muster.testing.__all__)
def test_each_public_name_is_there_and_explained(name: str) -> None:
    value = getattr(muster.testing, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value) and value.__module__.startswith("muster"):
        own = [each for base in value.__mro__ if base.__module__.startswith("muster.testing") for each in vars(base)]
        unexplained = [
            each for each in own if not each.startswith("_") and not inspect.getdoc(getattr(value, each, ""))
        ]
        assert unexplained == []


PROGRAM = """
from muster import AsyncConsumer, Consumer, ConsumerRecord, Producer
from muster.testing import (
    AsyncConsumerFactory,
    AsyncKafka,
    ConsumerFactory,
    Kafka,
    ProducerFactory,
    TopicFactory,
    assert_handled_once,
    kafka,
)


def blocking() -> None:
    with kafka({"num.partitions": 4}, in_process=True) as broker:
        topic: str = broker.topic(partitions=2, records=[b"a", (None, b"b")])
        broker.topic(partition=2)  # wrong
        broker.topic(records=["a"])  # wrong
        broker.until_assigned("billing", members=2, timeout_s=5)
        broker.until_assigned("billing", member=2)  # wrong
        broker.until_committed("billing", topic, {0: 3})
        with broker.lose_answer("OffsetCommit", group="billing", nth=3) as fault:
            struck: int = fault.struck
        broker.lose_answer("OffsetCommit", nht=3)  # wrong
        broker.lose_answer("OffsetCommit", nth="3")  # wrong
        broker.fail("OffsetCommit", "NOT_COORDINATOR", times=None)
        broker.fail("OffsetCommit")  # wrong
        broker.fault("delay", "Fetch", "Produce", delay_ms=100)
        broker.disk(full=True)
        broker.disk(fool=True)  # wrong
        broker.group("billing").expire("billing-1")
        found: list[ConsumerRecord] = broker.records(topic)
        print(struck, found)
    kafka(settings={1: 2})  # wrong
    assert_handled_once([1, 2], {1, 2})


async def asynchronous() -> None:
    async with AsyncKafka(brokers=1, seed=7) as broker:
        topic: str = await broker.topic(partitions=2)
        await broker.topic(partition=2)  # wrong
        await broker.until_assigned("billing", members=2)
        await broker.until_assigned(5)  # wrong
        async with broker.hold("JoinGroup", client="billing-*") as fault:
            struck: int = await fault.struck()
            await fault.wait_struck(timeout_s=3)
        kept = await broker.fail("OffsetCommit", "NOT_COORDINATOR")
        await kept.remove()
        await broker.hold("JoinGroup", clint="x")  # wrong
        story: str = await broker.story()
        wrong: int = await broker.story()  # wrong
        await broker.clock.advance(45)
        await broker.group("billing").fence("static-1")
        async with broker.assert_no_rebalance("billing"):
            print(topic, struck, story, wrong, broker.bootstrap)


def test_fixtures(
    muster_broker: Kafka,
    muster_topic: TopicFactory,
    muster_producer: ProducerFactory,
    muster_consumer: ConsumerFactory,
    muster_async_consumer: AsyncConsumerFactory,
) -> None:
    topic: str = muster_topic(partitions=2)
    producer: Producer = muster_producer(linger_ms=0)
    muster_producer(group_id="g")  # wrong
    consumer: Consumer = muster_consumer(topic, group_id="billing", max_poll_records=1)
    muster_consumer(topic, group="billing")  # wrong
    muster_consumer(5)  # wrong
    other: AsyncConsumer = muster_async_consumer(topic)
    muster_broker.until_lag_zero(muster_consumer.group_id)
    print(producer, consumer, other)
""".lstrip()


@pytest.mark.slow
def test_mypy_reports_the_wrong_lines_of_a_test_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", "cache", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    reported = {int(line) for line in re.findall(r"^program\.py:(\d+): error:", done.stdout, re.MULTILINE)}
    marked = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert (reported - marked, marked - reported) == (set(), set()), done.stdout + done.stderr
