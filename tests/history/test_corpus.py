"""The recorded scenarios are as tests/history/record.py describes them, and the brokers' own logs and events fit the
scripts.

Rules that infer why groups rebalance are measured by these files; so these checks use none of those rules.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

from muster.history.model import Cause, Pattern
from muster.history.rules.event_rebalances import by_group
from tests.history.scenarios.witnesses import group_of
from tests.history.verdicts import CORPUS, files, load

FILES = files()
CAUSES = frozenset(
    (
        "started",
        "joined",
        "left",
        "session_expired",
        "poll_interval_exceeded",
        "subscription_changed",
        "partitions_added",
        "static_member_replaced",
        "leader_rejoined",
        "coordinator_moved",
        "not_known",
    )
)
REBALANCES = ("Preparing to rebalance", "Bumped group epoch")
SAID = {
    "session_expired": ("heartbeat expiration", "session expired", "has failed, removing it"),
    "left": ("LeaveGroup", "left the consumer group"),
    "joined": ("Adding new member", "joins the consumer group", "joins group"),
    "started": ("Adding new member", "joins the consumer group", "joins group"),
}
"""What Kafka's coordinator logs in a window of each cause (one of these): a witness that knows nothing of scripts."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_small_and_whole(name):
    kept = load(name)
    assert (CORPUS / name).stat().st_size < 100_000
    assert kept["about"]
    assert kept["truth"] or kept["quiet"]
    places = [(partition, offset) for partition, offset, *_ in kept["records"]]
    assert places == sorted(set(places))
    groups = {group_of(base64.b64decode(row[4])) for row in kept["records"]}
    assert {told["group"] for told in kept["truth"] + kept["quiet"]} <= groups
    assert all(group.startswith(f"{kept['scenario']}.") for group in groups)


@pytest.mark.parametrize("name", FILES)
def test_the_truth_is_reported_in_order_and_in_known_words(name):
    kept = load(name)
    for told in kept["truth"]:
        assert {told["cause"], *told.get("also", ())} <= CAUSES
        assert told.get("pattern") in {None, *Pattern}
        assert told["at_ms"] < told["until_ms"]
    for group in {told["group"] for told in kept["truth"]}:
        times = [
            moment
            for told in sorted(kept["truth"] + kept["quiet"], key=lambda told: int(told["at_ms"]))
            if told["group"] == group
            for moment in (told["at_ms"], told["until_ms"])
        ]
        assert times == sorted(times)


SPEAKS_OF_WHAT_IT_LOST = ("coordinator-frozen", "coordinator-stands-still")
"""A coordinator that wakes up removes members from a group that another one coordinates by then."""


def _within(said: dict[str, Any], told: dict[str, Any]) -> bool:
    return bool(said["group"] == told["group"] and told["at_ms"] - 50 <= said["at_ms"] <= told["until_ms"] + 50)


@pytest.mark.parametrize("name", [name for name in FILES if load(name)["broker_log"] and load(name)["truth"]])
def test_the_brokers_log_bears_the_truth_out(name):
    """Every rebalance that the coordinator logged is in a window of the script, and the reason that it logged fits."""
    kept = load(name)
    rebalances = [said for said in kept["broker_log"] if any(word in said["text"] for word in REBALANCES)]
    stray = [said for said in rebalances if not any(_within(said, told) for told in kept["truth"])]
    assert stray == [] or name.startswith(SPEAKS_OF_WHAT_IT_LOST)
    for told in kept["truth"]:
        texts = [said["text"] for said in kept["broker_log"] if _within(said, told)]
        words = SAID.get(told["cause"], ("",))
        assert any(word in text for text in texts for word in words), told


TOLD_OTHERWISE = {"poll_interval_exceeded": {Cause.LEFT}}
"""The cause that muster's broker records for a client that gives no reason."""


@pytest.mark.parametrize("name", [name for name in FILES if load(name).get("events")])
def test_the_brokers_events_bear_the_truth_out(name):
    """Every rebalance that the broker recorded is in a window of the script, and one in each has its cause."""
    kept = load(name)
    rebalances = {
        group: [label for label in told if label.rebalanced] for group, told in by_group(kept["events"]).items()
    }
    for told in kept["truth"]:
        begin, end = told["at_ms"] - 50, told["until_ms"] + 50
        within = [label for label in rebalances[told["group"]] if begin <= label.started_ms <= end]
        rebalances[told["group"]] = [label for label in rebalances[told["group"]] if label not in within]
        fits = {Cause(told["cause"])} | TOLD_OTHERWISE.get(told["cause"], set())
        assert any(label.cause in fits for label in within), (told, within)
    assert not any(rebalances.values())
