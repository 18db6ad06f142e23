"""The metrics for Prometheus: the library's own parsers find every sample, in each format."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from muster.errors import ConfigError
from muster.metrics import exposition
from muster.metrics.families import Buckets, Family, MetricType, counter, gauge, value_of

OPEN = "application/openmetrics-text; version=1.0.0"


def families() -> list[Family]:
    took = Buckets((1, 10))
    for value in (0.5, 1, 2, 100):
        took.add(value)
    odd = 'a "topic"\\ of\ntwo lines'
    return [
        counter("messages_total", "Records.").add(7).add(5, topic=odd),
        gauge("numgroups", "Groups.").add(3, state="Stable"),
        Family("offset_commit_count", MetricType.UNKNOWN, "Offsets.").add(9),
        Family("took", MetricType.HISTOGRAM, "Milliseconds.").add(took.seen(), request="Fetch"),
    ]


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("", plain), ("text/plain;version=0.0.4", plain), (OPEN, openmetrics), (f"{OPEN};q=0.5,*/*;q=0.1", openmetrics)],
)
def test_samples_are_read_back(accept, parse) -> None:
    page = exposition.page(families(), accept)
    assert page.status == 200
    assert page.content_type.startswith("application/openmetrics-text" if parse is openmetrics else "text/plain")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page.body.decode())
        for sample in family.samples
    }
    assert found["messages_total", ()] == 7
    assert found["messages_total", (("topic", 'a "topic"\\ of\ntwo lines'),)] == 5
    assert found["numgroups", (("state", "Stable"),)] == 3
    assert found["offset_commit_count", ()] == 9
    took = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "took_bucket"}
    assert took == {"1.0": 2, "10.0": 3, "+Inf": 4}
    assert found["took_count", (("request", "Fetch"),)] == 4
    assert found["took_sum", (("request", "Fetch"),)] == 103.5
    assert ("process_resident_memory_bytes", ()) in found
    assert len([1 for name, _ in found if name == "process_open_fds"]) == 1


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "application/openmetrics-text;version=", ";;,,;", "\xff" * 99]
)
def test_an_odd_wish_for_a_format_is_answered(accept) -> None:
    assert b"numgroups" in exposition.page(families(), accept).body


def test_without_the_library_a_sentence_says_so(monkeypatch) -> None:
    monkeypatch.setattr(exposition, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs prometheus-client.*muster-kafka\[metrics\]"):
        exposition.check_installed()


def test_buckets_count_each_value_once() -> None:
    took = Buckets((1, 10))
    assert took.seen().counts == (0, 0, 0)
    for value in (0, 1, 1.01, 10, 10.5, 1e9):
        took.add(value)
    assert (took.counts, took.count, took.seen().counts) == ([2, 2, 2], 6, (2, 4, 6))
    assert took.seen().bounds[-1] == float("inf")


def test_one_sample_is_found_by_its_labels() -> None:
    assert value_of(families(), "messages_total") == 7
    assert value_of(families(), "numgroups", state="Stable") == 3
    for name, labels in (("messages_total", {"topic": "other"}), ("other", {})):
        with pytest.raises(LookupError):
            value_of(families(), name, **labels)
