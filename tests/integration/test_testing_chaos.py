"""Schedules of faults against a test: one that is right passes all, for another the shortest that fails is shown."""

from __future__ import annotations

import re
import time

import pytest

import muster.testing
from muster import CommitFailedError, Consumer, MusterError
from muster.testing import Kafka, chaos

VALUES = [b"%d" % number for number in range(20)]


def handle_all(kafka: Kafka) -> list[bytes | None]:
    """Handle each record at least once: what was read before a rebalance may come again."""
    topic = kafka.topic(partitions=2, records=VALUES)
    handled: list[bytes | None] = []
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
        while not set(VALUES) <= set(handled):
            for batch in consumer.poll(200).values():
                handled += [record.value for record in batch]
                time.sleep(0.02)  # the handler's work: what a fault interrupts
            try:
                consumer.commit()
            except CommitFailedError:
                continue
    return handled


def at_least_once(kafka: Kafka) -> None:
    assert set(handle_all(kafka)) == set(VALUES)


def exactly_once(kafka: Kafka) -> None:
    muster.testing.assert_handled_once(handle_all(kafka), VALUES)


def test_a_consumer_that_handles_all_at_least_once_passes() -> None:
    chaos(seed=1, examples=8)(at_least_once)()


def test_the_shortest_schedule_that_fails_is_shown_and_can_be_repeated() -> None:
    with pytest.raises(AssertionError, match="handled more than once") as caught:
        chaos(seed=7, steps=3, examples=40)(exactly_once)()
    (note,) = caught.value.__notes__
    shown = re.search(r"schedule=(\[.*\])\)", note, re.DOTALL)
    assert shown is not None
    schedule = eval(shown[1])
    assert len(schedule) == 1
    # The requests of a client do not come at the same moments each time: most runs fail, and one is enough.
    for _ in range(10):
        try:
            chaos(schedule=schedule)(exactly_once)()
        except AssertionError:
            return
    pytest.fail(f"{schedule} never failed again")


def test_what_is_not_a_schedule_is_refused() -> None:
    with pytest.raises(MusterError, match="'explode' is not an act"):
        chaos(schedule=[{"act": "explode", "api": "Fetch", "after": 1}])(at_least_once)()
    with pytest.raises(MusterError, match="'explode' is not an effect"):
        chaos(schedule=[{"do": "explode", "apis": ["Fetch"]}])(at_least_once)()
