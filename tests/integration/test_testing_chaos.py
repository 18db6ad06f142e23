"""Schedules of faults against a test: one that is right passes all, for another the shortest that fails is shown."""

from __future__ import annotations

import ast
import re

import pytest

import muster.testing
from muster import CommitFailedError, Consumer, MusterError, Producer
from muster.testing import Kafka, chaos

VALUES = [b"%d" % number for number in range(20)]


def at_least_once(kafka: Kafka) -> None:
    """Handles each record at least once: what was read before a rebalance may come again."""
    topic = kafka.topic(partitions=2, records=VALUES)
    handled: set[bytes | None] = set()
    with Consumer(
        bootstrap_servers=kafka.bootstrap,
        group_id=f"group-of-{topic}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        request_timeout_ms=2_000,
        max_poll_records=2,
    ) as consumer:
        consumer.subscribe([topic])
        while not handled >= set(VALUES):
            handled |= {record.value for batch in consumer.poll(200).values() for record in batch}
            try:
                consumer.commit()
            except CommitFailedError:
                continue


def writes_each_once(kafka: Kafka) -> None:
    """Wrong: without idempotence, a batch whose answer was lost is written again."""
    topic = kafka.topic()
    settings = {"bootstrap_servers": kafka.bootstrap, "enable_idempotence": False, "client_id": "careless"}
    with Producer(settings, request_timeout_ms=2_000) as producer:
        for value in VALUES[:3]:
            producer.send(topic, value).result()
    muster.testing.assert_handled_once([record.value for record in kafka.records(topic)], VALUES[:3])


def test_a_consumer_that_handles_all_at_least_once_passes() -> None:
    chaos(seed=1, examples=8)(at_least_once)()


def test_the_shortest_schedule_that_fails_is_shown_and_can_be_repeated() -> None:
    with pytest.raises(AssertionError, match="handled more than once") as caught:
        chaos(seed=5, steps=3, examples=200)(writes_each_once)()
    (note,) = caught.value.__notes__
    shown = re.search(r"schedule=(\[.*\])\n?\)", note, re.DOTALL)
    assert shown is not None, note
    schedule = ast.literal_eval(shown[1])
    assert [step["apis"] for step in schedule] == [["Produce"]]
    with pytest.raises(AssertionError, match="handled more than once"):
        chaos(schedule=schedule)(writes_each_once)()


def test_what_is_not_a_schedule_is_refused() -> None:
    with pytest.raises(MusterError, match="'explode' is not an act"):
        chaos(schedule=[{"act": "explode", "api": "Fetch", "after": 1}])(at_least_once)()
    with pytest.raises(MusterError, match="'explode' is not an effect"):
        chaos(schedule=[{"do": "explode", "apis": ["Fetch"]}])(at_least_once)()
