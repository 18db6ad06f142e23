"""The lag of groups, computed by tasks: where logs begin and end, and how many records are unread.

Two steps. First a task for some buckets looks up where the logs of their groups' committed partitions begin and end:
after the commits were read, so that no group seems to be beyond a log's end. Then all partitions are distributed
evenly, and each task counts the unread records of a share of them (history/sources/lag_samples.py): at most
`MOST_COUNTED` in all, of 1 MB each. The lag of the other partitions is in offsets.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from muster.client.plain.cluster import connect
from muster.client.plain.fetch import FetchSettings
from muster.clock import wall_clock_ms
from muster.errors import KafkaConnectionError, MusterError
from muster.history.entries.chunks import no_commits
from muster.history.lag import first_unread
from muster.history.lag.over_time import CommitTimeline, committed_partitions, lag_over_time, plan_lookups
from muster.history.lag.rows import CommitSeries, counted, lag_rows
from muster.history.model import GroupKind, Lag, LagSample, Limits
from muster.history.rows import day_of, from_table, to_table
from muster.history.sources.lag_samples import count_records, count_settings, ends_over_time
from muster.model import TopicPartition
from muster.spark.history.buckets import GroupStatus

log = logging.getLogger("muster.spark.history")

MOST_COUNTED = 4_000
"""The most partitions of groups whose records are counted at one reading."""
MOST_LOOKUPS = 400_000
"""How many past log ends are looked up, for all partitions and times together."""

Batches = Iterator[pa.RecordBatch]


def behind(
    settings: FetchSettings, limits: Limits, at_ms: int | None, tick_ms: int | None
) -> Callable[[Batches], Batches]:
    """For mapInArrow: `GroupStatus`s to rows of LAG, in offsets. `at_ms`: the current time; None: this machine's clock.
    Their day is that of the tick, which a replay repeats; without a tick, their own."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for data in batch.column("data"):
                now_ms = wall_clock_ms() if at_ms is None else at_ms
                table = to_table(Lag, _behind(settings, pickle.loads(data.as_py()), now_ms, limits))
                if tick_ms is not None:
                    days = pa.repeat(pa.scalar(day_of(tick_ms), pa.date32()), table.num_rows)
                    table = table.set_column(0, "day", days)
                yield from table.to_batches()

    return run


def _behind(settings: FetchSettings, statuses: Iterable[GroupStatus], at_ms: int, limits: Limits) -> list[Lag]:
    statuses = [status for status in statuses if status.kind is not GroupKind.SINK]
    try:
        bounds = connect(settings.client).bounds(
            TopicPartition(*name) for status in statuses for name in status.committed
        )
    except MusterError as error:
        log.warning("no lag this time: cannot look up where the logs end (%s)", error)
        return []
    return [
        row
        for group, committed, state, _ in statuses
        for row in lag_rows(
            CommitSeries(no_commits(), committed),
            [
                LagSample(at_ms, group, *place, *bounds[place])
                for place in sorted(TopicPartition(*name) for name in committed)
                if place in bounds
            ],
            state,
            limits,
        )
    ]


def count(settings: FetchSettings, most: int) -> Callable[[Batches], Batches]:
    """For mapInArrow: rows of LAG to the same rows, with records counted in the first `most` with unread ones."""
    limited = count_settings(settings)

    def run(batches: Batches) -> Batches:
        left = most
        for batch in batches:
            rows = []
            for row in from_table(Lag, batch):
                start = first_unread(row.committed_offset, row.log_start_offset)
                if left and start < row.log_end_offset:
                    left -= 1
                    try:
                        place = TopicPartition(row.topic, row.partition)
                        row = counted(row, *count_records(limited, place, start, row.log_end_offset))
                    except KafkaConnectionError as error:
                        left = 0  # one timeout is enough
                        log.warning("the lag of some partitions is in offsets: %s", error)
                rows.append(row)
            table = to_table(Lag, rows)
            yield from table.set_column(0, "day", batch.column("day")).to_batches()

    return run


# --- over time -------------------------------------------------------------------------------------------------------


def split(batches: Batches) -> Batches:
    """For mapInArrow: rows `data` (a pickled `CommitTimeline`) and `step_ms` (the longest of all) to one row for each
    partition."""
    for batch in batches:
        for row in batch.to_pylist():
            timeline: CommitTimeline = pickle.loads(row["data"])
            timeline.reach(0, row["step_ms"])
            places = {place for own in timeline.commits.values() for place in own}
            parts = [pickle.dumps(timeline.only(place), pickle.HIGHEST_PROTOCOL) for place in sorted(places)]
            yield pa.RecordBatch.from_pydict({"data": parts}, schema=pa.schema([pa.field("data", pa.binary())]))


def over_time(settings: FetchSettings, at_ms: int | None, most: int) -> Callable[[Batches], Batches]:
    """For mapInArrow: the rows of `split` to rows of LAG, with at most `most` lookups of log ends."""

    def run(batches: Batches) -> Batches:
        parts: list[CommitTimeline] = [pickle.loads(row["data"]) for batch in batches for row in batch.to_pylist()]
        if not parts:
            return
        now_ms = wall_clock_ms() if at_ms is None else at_ms
        times = sorted({each for timeline in parts for each in timeline.times(now_ms)})
        lookups = plan_lookups(
            list(dict.fromkeys(place for timeline in parts for place in committed_partitions(timeline))), times, most
        )
        if lookups.left_out:
            log.warning("the lag over time of %d partitions is omitted", lookups.left_out)
        try:
            ends = ends_over_time(connect(settings.client), lookups)
        except MusterError as error:
            log.warning("no lag over time: cannot look up where the logs ended (%s)", error)
            return
        rows = [row for timeline in parts for row in lag_over_time(timeline, lookups.times, ends)]
        yield from to_table(Lag, rows).to_batches()

    return run
