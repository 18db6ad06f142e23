"""A query's progress: as JSON for Spark, and as a typed value again."""

import dataclasses
import json
from typing import Any

from muster.client.config import ClientConfig
from muster.client.plain.fetch import FetchSettings
from muster.metrics.families import value_of
from muster.model import TopicPartition
from muster.spark.offsets import Claim
from muster.spark.progress.exporter import QueryExporter
from muster.spark.progress.group_watch import FirstUnread, GroupWatch
from muster.spark.progress.reports import Progress, progress, progresses, report

P0, P1, Q0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("q", 0)
BEHIND = {P0: Claim(4, 10), P1: Claim(7, 7), Q0: Claim(0, 6)}
GROUP = {"group": "g", "generation": 3, "rebalances": 1, "members": 2, "groupState": "Stable", "committedBatch": 4}


def reported(found):
    """A report from Spark."""
    source = {"description": "PythonMicroBatchStream", "latestOffset": json.dumps(found), "numInputRows": 17}
    source |= {"inputRowsPerSecond": 8.5, "processedRowsPerSecond": 34.0}
    other = {"description": "RateStreamV2", "latestOffset": 42, "numInputRows": 3}
    given: dict[str, Any] = {"id": "11-22", "name": None, "batchId": 5, "numInputRows": 20, "sources": [other, source]}
    given["durationMs"] = {"triggerExecution": 500}
    return json.loads(json.dumps(given))


class FakeQuery:
    def __init__(self, last):
        self.lastProgress = last


def test_what_is_reported():
    assert report(BEHIND, GROUP | {"lagSeconds": {P0: 1.5}, "maxLagSeconds": 1.5}) == {
        "ends": {"q": {"0": 6}, "t": {"0": 10, "1": 7}},
        "lag": {"q": {"0": 6}, "t": {"0": 6, "1": 0}},
        "totalLag": 12,
        "worst": {"partition": "q-0", "lag": 6},
        "lagSeconds": {"t": {"0": 1.5}},
        "maxLagSeconds": 1.5,
        **GROUP,
    }
    assert report({}, {}) == {"ends": {}, "lag": {}, "totalLag": 0, "worst": None}


def test_what_is_reported_is_read_again():
    last = reported(report(BEHIND, GROUP | {"lagSeconds": {P0: 1.5, P1: 0.0}}))
    lag, ages = {P0: 6, P1: 0, Q0: 6}, {P0: 1.5, P1: 0.0}
    found = progress(FakeQuery(last))
    assert found is not None
    expected = Progress("11-22", 5, 17, {P0: 10, P1: 7, Q0: 6}, lag, ages, "g", 3, 2, 1, 4, "Stable", 8.5, 34.0, 500)
    assert found == dataclasses.replace(expected, id="11-22", source=1)
    assert (found.total_lag, found.worst, found.max_lag_seconds) == (12, Q0, 1.5)
    alone = progress(FakeQuery(reported(report({}, {}))))
    assert alone is not None
    assert (alone.group, alone.members, alone.worst, alone.max_lag_seconds, alone.total_lag) == (None,) * 4 + (0,)
    assert progress(FakeQuery(None)) is None
    assert list(progresses(reported({"other": 1}))) == []


def test_ages_count_for_the_position_that_they_were_asked_for():
    watch = GroupWatch(FetchSettings(ClientConfig()), None)
    watch._unread = dict(BEHIND)
    watch._first_unread = {P0: FirstUnread(4, 1_000), Q0: FirstUnread(0, None)}
    assert watch.seen(3_500) == {"lagSeconds": {P0: 2.5, P1: 0.0}, "maxLagSeconds": 2.5}
    assert watch.seen(500)["lagSeconds"] == {P0: 0.0, P1: 0.0}  # a clock that is behind
    watch._unread = {P0: Claim(5, 10)}
    assert watch.seen(3_500) == {"lagSeconds": {}, "maxLagSeconds": None}


def test_numbers_for_prometheus_are_those_of_the_last_report_until_the_query_ends():
    exporter, labels = QueryExporter(), {"query": "11-22", "source": "1", "group": "g"}
    [found] = progresses(reported(report(BEHIND, GROUP | {"lagSeconds": {P0: 1.5}})))
    exporter.record(found, 1_000)
    exporter.record(dataclasses.replace(found, rows=0, lag={P0: 2}, lag_seconds={}, members=None), 3_500)
    exporter.record(dataclasses.replace(found, id="33", query="other", group=None), 4_000)
    families = exporter.families()
    assert value_of(families, "muster_query_lag", **labels, topic="t", partition="0") == 2
    for name, value in {
        "rows_total": 17,
        "batches_total": 1,
        "progress_timestamp_seconds": 3.5,
        "committed_batch": 4,
        "generation": 3,
        "rebalances_total": 1,
        "input_rows_per_second": 8.5,
        "processed_rows_per_second": 34.0,
        "trigger_duration_seconds": 0.5,
    }.items():
        assert value_of(families, f"muster_query_{name}", **labels) == value, name
    samples = {family.name: family.samples for family in families}
    assert [given["query"] for given, _ in samples["muster_query_members"]] == ["other"]
    assert [given["group"] for given, _ in samples["muster_query_lag_seconds"]] == [""]
    exporter.ended("11-22")
    assert {given["query"] for family in exporter.families() for given, _ in family.samples} == {"other"}
