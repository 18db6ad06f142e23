"""What the rules say about a recorded scenario, compared with what was scripted."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.model import DEPARTURES, Cause, Limits, Rebalance, Rows
from muster.history.rules import fold as rules
from muster.history.tables import RAW, completed

CORPUS = Path(__file__).parent / "corpus"
NONE = "no rebalance"
SURE = 0.6
"""A cause with less confidence is a guess."""
SLACK_MS = 50
"""A window's ends and a record's time were read at different moments."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that was scripted, and which causes the rules found for it."""

    about: str
    cause: str
    """The scripted one; `no rebalance` if none is expected."""
    allowed: frozenset[str]
    """Causes that rows of this window may have."""
    found: tuple[Rebalance, ...]
    pattern: str | None = None
    """The pattern that the rows of this window form together, if it was scripted."""

    @property
    def right(self) -> bool:
        """Whether each row has an allowed cause, the rows name the scripted one, and exactly the rows of a scripted
        pattern are part of one."""
        named = {cause for row in self.found for cause in causes_of(row)}
        patterns = {None if row.pattern is None else str(row.pattern.kind) for row in self.found}
        return (
            all(map(self._may_be, self.found))
            and (self.cause in named or self.cause == NONE)
            and patterns <= {self.pattern}
        )

    def _may_be(self, row: Rebalance) -> bool:
        """A row with low confidence only has to name an allowed cause among its alternatives."""
        if row.confidence < SURE and row.alternatives:
            return bool(causes_of(row) & self.allowed)
        if row.cause is Cause.MEMBER_GONE:
            return bool(DEPARTURES & self.allowed)
        return str(row.cause) in self.allowed


def causes_of(row: Rebalance) -> set[str]:
    """The cause of a row, and its alternatives."""
    return {str(row.cause), *(str(other.cause) for other in row.alternatives)}


def files() -> list[str]:
    """The names of the files in the corpus."""
    return sorted(path.name for path in CORPUS.glob("*.json.gz"))


@cache
def load(name: str) -> dict[str, Any]:
    """A file of the corpus."""
    loaded: dict[str, Any] = json.loads(gzip.decompress((CORPUS / name).read_bytes()))
    return loaded


def limits_of(kept: Mapping[str, Any]) -> Limits:
    """The brokers' settings and the topic ids that the rules are given."""
    settings = kept.get("settings", {})
    names = {topic_id: topic for topic, topic_id in kept.get("topic_ids", {}).items()}
    return Limits(
        offsets_retention_ms=int(settings.get("offsets.retention.minutes", 10_080)) * 60_000,
        consumer_session_timeout_ms=int(settings.get("group.consumer.session.timeout.ms", 6_000)),
        topic_names=names,
    )


@cache
def found_in(name: str) -> tuple[Verdict, ...]:
    """The verdicts on a file of the corpus."""
    kept = load(name)
    return tuple(verdicts(kept, history_of(kept).rebalances))


def history_of(kept: Mapping[str, Any]) -> Rows:
    """All rows that the rules derive from a file's records."""
    rows = Rows()
    limits = limits_of(kept)
    for partition in sorted({record[0] for record in kept["records"]}):
        entries = decode(raw_table([record for record in kept["records"] if record[0] == partition])).entries
        end_ms = max(record[2] for record in kept["records"])
        for chunk in chunks(entries, end_ms):
            state = rules.start(chunk.group, limits)
            rows.extend(rules.fold(state, chunk))
            rows.extend(rules.finish(state, end_ms))
    return rows


def raw_table(records: Sequence[Sequence[Any]]) -> pa.Table:
    """A file's records, or some of them, in the form that the rules take."""
    columns = [list(column) for column in zip(*records, strict=True)]
    columns[4] = [base64.b64decode(key) for key in columns[4]]
    columns[5] = [None if value is None else base64.b64decode(value) for value in columns[5]]
    return completed(pa.table(columns, schema=pa.schema(list(RAW)[: len(columns)])), RAW)


def verdicts(kept: Mapping[str, Any], rebalances: Sequence[Rebalance]) -> Iterator[Verdict]:
    """One verdict for each thing that was scripted, in order of time, and one for rebalances that nothing explains.

    A rebalance belongs to what began last before its generation was written.
    """
    scripted = sorted([*kept["truth"], *kept["quiet"]], key=lambda told: int(told["at_ms"]))
    theirs: dict[int, list[Rebalance]] = {at: [] for at in range(-1, len(scripted))}
    for row in rebalances:
        begun = [
            at
            for at, told in enumerate(scripted)
            if told["group"] == row.group and told["at_ms"] - SLACK_MS <= row.at_ms <= told["until_ms"] + SLACK_MS
        ]
        if row.generation != row.previous_generation:  # a restarted static member: no rebalance
            theirs[begun[-1] if begun else -1].append(row)
    for at, told in enumerate(scripted):
        cause = told.get("cause", NONE)
        allowed = frozenset() if cause == NONE else frozenset((cause, *told.get("also", ())))
        yield Verdict(told["about"], cause, allowed, tuple(theirs[at]), told.get("pattern"))
    if theirs[-1]:
        yield Verdict("outside of what was scripted", NONE, frozenset(), tuple(theirs[-1]))
