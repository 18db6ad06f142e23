"""One look at the groups of a cluster or a folder: what `muster doctor` does before it prints.

Everything that could not be read or known is among the report's warnings.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from muster.client.admin import Admin
from muster.errors import KafkaError, MusterError
from muster.history.cluster_limits import limits_of
from muster.history.ends import lag_samples
from muster.history.engine import History, events_of, read_history, report
from muster.history.folder import FolderTopic, missing
from muster.history.live import LiveTopic, RefusedError
from muster.history.model import Limits
from muster.history.raw import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.history.remarks import Remarks
from muster.history.report import Report
from muster.history.sampler import sample

SAMPLE_MS = 30_000
"""How long groups are watched where their history may not be read."""


class Teller(Protocol):
    """Told what takes long, in a sentence."""

    def __call__(self, sentence: str, /) -> None: ...


class NoSuchGroupError(MusterError):
    """A group was asked for that is not there."""


def at_cluster(
    admin: Admin,
    bootstrap: tuple[str, ...],
    groups: Collection[str],
    sample_ms: int | None,
    tell: Teller,
    *,
    with_events: bool = True,
) -> Report:
    """Read a cluster's history. Where it may not be read, or a time to watch is given, the groups are watched.

    Without events every cause is inferred from the records, also where the broker wrote why.

    Raises:
        NoSuchGroupError: one of the groups is not there.
        MusterError: the cluster cannot be reached, or answers nothing that helps.
    """
    remarks = Remarks()
    limits = limits_of(admin)
    found: History | None = None
    if sample_ms is None:
        try:
            topic = LiveTopic(admin, bootstrap, OFFSETS_TOPIC, remarks)
            found = read_history(topic, limits, groups or None, _now_ms())
        except RefusedError as error:
            remarks.add(str(error))
            tell(f"{error}: watching the groups for {SAMPLE_MS // 1000} s instead (--sample says how long)")
    if found is None:
        found = sample(admin, groups, sample_ms or SAMPLE_MS, remarks)
    where = f"the cluster at {','.join(bootstrap)}"
    _check(groups, found, where)
    now_ms = _now_ms()
    samples = lag_samples(admin, bootstrap, found.committed, now_ms, remarks)
    events = _events(admin, bootstrap, remarks) if with_events else []
    return _finished(report(found, where, now_ms, samples, events, limits), groups, remarks)


def at_folder(paths: Sequence[Path], groups: Collection[str]) -> Report:
    """Read the history in a broker's folders.

    Raises:
        NoSuchGroupError: one of the groups is not there.
        MusterError: there is no log that can be read.
    """
    remarks = Remarks()
    try:
        topic = FolderTopic(paths, OFFSETS_TOPIC, remarks)
    except OSError as error:
        raise MusterError(f"{error.filename}: {error.strerror or error}") from error
    if not topic.is_named and not any(topic.records.values()):
        raise missing(paths, OFFSETS_TOPIC)
    found = read_history(topic, Limits(), groups or None, None)
    where = ", ".join(map(str, paths))
    _check(groups, found, where)
    events = events_of(FolderTopic(paths, EVENTS_TOPIC, remarks))
    remarks.add("a folder does not tell where the logs of other topics end: the lag is not known")
    return _finished(report(found, where, found.until_ms or 0, (), events), groups, remarks)


def _finished(made: Report, groups: Collection[str], remarks: Remarks) -> Report:
    made.warnings = [*remarks.sentences(), *made.warnings]
    return made.of_groups(groups) if groups else made


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _events(admin: Admin, bootstrap: tuple[str, ...], remarks: Remarks) -> list[object]:
    try:
        return events_of(LiveTopic(admin, bootstrap, EVENTS_TOPIC, remarks))
    except (RefusedError, KafkaError):
        return []  # Apache Kafka has no such topic


def _check(groups: Collection[str], found: History, where: str) -> None:
    for group in groups:
        if group not in found.kinds:
            near = difflib.get_close_matches(group, found.kinds, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NoSuchGroupError(f"{where} has nothing about a group {group!r}{hint}")
