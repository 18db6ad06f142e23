"""Schedules of faults against a test: a correct test passes all, for a wrong one the shortest failing schedule is
shown."""

from __future__ import annotations

import ast
import re
import sys

import pytest

import muster.testing
from muster import CommitFailedError, Consumer, MusterError, Producer
from muster.testing import Kafka, chaos, schedules

VALUES = [b"%d" % number for number in range(20)]


def at_least_once(kafka: Kafka) -> None:
    """Handles each record at least once: records read before a rebalance may come again."""
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
    with Producer(settings, request_timeout_ms=6_000) as producer:
        for value in VALUES[:3]:
            producer.send(topic, value).result()
    muster.testing.assert_handled_once([record.value for record in kafka.records(topic)], VALUES[:3])


def test_a_consumer_that_handles_all_at_least_once_passes() -> None:
    chaos(seed=1, examples=8)(at_least_once)()


def test_the_shortest_schedule_that_fails_is_shown_and_can_be_repeated() -> None:
    with pytest.raises(AssertionError, match="handled more than once") as caught:
        chaos(seed=5, steps=3, examples=200)(writes_each_once)()
    story, note = caught.value.__notes__
    assert "('Produce'" in story
    assert "careless: Produce" in story
    shown = re.search(r"schedule=(\[.*\])\n?\)", note, re.DOTALL)
    assert shown is not None, note
    schedule = ast.literal_eval(shown[1])
    assert [step["apis"] for step in schedule] == [["Produce"]]
    with pytest.raises(AssertionError, match="handled more than once"):
        chaos(schedule=schedule)(writes_each_once)()


def test_steps_that_a_failure_does_not_need_are_left_out_of_its_schedule() -> None:
    """Even in the middle of a schedule, where Hypothesis may stop."""
    needed = [{"do": "hang", "apis": ["Produce"]}, {"do": "hang", "apis": ["Fetch"]}]
    needless = [{"do": "hang", "apis": [api]} for api in ("Heartbeat", "JoinGroup", "SyncGroup")]

    def fails(kafka: Kafka) -> None:
        stand = {each["fault"] for each in kafka.ask_all("GET", "faults")[0]["faults"]}
        assert not stand >= {"hang('Produce')", "hang('Fetch')"}

    with muster.testing.kafka(in_process=True) as kafka:
        schedule = [needless[0], needed[0], needless[1], needed[1], needless[2]]
        assert schedules.minimized(kafka, schedule, fails) == needed


def test_a_test_that_says_itself_that_it_has_failed_is_repeated_too() -> None:
    def fails(kafka: Kafka) -> None:
        pytest.fail("it has not worked")

    with pytest.raises(pytest.fail.Exception, match="it has not worked") as caught:
        chaos(steps=1, examples=2)(fails)()
    assert "@muster.testing.chaos(schedule=[" in caught.value.__notes__[-1]


def test_without_hypothesis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MusterError, match="chaos draws its schedules with Hypothesis: pip install hypothesis"):
        chaos()(at_least_once)()


def test_what_is_not_a_schedule_is_refused() -> None:
    with pytest.raises(MusterError, match="'explode' is not an act"):
        chaos(schedule=[{"act": "explode", "api": "Fetch", "after": 1}])(at_least_once)()
    with pytest.raises(MusterError, match="'explode' is not an effect"):
        chaos(schedule=[{"do": "explode", "apis": ["Fetch"]}])(at_least_once)()


def test_an_act_that_fails_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kafka: Kafka) -> None:
        raise MusterError("cannot be done")

    monkeypatch.setitem(schedules.ACTS, "rebalance", fail)
    with pytest.raises(MusterError, match="cannot be done"):
        chaos(schedule=[{"act": "rebalance", "after": 1, "api": "Fetch"}])(at_least_once)()
