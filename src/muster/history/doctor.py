"""Reads and diagnoses the groups of a cluster or a folder: what `muster doctor` does before it prints.

Whatever could not be read or determined is listed in the report's warnings.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from muster.client.admin.admin import Admin
from muster.clock import wall_clock_ms
from muster.errors import KafkaError, MusterError
from muster.history.engine import GroupHistory, events_of, read_history, report
from muster.history.event_history import history_of
from muster.history.lag.rows import Committed
from muster.history.model import GroupKind, Lag, LagSample, Limits, TopicPartition
from muster.history.report import Report
from muster.history.rules.wording import count
from muster.history.sampler import offsets_of, sample
from muster.history.sources.cluster_limits import limits_of
from muster.history.sources.folder import FolderTopic, missing
from muster.history.sources.folder_logs import FolderLog, folder_logs, open_in_folder
from muster.history.sources.lag_samples import lag_samples, over_time
from muster.history.sources.live import LiveTopic, ReaderConfig, TopicRefusedError
from muster.history.sources.open_transactions import oldest_open
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.sources.reading import TopicSource

SAMPLE_MS = 30_000
"""How long groups are watched if their history is not readable."""
_UNKNOWN_MS = -1
"""When an offset was committed: the admin API does not report it."""


class Notify(Protocol):
    """Receives a sentence about each step that takes a long time."""

    def __call__(self, sentence: str, /) -> None: ...


class HistoryEngine(Protocol):
    """Turns a topic's records into rows: `read_history`, or another engine with the same result."""

    def __call__(
        self, topic: TopicSource, limits: Limits, groups: Collection[str] | None, now_ms: int | None, /
    ) -> GroupHistory: ...


class NoSuchGroupError(MusterError):
    """A requested group does not exist."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which groups to report on, and since when."""

    groups: Collection[str] = ()
    """Empty: all."""
    lookback_ms: int | None = None
    """Report only on this long before the end; None: on everything that was read."""


@dataclass(frozen=True, slots=True)
class HistoryReading:
    """Everything that was read, before the report is generated."""

    selection: Selection
    where: str
    until_ms: int
    history: GroupHistory
    warnings: ReaderWarnings
    limits: Limits = field(default_factory=Limits)
    samples: Sequence[LagSample] = ()
    over_time: Sequence[Lag] = ()
    events: Sequence[object] = ()

    def report(self, *, with_events: bool = True) -> Report:
        """The report. Without events every cause is inferred from the records, even if the broker recorded it."""
        events = self.events if with_events else ()
        lookback_ms = self.selection.lookback_ms
        since_ms = None if lookback_ms is None else self.until_ms - lookback_ms
        inputs = (self.samples, events, self.limits, since_ms, self.over_time)
        made = report(self.history, self.where, self.until_ms, *inputs)
        made.warnings = [*self.warnings.sentences(), *made.warnings]
        return made.of_groups(self.selection.groups) if self.selection.groups else made


def read_cluster(
    admin: Admin,
    config: ReaderConfig,
    selection: Selection,
    sample_ms: int | None,
    notify: Notify,
    engine: HistoryEngine = read_history,
) -> HistoryReading:
    """Read a cluster's history. If it is not readable, or `sample_ms` is given, watch the groups instead.

    Raises:
        NoSuchGroupError: one of the groups does not exist.
        MusterError: the cluster cannot be reached, or its answers are unusable.
    """
    warnings, groups = ReaderWarnings(), selection.groups
    limits = limits_of(admin, warnings)
    if selection.lookback_ms is not None:
        limits = replace(limits, since_ms=wall_clock_ms() - selection.lookback_ms)
    found: GroupHistory | None = None
    if sample_ms is None:
        try:
            topic = LiveTopic(admin, config, OFFSETS_TOPIC, warnings, groups)
            found = engine(topic, limits, groups or None, wall_clock_ms())
        except TopicRefusedError as error:
            found = _without_records(admin, config, groups, error, warnings, notify)
    if found is None:
        found = sample(admin, groups, sample_ms or SAMPLE_MS, warnings)
    events = _events(admin, config, warnings, groups)
    if sample_ms is None:
        _add_groups_of_events(admin, found, events, warnings)
    where = f"the cluster at {','.join(config.bootstrap_servers)}"
    _leave_out_sinks(found, groups, warnings)
    if not found.kinds.keys() >= set(groups):
        _check_exist(groups, found, where, _listed_groups(admin))
    now_ms = wall_clock_ms()
    samples = lag_samples(admin, config, found.committed, now_ms, warnings)
    behind = over_time(config, found.timeline, now_ms, samples, warnings)
    limits = replace(limits, open_transactions=oldest_open(admin, _behind(found, samples), now_ms, warnings))
    return HistoryReading(selection, where, now_ms, found, warnings, limits, samples, behind, events)


