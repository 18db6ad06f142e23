"""Which of a broker's own events a batch of the history reads: from where the last one ended, whatever happened."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import ErrorCode, KafkaConnectionError, KafkaError
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP
from muster.spark.history.events import next_ranges, tasks_of
from muster.spark.history.packed import pack_events
from tests.support.history_topic import Written, raw


class Logs:
    """A cluster's `__group_events`: beginning and end of the partitions that have a leader."""

    def __init__(self, logs: dict[int, tuple[int, int]], fails: Exception | None = None) -> None:
        self._logs = {TopicPartition(EVENTS_TOPIC, partition): log for partition, log in logs.items()}
        self._fails = fails

    def led(self, names: list[str], *, internal: bool) -> list[TopicPartition]:
        assert (names, internal) == ([EVENTS_TOPIC], True)
        return [*self._logs]

    def list_offsets(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self._fails is not None:
            raise self._fails
        return {place: self._logs[place][when != EARLIEST_TIMESTAMP] for place, when in times.items()}

    def topics(self, _names: list[str]) -> dict[str, list[int]]:
        return {OFFSETS_TOPIC: [*range(50)]}


def looked(cluster: Logs, before: Any) -> Any:
    given: Any = cluster
    return next_ranges(given, before)


BEFORE = {"of": 50, "read": {"0": [3, 8], "1": [0, 4]}}
AT_REST = {"of": 50, "read": {"0": [8, 8], "1": [4, 4]}}


@pytest.mark.parametrize(
    ("logs", "before", "read"),
    [
        pytest.param({}, {}, None, id="there is no such topic"),
        pytest.param({0: (3, 8), 1: (0, 4)}, {}, {"0": [0, 8], "1": [0, 4]}, id="for the first time"),
        pytest.param({0: (3, 8), 1: (0, 4)}, BEFORE, {"0": [8, 8], "1": [4, 4]}, id="nothing new"),
        pytest.param({0: (3, 9), 1: (2, 7)}, BEFORE, {"0": [8, 9], "1": [4, 7]}, id="more"),
        pytest.param({0: (3, 9)}, BEFORE, {"0": [8, 9], "1": [4, 4]}, id="a partition without a leader"),
        pytest.param({}, BEFORE, {"0": [8, 8], "1": [4, 4]}, id="no leader at all"),
        pytest.param({0: (1, 2), 1: (0, 4)}, BEFORE, {"0": [1, 2], "1": [4, 4]}, id="made anew"),
        pytest.param({0: (9, 9), 1: (0, 4)}, AT_REST, {"0": [8, 9], "1": [4, 4]}, id="retention is behind"),
        pytest.param({0: (3, 8), 1: (0, 4), 2: (0, 1)}, BEFORE, {"0": [8, 8], "1": [4, 4], "2": [0, 1]}, id="grown"),
    ],
)
def test_a_batch_reads_on_where_the_last_one_ended(logs, before, read):
    assert looked(Logs(logs), before) == ({} if read is None else {"of": 50, "read": read})


@pytest.mark.parametrize(("before", "kept"), [({}, {}), (BEFORE, AT_REST)])
def test_where_they_may_not_be_read_for_a_while_none_is_read_again_later(before, kept):
    refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not now")
    assert looked(Logs({0: (3, 9)}, refused), before) == kept
    assert tasks_of(kept) == []


def test_without_a_broker_there_is_no_answer():
    with pytest.raises(KafkaConnectionError):
        looked(Logs({0: (3, 9)}, KafkaConnectionError("none answers")), BEFORE)


def test_tasks_are_of_what_is_new():
    (task,) = tasks_of({"of": 7, "read": {"0": [3, 8], "1": [4, 4]}})
    assert [(each.partition, each.start, each.end) for each in task.ranges] == [(0, 3, 8)]
    assert task.log_partitions == 7


@pytest.mark.parametrize("key", [None, b"\xff\xfe", b"\xed\xb3\xbf"])
def test_a_record_whose_key_is_not_a_name_is_skipped(key):
    records = [Written(0, 1, key, b"{}"), Written(0, 2, "é".encode(), b"{}")]
    (batch,) = raw(records).to_batches()
    assert [row["what"] for row in pack_events(batch, lambda _: 0).to_pylist()] == ["events"]
    assert pack_events(batch, lambda _: None).num_rows == 0
