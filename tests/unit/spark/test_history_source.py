"""Where a batch of the history ends, and for which log partitions it moves the time forward: only the rule."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from muster.client.plain.cluster import disconnect
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, KafkaConnectionError
from muster.history.sources.raw_records import OFFSETS_TOPIC
from muster.model import TopicPartition
from muster.spark.history.source import (
    CLOCK_MS,
    FORMAT,
    GROUPS,
    SKEW_MS,
    TICK_MS,
    PackedStreamReader,
    batch_end,
    groups_option,
    parse_history_options,
)
from muster.spark.offsets import Claim, QueryOffset, to_json

NOW_MS = 9_000
TOLD = {"of": 3, "read": {"0": [4, 5]}}
BEFORE = {"of": 3, "read": {"0": [0, 4]}}


def read_to(positions: dict[int, int], seq: int = 1) -> dict[str, Any]:
    """The source's own offset, read up to these positions."""
    claims = {TopicPartition(OFFSETS_TOPIC, partition): Claim(0, end) for partition, end in positions.items()}
    return to_json(QueryOffset(seq, claims))


def offset(until: int, at: dict[int, int], positions: dict[int, int], seq: int = 1) -> dict[str, Any]:
    own = {str(partition): time_ms for partition, time_ms in at.items()}
    return {"history": FORMAT, "until": until, "at": own, "events": BEFORE, "read": read_to(positions, seq)}


START = offset(5_000, {0: 5_000, 1: 3_000}, {0: 10, 1: 20, 2: 7})


@pytest.mark.parametrize(
    ("read", "ends", "is_last", "at"),
    [
        pytest.param(None, {}, False, None, id="nothing new, no time to pass"),
        pytest.param({0: 12, 1: 20, 2: 7}, {}, False, "as it was", id="something new, no time to pass"),
        pytest.param(None, {0: 10, 1: 20, 2: 7}, False, {0: NOW_MS, 1: NOW_MS, 2: NOW_MS}, id="all is read"),
        pytest.param(None, {0: 10, 1: 21, 2: 7}, False, {0: NOW_MS, 1: 3_000, 2: NOW_MS}, id="one is held up"),
        pytest.param(None, {0: 10, 1: 20, 2: 8}, False, {0: NOW_MS, 1: NOW_MS, 2: 0}, id="one that always was"),
        pytest.param(None, {0: 10}, False, {0: NOW_MS, 1: 3_000, 2: 0}, id="some have no leader"),
        pytest.param({0: 11, 1: 20, 2: 7}, {0: 12, 1: 21, 2: 8}, False, "as it was", id="in the midst of all"),
        pytest.param({0: 12, 1: 20, 2: 7}, {0: 12, 1: 21, 2: 8}, False, {0: NOW_MS, 1: 3_000, 2: 0}, id="some is read"),
        pytest.param({0: 13, 1: 20, 2: 7}, {0: 12, 1: 20, 2: 7}, False, dict.fromkeys(range(3), NOW_MS), id="beyond"),
        pytest.param(None, {3: 0}, False, None, id="one that nothing was read of"),
        pytest.param({0: 12, 1: 20, 2: 7}, {0: 12, 1: 20, 2: 8}, True, "as it was", id="at last: there is more"),
        pytest.param({0: 12, 1: 20, 2: 8}, {0: 12, 1: 20, 2: 8}, True, dict.fromkeys(range(3), NOW_MS), id="at last"),
        pytest.param(None, {0: 10, 1: 20, 2: 8}, True, {0: NOW_MS, 1: NOW_MS, 2: 0}, id="at last: one is held up"),
        pytest.param(None, {0: 11, 1: 21, 2: 8}, True, {0: 5_000, 1: 3_000, 2: 0}, id="at last: all are held up"),
    ],
)
def test_where_a_batch_ends(read, ends, is_last, at):
    moved = None if read is None else read_to(read, 2)
    end = batch_end(START, moved, TOLD, ends, NOW_MS, is_last=is_last)
    if at is None:
        assert end is START
        return
    passed = at != "as it was"
    assert end == {
        "history": FORMAT,
        "until": NOW_MS if passed else START["until"],
        "at": {str(partition): time_ms for partition, time_ms in at.items()} if passed else START["at"],
        "events": TOLD,
        "read": START["read"] if moved is None else moved,
    }


