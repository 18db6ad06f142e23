"""Errors that quote a name or a value of the maximum length: with the rest of the sentence, the text would be too long
to be sent. It is cut, and the request is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.protocol import admin_messages as am
from muster.protocol import messages as m
from muster.protocol.primitives import MOST_STRING_BYTES, cut_string
from tests.support.brokers import RawClient, in_thread, running

LONG = "n" * MOST_STRING_BYTES
TOPIC, BROKER, GROUP = 2, 4, 32


def altered(kind: int, name: str, key: str, value: str) -> Any:
    change = am.IncrementalAlterConfigsRequestAlterableConfig(key, 0, value)
    resource = am.IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [change])
    return am.IncrementalAlterConfigsRequest([resource])


def created(name: str, key: str = "retention.ms", value: str = "1") -> Any:
    setting = m.CreatableTopicConfig(key, value)
    return m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1, configs=[setting])], 1_000)


def feature(name: str, level: int) -> Any:
    return am.UpdateFeaturesRequest(1_000, [am.FeatureUpdateKey(name, level)])


REQUESTS = [
    (feature(LONG, 1), 2),
    (feature(LONG, 1), 0),
    (feature("é" * (MOST_STRING_BYTES // 2), 0), 1),
    (created(LONG), 7),
    (created(LONG), 2),  # not flexible: strings are encoded differently
    (created("new", value=LONG), 7),
    (created("new", "cleanup.policy", LONG), 7),
    (created("new", LONG), 7),
    (altered(TOPIC, LONG, "retention.ms", "1"), 1),
    (altered(TOPIC, "t", LONG, "1"), 1),
    (altered(TOPIC, "t", "retention.ms", LONG), 0),
    (altered(BROKER, LONG, "log.retention.ms", "1"), 1),
    (altered(GROUP, LONG, LONG, "1"), 1),
    (m.DescribeConfigsRequest([m.DescribeConfigsResource(TOPIC, LONG, None)]), 4),
    (m.DescribeConfigsRequest([m.DescribeConfigsResource(TOPIC, LONG, None)]), 1),
    (am.DescribeProducersRequest([am.TopicRequest(LONG, [0])]), 0),
    (am.CreatePartitionsRequest([am.CreatePartitionsTopic(LONG, 3)], 1_000), 3),
    (am.ElectLeadersRequest(0, [am.TopicPartitions(LONG, [0])], 1_000), 2),
    (m.FindCoordinatorRequest(key_type=9, coordinator_keys=[LONG]), 4),
]


async def test_each_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def ask_all(bootstrap: str) -> list[Any]:
        with RawClient(bootstrap) as client:
            return [client.ask(request, version) for request, version in REQUESTS]

    async with running(tmp_path / "data") as broker:
        broker.changes.create_topic("t", 1, {})
        answers = await in_thread(ask_all, broker.bootstrap)
    first = answers[0].error_message
    assert first.startswith("The update failed for all features since")
    assert len(first) == MOST_STRING_BYTES
    assert "could not be handled" not in caplog.text


def test_characters_are_not_cut_in_two() -> None:
    for text in ("a" * MOST_STRING_BYTES, "é" * (MOST_STRING_BYTES // 2)):
        assert cut_string(text.encode()).decode() == text
    assert cut_string(("é" * MOST_STRING_BYTES).encode()).decode() == "é" * (MOST_STRING_BYTES // 2)
    assert cut_string(b"a" * (MOST_STRING_BYTES + 1)) == b"a" * MOST_STRING_BYTES
