"""What the doctor reports about recorded groups: nothing bad about healthy ones, and about the others what was done, to
which member, for how long.

Healthy groups are those of scenarios in which nothing went wrong. `told/` has recordings of Apache Kafka 4.2 in the
corpus's form, with a description of what was done; members use confluent-kafka, aiokafka, kafka-python and kcat.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.history.findings import findings
from muster.history.findings.view import GroupView
from muster.history.model import Finding
from muster.history.report import by_group
from tests.history.verdicts import files, history_of, limits_of, load

TOLD = Path(__file__).parent / "told"
WELL = frozenset(
    (
        "idle-topic-quiet",
        "join-while-leaving",
        "life",
        "partitions-added",
        "pattern",
        "paused",
        "queue",
        "registry",
        "server-regex",
        "static-replaced",
        "deploy-static",
        "subscription",
        "topic-created",
        "connect",
        "simple",
    )
)
"""Scenarios in which no member crashes, is slow, or is restarted after its session has expired."""
ADVICE = frozenset(("stops_the_world", "needless_moves"))
"""Findings about what could be better, whatever was done."""


def told(kept: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings about all groups of a recording, as of its end."""
    rows, end_ms = history_of(kept), max(record[2] for record in kept["records"])
    rebalances, notes = by_group(rows.rebalances), by_group(rows.notes)
    for group, generations in by_group(rows.generations).items():
        own = (rebalances.get(group, []), notes.get(group, []))
        yield from findings([GroupView(group, generations, *own, [], end_ms, limits_of(kept))])


def well() -> list[str]:
    return [name for name in files() if re.sub(r"-(java|confluent|kafka-python|aiokafka|muster).*", "", name) in WELL]


@pytest.mark.parametrize("name", well())
def test_a_group_that_is_well_is_not_accused(name: str) -> None:
    assert [each for each in told(load(name)) if each.rule not in ADVICE] == []


STORIES: dict[str, dict[str, tuple[str, ...]]] = {
    "apps": {
        "shared_group_id": (
            "2 applications with no topic in common share this group id",
            "'orders-0' at 127.0.0.1 and 'orders-1' at 127.0.0.1: apps-orders",
            "'invoices-0' at 127.0.0.1 and 'invoices-1' at 127.0.0.1: apps-invoices",
            "8 times within 50.2 s",
            "Give each application its own group.id.",
        ),
        "members_come_and_go": (
            "4 joined and 4 left ('invoices-0' at 127.0.0.1 and 'invoices-1' at 127.0.0.1)",
            "The cost is counted under shared_group_id.",
        ),
    },
    "barrier": {"held_up": ("waited in a rebalance for 'barrier-0' at 127.0.0.1", "for up to 21.7 s: once", "poll")},
    "crash": {"flapping": ("'crash-2' at 127.0.0.1 joins and leaves", "7 times", "dies or hangs without leaving")},
    "cron": {"flapping": ("'cron-kcat' at 127.0.0.1 joins and leaves", "as a short-lived job")},
    "deploy": {
        "rolling_restart": ("10 times within 64.2 s", "the slowest restart took about 4.0 s", "group.instance.id")
    },
    "freeze": {"session_expired": ("Most likely 'freeze-1' at 127.0.0.1", "once", "session timeout of 10.0 s")},
    "k848": {
        "session_expired": ("'k848-1' at 127.0.0.1 and 'k848-0' at 127.0.0.1", "2 times", "timeout of 45.0 s"),
        "poll_interval_exceeded": ("'k848-slow' at 127.0.0.1 did not poll", "(20.0 s)", "once"),
    },
    "slow2": {
        "poll_interval_exceeded": (
            "'slow2-2' at 127.0.0.1 did not poll within max.poll.interval.ms (20.0 s)",
            "rejoined 90.1 s after it had to leave, so its handler took about 110.1 s",
            "above the longest handling time, for example to 140000",
        )
    },
    "static": {
        "session_expired": ("'static-app' at 127.0.0.1, instance st-1 stopped heartbeating", ": once", "20.0 s")
    },
}


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((TOLD / f"{name}.json.gz").read_bytes()))
    return found


@pytest.mark.parametrize("name", STORIES)
def test_what_was_done_is_reported_and_nothing_else(name: str) -> None:
    found = {each.rule: each for each in told(recorded(name)) if each.rule not in ADVICE}
    assert found.keys() == STORIES[name].keys(), recorded(name)["did"]
    for rule, facts in STORIES[name].items():
        text = f"{found[rule].sentence} {found[rule].advice}"
        assert [fact for fact in facts if fact not in text] == [], text


@pytest.mark.parametrize("name", STORIES)
def test_no_cost_is_counted_twice(name: str) -> None:
    kept = recorded(name)
    stopped = sum(row.stopped_partition_ms for row in history_of(kept).rebalances)
    assert sum(each.stopped_partition_ms for each in told(kept)) <= stopped


def test_every_recording_is_a_story() -> None:
    assert {path.name.removesuffix(".json.gz") for path in TOLD.iterdir()} == set(STORIES)
