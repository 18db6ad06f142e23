"""What the rules say of a recorded scenario, held against what was scripted."""

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
"""A cause with less confidence is a guess, and is to say so."""
SLACK_MS = 50
"""A window's ends and a record's time were read at different moments."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that was scripted, and which causes the rules found for it."""

    about: str
    cause: str
    """The scripted one; `no rebalance` where there is to be none."""
    allowed: frozenset[str]
    """Causes that rows of this window may have."""
    found: tuple[Rebalance, ...]
    pattern: str | None = None
    """What the rows of this window are together, if they were scripted as a pattern."""

    @property
    def right(self) -> bool:
        """Whether each row has a cause that it may have, and the scripted one is among what they name; and whether just
        the rows of a scripted pattern are part of one."""
        named = {cause for row in self.found for cause in causes_of(row)}
        patterns = {None if row.pattern is None else str(row.pattern.kind) for row in self.found}
        return (
            all(map(self._may_be, self.found))
            and (self.cause in named or self.cause == NONE)
            and patterns <= {self.pattern}
        )

    def _may_be(self, row: Rebalance) -> bool:
        """A row that says it is little more than a guess has to name the cause, not to be right."""
        if row.confidence < SURE and row.alternatives:
            return bool(causes_of(row) & self.allowed)
        if row.cause is Cause.MEMBER_GONE:
            return bool(DEPARTURES & self.allowed)
        return str(row.cause) in self.allowed


def causes_of(row: Rebalance) -> set[str]:
    """The cause of a row, and the others that it names."""
    return {str(row.cause), *(str(other.cause) for other in row.alternatives)}


def files() -> list[str]:
    """The corpus."""
    return sorted(path.name for path in CORPUS.glob("*.json.gz"))


@cache
def load(name: str) -> dict[str, Any]:
    """A file of the corpus."""
    loaded: dict[str, Any] = json.loads(gzip.decompress((CORPUS / name).read_bytes()))
    return loaded


def limits_of(kept: Mapping[str, Any]) -> Limits:
    """What the rules are told of the brokers' settings and of topics' ids."""
    settings = kept.get("settings", {})
    names = {topic_id: topic for topic, topic_id in kept.get("topic_ids", {}).items()}
    return Limits(
        offsets_retention_ms=int(settings.get("offsets.retention.minutes", 10_080)) * 60_000,
        consumer_session_timeout_ms=int(settings.get("group.consumer.session.timeout.ms", 6_000)),
        topic_names=names,
    )


@cache
def found_in(name: str) -> tuple[Verdict, ...]:
    """What the rules say of a file of the corpus."""
    kept = load(name)
    return tuple(verdicts(kept, history_of(kept).rebalances))


def history_of(kept: Mapping[str, Any]) -> Rows:
    """All rows that the rules make of a file's records."""
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
    """A file's records, or some of them, as the rules take them."""
    columns = [list(column) for column in zip(*records, strict=True)]
    columns[4] = [base64.b64decode(key) for key in columns[4]]
    columns[5] = [None if value is None else base64.b64decode(value) for value in columns[5]]
    return completed(pa.table(columns, schema=pa.schema(list(RAW)[: len(columns)])), RAW)


def verdicts(kept: Mapping[str, Any], rebalances: Sequence[Rebalance]) -> Iterator[Verdict]:
    """One for each thing that was scripted, in the order of time, and one for rebalances that nothing explains.

    A rebalance belongs to what had begun latest when its generation was written.
    """
    scripted = sorted([*kept["truth"], *kept["quiet"]], key=lambda told: int(told["at_ms"]))
    theirs: dict[int, list[Rebalance]] = {at: [] for at in range(-1, len(scripted))}
    for row in rebalances:
        begun = [
            at
            for at, told in enumerate(scripted)
            if told["group"] == row.group and told["at_ms"] - SLACK_MS <= row.at_ms <= told["until_ms"] + SLACK_MS
        ]
        if row.generation != row.previous_generation:  # a static member that takes its place again: none
            theirs[begun[-1] if begun else -1].append(row)
    for at, told in enumerate(scripted):
        cause = told.get("cause", NONE)
        allowed = frozenset() if cause == NONE else frozenset((cause, *told.get("also", ())))
        yield Verdict(told["about"], cause, allowed, tuple(theirs[at]), told.get("pattern"))
    if theirs[-1]:
        yield Verdict("outside of what was scripted", NONE, frozenset(), tuple(theirs[-1]))
