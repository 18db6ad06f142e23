"""`__group_events` as clients see it, on a broker that is killed and started again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main as command
from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.errors import KafkaError
from muster.history.model import Cause
from muster.history.rules.event_rebalances import by_group
from muster.model import GROUP_EVENTS_TOPIC, TopicPartition
from tests.support.brokers import BrokerProcess

PATIENCE_S = 120


def read(bootstrap: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The events, once there are enough."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(GROUP_EVENTS_TOPIC, 0)])
        while not enough(found) and time.monotonic() < deadline:
            for records in consumer.poll(500).values():
                found += [json.loads(record.value or b"") for record in records]
    assert enough(found), found
    return found


def has(*kinds: str) -> Callable[[list[dict[str, Any]]], bool]:
    """Whether there are this many events of each of these kinds."""
    return lambda found: all([each["event"] for each in found].count(kind) >= kinds.count(kind) for kind in kinds)


def test_events_outlive_kill_9_and_tell_why(tmp_path: Path, kcat: str, capsys: pytest.CaptureFixture[str]) -> None:
    broker = BrokerProcess(tmp_path / "data", {"node.id": 5})
    broker.start()
    try:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2)])
        with Consumer(bootstrap_servers=broker.bootstrap, group_id="g", session_timeout_ms=60_000) as member:
            member.subscribe(["t"])
            while not member.assignment():
                member.poll(200)
            read(broker.bootstrap, has("RebalanceCompleted"))
            broker.kill()
            broker.start()
            events = read(broker.bootstrap, has("GroupLoaded"))
            loaded = events[-1]
            assert (loaded["group_id"], loaded["members"], loaded["broker_id"]) == ("g", 1, 5)
            kinds = [event["event"] for event in events]
            assert kinds == ["MemberJoined", "RebalanceStarted", "RebalanceCompleted", "GroupLoaded"]
            while not member.assignment():
                member.poll(200)
        events = read(broker.bootstrap, has("MemberLeft", "RebalanceCompleted", "RebalanceCompleted"))
        first, *_, last = by_group(events)["g"]
        assert (first.cause, last.cause, last.members) == (Cause.STARTED, Cause.LEFT, 0)

        # It is the broker's own topic: hidden, and refused to producers of every kind.
        assert command.main(["topics", "list", "--bootstrap", broker.bootstrap]) == 0
        assert capsys.readouterr().out.split() == ["t"]
        assert command.main(["topics", "list", "--internal", "--bootstrap", broker.bootstrap]) == 0
        assert capsys.readouterr().out.split() == ["__consumer_offsets", GROUP_EVENTS_TOPIC, "t"]
        assert command.main(["topics", "delete", GROUP_EVENTS_TOPIC, "--bootstrap", broker.bootstrap]) != 0
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            forged = producer.send(GROUP_EVENTS_TOPIC, value=b"forged")
            with pytest.raises(KafkaError, match="INVALID_TOPIC"):
                forged.result(PATIENCE_S)
        said = subprocess.run(
            [kcat, "-b", broker.bootstrap, "-P", "-t", GROUP_EVENTS_TOPIC],
            input="forged",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "Invalid topic" in said.stderr
        assert read(broker.bootstrap, has("MemberLeft"))[-1]["event"] == "RebalanceCompleted"
    finally:
        broker.stop()