def read_folder(paths: Sequence[Path], selection: Selection, engine: HistoryEngine = read_history) -> HistoryReading:
    """Read the history in a broker's folders.

    Raises:
        NoSuchGroupError: one of the groups does not exist.
        MusterError: there is no readable log.
    """
    warnings = ReaderWarnings()
    try:
        topic, events_topic = (FolderTopic(paths, name, warnings) for name in (OFFSETS_TOPIC, EVENTS_TOPIC))
    except OSError as error:
        raise MusterError(f"{error.filename}: {error.strerror or error}") from error
    if not any(source.is_named or any(source.records.values()) for source in (topic, events_topic)):
        raise missing(paths, OFFSETS_TOPIC)
    limits = Limits()
    found = engine(topic, limits, selection.groups or None, None)
    events = events_of(events_topic, selection.groups)
    found.add(history_of(events, found.kinds, warnings))
    _leave_out_sinks(found, selection.groups, warnings)
    where = ", ".join(map(str, paths))
    _check_exist(selection.groups, found, where)
    until_ms = wall_clock_ms() if found.until_ms is None else found.until_ms
    logs = folder_logs(paths, {place for own in found.committed.values() for place in own}, warnings)
    samples = _samples_in(logs, found, until_ms, warnings)
    limits = replace(limits, open_transactions=open_in_folder(paths, logs, until_ms, warnings))
    return HistoryReading(selection, where, until_ms, found, warnings, limits, samples, events=events)


def _leave_out_sinks(found: GroupHistory, named: Collection[str], warnings: ReaderWarnings) -> None:
    found.leave_out_sinks(named)
    for group in sorted(set(named)):
        if found.kinds.get(group) is GroupKind.SINK:
            warnings.add(
                f"group {group} has no consumers: a task of muster's Spark sink records there which batches it has "
                "written, so the group has no lag and no findings"
            )


def _samples_in(
    logs: Mapping[TopicPartition, FolderLog], found: GroupHistory, at_ms: int, warnings: ReaderWarnings
) -> list[LagSample]:
    """The lag up to the ends of the logs in a folder; not known if a group has committed beyond the end of a log."""
    samples, absent, shorter = [], set[TopicPartition](), set[TopicPartition]()
    for group, own in sorted(found.committed.items()):
        for place, committed in sorted(own.items()):
            log = logs.get(place)
            if log is None:
                absent.add(place)
            elif committed.offset > log.end:
                shorter.add(place)
            else:
                samples.append(LagSample(at_ms, group, *place, log.start, log.end))
    if not samples:
        warnings.add("the lag is not known: the logs of other topics are not in the folder")
        return []
    warnings.add("the lag is counted in offsets, up to the ends of this broker's replicas in the folder")
    if absent:
        warnings.add(f"the lag of {count(len(absent), 'partition')} is not known: the folder does not have the logs")
    if shorter:
        warnings.add(
            f"the lag of {count(len(shorter), 'partition')} is not known: the logs end before the committed offsets, "
            "as in an older copy, or in a replica that lags behind"
        )
    return samples


def _behind(found: GroupHistory, samples: Iterable[LagSample]) -> dict[TopicPartition, int]:
    """The ends of the partitions in which a group is behind."""
    return {
        place: each.log_end_offset
        for each in samples
        if found.committed[each.group][place := (each.topic, each.partition)].offset < each.log_end_offset
    }


def _without_records(
    admin: Admin,
    config: ReaderConfig,
    groups: Collection[str],
    why: TopicRefusedError,
    warnings: ReaderWarnings,
    notify: Notify,
) -> GroupHistory | None:
    """An empty history if no group needs to be watched, otherwise None."""
    warnings.add(str(why))
    if not admin.list_consumer_groups():
        return GroupHistory()  # the topic is created with the first group
    if _events(admin, config, warnings, groups):
        return GroupHistory()  # the groups are stored elsewhere, and the brokers' events report on them
    notify(f"{why}: watching the groups for {SAMPLE_MS // 1000} s instead (--sample sets how long)")
    return None


def _add_groups_of_events(
    admin: Admin, found: GroupHistory, events: Sequence[object], warnings: ReaderWarnings
) -> None:
    """Add the groups that have events but no records, with their committed offsets."""
    added = history_of(events, found.kinds, warnings)
    for group in sorted(added.kinds):
        offsets = offsets_of(admin, group, warnings) or {}
        added.committed[group] = {
            (place.topic, place.partition): Committed(position.offset, _UNKNOWN_MS)
            for place, position in offsets.items()
        }
    found.add(added)


def _events(admin: Admin, config: ReaderConfig, warnings: ReaderWarnings, groups: Collection[str]) -> list[object]:
    try:
        topic = LiveTopic(admin, config, EVENTS_TOPIC, warnings)
        if topic.is_internal:
            return events_of(topic, groups)
        warnings.add(f"the topic {EVENTS_TOPIC} was created by a user, so the causes in it are ignored")
        return []
    except (TopicRefusedError, KafkaError):
        return []  # Apache Kafka has no such topic


def _listed_groups(admin: Admin) -> list[str]:
    try:
        return [one.group_id for one in admin.list_consumer_groups()]
    except KafkaError:
        return []


def _check_exist(groups: Collection[str], found: GroupHistory, where: str, others: Iterable[str] = ()) -> None:
    known = {*found.kinds, *others}
    for group in groups:
        if group not in found.kinds:
            near = difflib.get_close_matches(group, known - {group}, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NoSuchGroupError(f"{where} has no group {group!r}{hint}")
