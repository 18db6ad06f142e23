"""How far groups lag behind: the rules of `muster lag`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from muster.cli.observe import lag as command
from muster.history.lag.groups import (
    MOST_SNAPSHOTS,
    GroupLag,
    LagSnapshot,
    LogEndTimes,
    PartitionLag,
    as_json,
    families,
    first_unread_offsets,
    with_seconds,
    without_seconds,
)
from muster.metrics import exposition
from muster.metrics.families import value_of
from muster.model import TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def part(committed: int | None, end: int | None, *, start: int = 0, number: int = 0, **more: object) -> PartitionLag:
    return PartitionLag("t", number, committed, None if end is None else start, end, **more)  # type: ignore[arg-type]


def look(*parts: PartitionLag, at_ms: int = 10_000, state: str = "Stable") -> LagSnapshot:
    return LagSnapshot(at_ms, 5, 3, [GroupLag("g", state, 2, parts)])


def seconds(ends: LogEndTimes, *parts: PartitionLag, at_ms: int = 10_000) -> list[float | None]:
    (group,) = with_seconds(look(*parts, at_ms=at_ms), ends).groups
    return [one.seconds for one in group.partitions]


def test_the_time_of_an_offset_is_on_the_line_between_two_looks() -> None:
    ends = LogEndTimes()
    ends.add({PLACE: 100}, 1_000)
    ends.add({PLACE: 200}, 2_000)
    ends.add({PLACE: 200}, 3_000)
    ends.add({PLACE: 210}, 4_000)
    reported = {offset: ends.written_ms(PLACE, offset) for offset in (99, 100, 150, 199, 200, 205, 209, 210)}
    assert reported == {99: None, 100: 1_000, 150: 1_500, 199: 1_990, 200: 3_000, 205: 3_500, 209: 3_900, 210: None}
    assert ends.written_ms(OTHER, 0) is None


def test_a_log_that_rests_takes_no_room() -> None:
    ends = LogEndTimes()
    for second in range(1_000):
        ends.add({PLACE: 7}, second)
    ends.add({PLACE: 8}, 1_000)
    assert ends.written_ms(PLACE, 7) == 999
    assert len(ends._ends[PLACE]) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5_000)), min_size=2, max_size=MOST_SNAPSHOTS * 3))
def test_the_time_of_an_offset_lies_between_looks(steps: list[tuple[int, int]]) -> None:
    """Even if older snapshots were dropped: an offset's time lies between those of the snapshots around it, and
    rises."""
    ends, end, at_ms, looks = LogEndTimes(), 0, 0, []
    for more, later in steps:
        end, at_ms = end + more, at_ms + later
        ends.add({PLACE: end}, at_ms)
        looks.append((end, at_ms))
    assert len(ends._ends[PLACE]) <= MOST_SNAPSHOTS
    first, last = looks[0], looks[-1]
    times = [ends.written_ms(PLACE, offset) for offset in range(first[0], last[0])]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert all(first[1] <= time <= last[1] for time in times)  # type: ignore[operator]
    if len(steps) <= MOST_SNAPSHOTS:
        for offset, time in zip(range(first[0], last[0]), times, strict=True):
            before = max(at for end, at in looks if end <= offset)
            after = min(at for end, at in looks if end > offset)
            assert before <= time <= after  # type: ignore[operator]


@pytest.mark.parametrize("second", [(90, 2_000), (110, 500)])
def test_another_log_of_that_name_starts_over(second: tuple[int, int]) -> None:
    """The log is shorter; or the clock was set back."""
    ends = LogEndTimes()
    ends.add({PLACE: 100}, 1_000)
    ends.set_time(PLACE, 50, 300)
    ends.set_time(OTHER, 50, 300)
    ends.add({PLACE: second[0]}, second[1])
    assert ends.written_ms(PLACE, 50) is None
    assert ends.written_ms(OTHER, 50) == 300


def test_seconds_of_a_group() -> None:
    ends = LogEndTimes()
    ends.add({PLACE: 100, OTHER: 100}, 1_000)
    ends.add({PLACE: 200, OTHER: 100}, 9_000)
    found = seconds(ends, part(150, 200), part(100, 100, number=1), part(105, 100, number=1), part(None, 100, number=1))
    assert found == [5.0, 0.0, 0.0, None]
    assert seconds(ends, part(50, 200)) == [None]
    assert seconds(ends, part(50, 200, start=150)) == [5.0], "what was deleted does not count"
    assert seconds(ends, part(150, 200), at_ms=4_000) == [0.0], "a clock that was set back"


def test_records_are_read_only_where_no_look_tells() -> None:
    ends = LogEndTimes()
    ends.add({PLACE: 100}, 1_000)
    ends.add({PLACE: 200}, 2_000)
    seen = look(part(50, 200), part(150, 200), part(200, 200), part(None, 200), part(7, 7, start=7))
    assert without_seconds(seen, ends) == {PLACE: {50: 200}}
    ends.set_time(PLACE, 50, 400)
    assert without_seconds(seen, ends) == {}
    assert seconds(ends, part(50, 200)) == [9.6]
    ends.keep_times(first_unread_offsets(look(part(60, 200))))
    assert without_seconds(seen, ends) == {PLACE: {50: 200}}
    assert without_seconds(look(part(5, 200, start=20)), ends) == {PLACE: {20: 200}}
    assert without_seconds(look(part(5, 200, start=200)), ends) == {}, "nothing is left to be read"


def reported() -> LagSnapshot:
    parts = [
        part(3, 10, seconds=2.5, consumer_id="m-1", client_id="m", host="/127.0.0.1"),
        part(12, 10, number=1, seconds=0.0),
        part(None, 10, number=2),
        PartitionLag("u", 0, 5),
    ]
    return LagSnapshot(10_000, 5, 3, [GroupLag("g", "Stable", 2, parts), GroupLag("idle", "Empty", 0)], ["a remark"])


def test_names_and_values_for_prometheus() -> None:
    found = families(reported())
    assert value_of(found, "muster_lag_up") == 1
    assert value_of(found, "kafka_brokers") == 3
    place = {"consumergroup": "g", "topic": "t", "partition": "0"}
    assert value_of(found, "kafka_consumergroup_current_offset", **place) == 3
    assert value_of(found, "kafka_consumergroup_lag", **place) == 7
    assert value_of(found, "kafka_consumergroup_lag_seconds", **place) == 2.5
    assert value_of(found, "kafka_consumergroup_lag", consumergroup="g", topic="t", partition="1") == -2
    assert value_of(found, "kafka_consumergroup_lag_sum", consumergroup="g", topic="t") == 7
    assert value_of(found, "kafka_consumergroup_current_offset_sum", consumergroup="g", topic="t") == 15
    assert value_of(found, "kafka_consumergroup_max_lag", consumergroup="g") == 7
    assert value_of(found, "kafka_consumergroup_max_lag_seconds", consumergroup="g") == 2.5
    assert value_of(found, "kafka_consumergroup_members", consumergroup="g") == 2
    assert value_of(found, "kafka_consumergroup_members", consumergroup="idle") == 0
    assert value_of(found, "kafka_consumergroup_state", consumergroup="idle", state="Empty") == 1
    assert value_of(found, "kafka_topic_partition_current_offset", topic="t", partition="2") == 10
    assert value_of(found, "kafka_topic_partition_oldest_offset", topic="t", partition="2") == 0
    with pytest.raises(LookupError):
        value_of(found, "kafka_consumergroup_lag", consumergroup="g", topic="u", partition="0")
    names = [family.name for family in text_string_to_metric_families(exposition.page(found).body.decode())]
    assert len(names) == len(set(names))


def test_a_cluster_that_is_gone_is_down_and_nothing_else_is_reported() -> None:
    found = families(None, failures=4)
    assert [family.name for family in found] == ["muster_lag_up", "muster_lag_failed_looks"]
    assert [value_of(found, family.name) for family in found] == [0, 4]


def test_a_cluster_too_old_to_tell_its_brokers() -> None:
    found = families(LagSnapshot(1, groups=[]))
    assert value_of(found, "muster_lag_up") == 1
    with pytest.raises(LookupError):
        value_of(found, "kafka_brokers")


def test_the_table() -> None:
    assert command.table(reported()) == [
        "GROUP  STATE   TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  SECONDS  CLIENT-ID",
        "g      Stable  t              0               3              10    7      2.5  m",
        "g      Stable  t              1              12              10   -2      0.0  -",
        "g      Stable  t              2               -              10    -        -  -",
        "g      Stable  u              0               5               -    -        -  -",
        "idle   Empty   -              -               -               -    -        -  -",
    ]


def test_json() -> None:
    found = json.loads(json.dumps(as_json(reported())))
    assert found["remarks"] == ["a remark"]
    assert found["groups"][0]["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "committed_offset": 3,
        "log_start_offset": 0,
        "log_end_offset": 10,
        "lag": 7,
        "seconds": 2.5,
        "consumer_id": "m-1",
        "client_id": "m",
        "host": "/127.0.0.1",
    }