@pytest.mark.parametrize("until", [NOW_MS, NOW_MS + 1])
def test_at_the_very_end_time_passes_once(until):
    start = offset(until, {0: until}, {0: 10})
    assert batch_end(start, None, TOLD, {0: 10}, NOW_MS, is_last=True) is start


LOGS = st.dictionaries(st.integers(0, 3), st.integers(0, 5), max_size=4)


@given(st.lists(st.tuples(LOGS, LOGS, st.booleans()), max_size=12))
def test_time_never_goes_back_and_passes_only_after_what_was_read(looks):
    """For each check: how far it reads on, how much there is after that, and whether time should pass."""
    start, positions, now_ms = offset(0, {}, {}, 0), dict[int, int](), NOW_MS
    for more, behind, is_due in looks:
        now_ms += 1
        new = {partition: positions.get(partition, 0) + count for partition, count in more.items()}
        moved = any(count > positions.get(partition, -1) for partition, count in new.items())
        positions |= new
        ends = {partition: positions.get(partition, 0) + count for partition, count in behind.items() if is_due}
        end = batch_end(start, read_to(positions, now_ms) if moved else None, {}, ends, now_ms, is_last=False)
        for partition, time_ms in end["at"].items():
            before = start["at"].get(partition, 0)
            own = int(partition)
            assert time_ms == (now_ms if ends.get(own, 1 << 60) <= positions[own] else before)
        assert end["until"] in (start["until"], now_ms)
        assert max(end["at"].values(), default=0) <= end["until"]
        start = end


class PartitionEnds:
    """A cluster with two log partitions, one of which has a leader."""

    def led(self, topics: list[str]) -> list[TopicPartition]:
        assert topics == [OFFSETS_TOPIC]
        return [TopicPartition(OFFSETS_TOPIC, 1)]

    def list_offsets(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(times, 12)


@pytest.mark.parametrize(("until", "ends"), [(NOW_MS - 1_000, {1: 12}), (NOW_MS - 999, {}), (NOW_MS + 1, {})])
def test_time_is_looked_at_now_and_then(until, ends):
    given = {"bootstrap": "a:1", TICK_MS: "1000", CLOCK_MS: str(NOW_MS)}
    cluster: Any = PartitionEnds()
    assert PackedStreamReader(*parse_history_options(given, streaming=True))._time_and_ends(cluster, until) == (
        NOW_MS,
        ends,
    )


def test_no_time_passes_that_a_broker_s_clock_may_not_have_reached():
    reader = PackedStreamReader(*parse_history_options({"bootstrap": "a:1"}, streaming=True))
    before = wall_clock_ms()
    assert before - SKEW_MS <= reader._now_ms() <= wall_clock_ms() - SKEW_MS
    assert SKEW_MS >= 30_000


@pytest.mark.parametrize("once", [False, True])
def test_without_a_broker_a_stream_waits_and_a_single_run_fails(once):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = {"bootstrap": f"127.0.0.1:{port}", "kafka.request.timeout.ms": "100", "kafka.fetch.max.wait.ms": "1"}
    reader = PackedStreamReader(*parse_history_options(given, streaming=True))
    if not once:
        assert reader.latestOffset(START, ReadAllAvailable()) is START
    else:
        reader._stop_at = NOW_MS, {}
        with pytest.raises(KafkaConnectionError):
            reader.latestOffset(START, ReadAllAvailable())
    disconnect()


@pytest.mark.parametrize("other", [None, 0, FORMAT - 1, FORMAT + 1, str(FORMAT)])
def test_an_offset_of_another_format_is_refused(other):
    reader = PackedStreamReader(*parse_history_options({"bootstrap": "a:1"}, streaming=True))
    with pytest.raises(ConfigError, match="written by another version of muster"):
        reader.latestOffset(START | {"history": other}, ReadAllAvailable())


@pytest.mark.parametrize("groups", [[], ["a"], ["new\nline", "b", "é/🦆", ""]])
def test_groups_have_any_name(groups):
    given = {"bootstrap": "a:1"} | groups_option(groups)
    assert parse_history_options(given, streaming=True)[1].groups == frozenset(groups)
    assert [*groups_option(groups)] == [GROUPS]


def test_a_name_in_place_of_names_is_not_a_list_of_its_letters():
    with pytest.raises(ConfigError, match="groups is 'orders'"):
        groups_option("orders")
