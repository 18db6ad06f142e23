"""What the doctor says about the recorded stories, compared with what was done.

A row (a rebalance's first phase) belongs to the window of acts in which it was written. Its cause is right if acts of
that window explain it: those of its own members, if it names any. What the log cannot show is defined in
`truth.NOT_IN_THE_LOG`. `python -m tests.history.stories.score [FILE…]` prints each story with everything that is not
right.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster.history import engine
from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.model import LagSample, Rebalance
from muster.history.report import Report
from tests.history.stories import truth
from tests.history.stories.truth import SLACK_MS, UNSURE, Deed, Expectation, Window
from tests.history.verdicts import CORPUS, limits_of, raw_table

STORIES = CORPUS / "stories"
RECENTLY_MS = 3_000
"""Members commit each second or at each poll: one that has not committed for this long had nothing to commit."""

GONE = "member_gone"
"""Says that a member is gone, but not why: all that can be said about a silent one, and too little about any other."""

RIGHT, WRONG, NOT_KNOWN, OPEN = "right", "wrong", "not known", "open"


@dataclass(frozen=True)
class Said:
    """One row of the history, and the verdict on it. `open`: the log does not show the cause, and the row does not
    claim to know it."""

    story: str
    row: Rebalance
    verdict: str
    is_true: bool
    """Whether the cause fits what was done, whatever the row claims."""
    done: str
    fits: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """One window in which something was done that the log shows, and whether a row names it."""

    about: str
    causes: frozenset[str]
    named: bool


@dataclass(frozen=True)
class Scored:
    """One story."""

    name: str
    kept: dict[str, Any]
    rows: tuple[Said, ...]
    done: tuple[Done, ...]
    patterns: tuple[tuple[Rebalance, str, str, bool], ...]
    """Rows for which a pattern was found or true: the row, the pattern found, the true ones, whether it is right."""
    expected: Expectation
    findings: frozenset[str]

    @property
    def right_findings(self) -> list[frozenset[str]]:
        return [rules for rules in self.expected.must if rules & self.findings]

    @property
    def missing_findings(self) -> list[frozenset[str]]:
        return [rules for rules in self.expected.must if not rules & self.findings]

    @property
    def wrong_findings(self) -> list[str]:
        return sorted(self.findings - self.expected.may - frozenset().union(*self.expected.must))


def files(folder: Path = STORIES) -> list[Path]:
    """The recorded stories."""
    return sorted(folder.glob("*.json.gz"))


@cache
def load(path: Path) -> dict[str, Any]:
    """One recorded story."""
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


class _Recorded:
    """A recording as a source of the engine."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self._rows = kept["records"]
        self.records = dict.fromkeys(sorted({row[0] for row in self._rows}), 1)

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        yield from raw_table([row for row in self._rows if row[0] == partition]).to_batches()


def report_of(kept: dict[str, Any]) -> Report:
    """The doctor's report on a recording: causes, the lag at the end, findings."""
    limits = limits_of(kept)
    until_ms = max(row[2] for row in kept["records"])
    found = engine.read_history(_Recorded(kept), limits, None, None)
    samples = [
        LagSample(until_ms, group, topic, partition, start, end)
        for group in found.kinds
        for topic, ends in kept["topics"].items()
        for partition, (start, end) in enumerate(ends)
    ]
    return engine.report(found, kept["story"], until_ms, samples, limits=limits)


@cache
def score(path: Path) -> Scored:
    """Judge one story."""
    kept = load(path)
    report = report_of(kept)
    silences = _Silences(kept, report)
    windows = [_with_silence(window, silences) for window in truth.windows(kept)]
    rows = [row for row in report.rebalances if row.phase == 1]
    said = [_judged(kept, row, windows) for row in rows]
    tellable = [deed for window in windows for deed in window.deeds if not deed.not_in_the_log]
    return Scored(
        kept["story"],
        kept,
        tuple(said),
        tuple(_done(windows, rows)),
        tuple(_patterns(kept, windows, rows)),
        truth.expectation(kept, tellable),
        frozenset(finding.rule for finding in report.findings),
    )


# ---------------------------------------------------------------------------------------------------------- causes


def _judged(kept: dict[str, Any], row: Rebalance, windows: Sequence[Window]) -> Said:
    window = _window_of(row, windows)
    deeds = _deeds_of(row, window) if window is not None else ()
    allowed = frozenset().union(*(deed.allowed for deed in deeds)) if deeds else frozenset()
    cause = str(row.cause)
    gone = bool(deeds) and cause == GONE and any(deed.direction == "out" for deed in deeds)
    is_true = cause in allowed or gone
    unclear = bool(deeds) and any(deed.not_in_the_log for deed in deeds)
    if unclear and (row.confidence < UNSURE or cause == "not_known"):
        verdict = OPEN
    elif gone and not unclear:
        verdict = NOT_KNOWN  # true, but the log says more
    elif is_true:
        verdict = RIGHT
    else:
        verdict = NOT_KNOWN if cause == "not_known" else WRONG
    done = ", ".join(_told(deed) for deed in deeds) or (
        "nothing" if window is None else ", ".join(_told(deed) for deed in window.deeds)
    )
    return Said(kept["story"], row, verdict, is_true, done, tuple(sorted(allowed)))


def _window_of(row: Rebalance, windows: Sequence[Window]) -> Window | None:
    """The latest window that had begun when the row's generation was written."""
    return next((window for window in reversed(windows) if window.has(row.at_ms)), None)


def _deeds_of(row: Rebalance, window: Window) -> tuple[Deed, ...]:
    """What was done in the window before the row, only to the members that the row names, if it names any."""
    begun = tuple(deed for deed in window.deeds if deed.act["at_ms"] - SLACK_MS <= row.at_ms)
    went = {member.client_id for member in row.left}
    went |= {change.before.client_id for change in row.replaced if change.before is not None}
    came = {change.member.client_id for change in (*row.joined, *row.replaced)}
    theirs = tuple(
        deed
        for deed in begun
        if (deed.direction == "out" and deed.members & went) or (deed.direction == "in" and deed.members & came)
    )
    return theirs or begun


def _told(deed: Deed) -> str:
    """`kill m2 (silent)`."""
    why = f" ({deed.not_in_the_log})" if deed.not_in_the_log else ""
    return " ".join([deed.act["do"], *deed.act["members"]]) + why


def _done(windows: Iterable[Window], rows: Sequence[Rebalance]) -> Iterator[Done]:
    """Each window with something that must lead to a rebalance and that the log shows."""
    windows = list(windows)
    for window in windows:
        musts = [deed for deed in window.deeds if deed.must and not deed.not_in_the_log]
        if not musts:
            continue
        causes = frozenset().union(*(deed.causes for deed in musts))
        theirs = [row for row in rows if _window_of(row, windows) is window]
        named = {str(row.cause) for row in theirs} | {str(other.cause) for row in theirs for other in row.alternatives}
        yield Done(", ".join(_told(deed) for deed in window.deeds), causes, bool(named & causes))


class _Silences:
    """Which members had committed nothing when they left or died: read from the records, without a rule."""

    def __init__(self, kept: dict[str, Any], report: Report) -> None:
        self._generations = report.generations
        self._session_ms = int(
            kept["config"].get("session.timeout.ms", kept["settings"]["group.consumer.session.timeout.ms"])
        )
        self._commits: dict[tuple[str, int], list[int]] = {}
        for partition in sorted({row[0] for row in kept["records"]}):
            entries = decode(raw_table([row for row in kept["records"] if row[0] == partition])).entries
            for chunk in chunks(entries, None):
                for at, commit_ms in zip(chunk.commits.partition, chunk.commits.commit_ms, strict=True):
                    self._commits.setdefault(chunk.commits.names[at], []).append(int(commit_ms))

    def of(self, deed: Deed) -> bool:
        """Whether one of the deed's members was silent: for a session timeout if it left, otherwise when it was
        stopped."""
        at_ms = deed.act["at_ms"]
        since_ms, until_ms = at_ms - RECENTLY_MS, at_ms + SLACK_MS
        if deed.act["do"] == "leave" and deed.act.get("how") != "stay":
            since_ms, until_ms = at_ms - self._session_ms, deed.act["until_ms"]
        return any(not self._has_committed(label, since_ms, until_ms, at_ms) for label in deed.members)

    def _has_committed(self, label: str, since_ms: int, until_ms: int, at_ms: int) -> bool:
        before = [each for each in self._generations if each.started_ms <= at_ms]
        mine = [(each.started_ms, member) for each in before for member in each.members if member.client_id == label]
        if not mine:
            return False
        _, latest = mine[-1]
        began_ms = min(started_ms for started_ms, member in mine if member.member_id == latest.member_id)
        return any(
            max(since_ms, began_ms) <= commit_ms <= until_ms
            for place in latest.assignment
            for commit_ms in self._commits.get(place, ())
        )


def _with_silence(window: Window, silences: _Silences) -> Window:
    """The window, marked with what the log does not show."""
    deeds = tuple(
        replace(deed, not_in_the_log="silent") if deed.direction == "out" and silences.of(deed) else deed
        for deed in window.deeds
    )
    return replace(window, deeds=deeds)


# -------------------------------------------------------------------------------------------------------- patterns


def _pattern_said(row: Rebalance) -> str:
    return str(row.pattern.kind) if row.pattern is not None else ""


def _patterns(
    kept: dict[str, Any], windows: Sequence[Window], rows: Iterable[Rebalance]
) -> Iterator[tuple[Rebalance, str, str, bool]]:
    for row in rows:
        window = _window_of(row, windows)
        true, may = truth.patterns_of(window, kept) if window is not None else (set(), set())
        said = _pattern_said(row)
        if row.generation == row.previous_generation or not (row.joined or row.left or row.replaced):
            true, may = set(), true | may  # no rebalance, an act of the client itself, or a changed subscription
        if said or true:
            right = said in true | may if said else not true
            yield row, said, " or ".join(sorted(true)), right


# --------------------------------------------------------------------------------------------------------- printed


def printed(scored: Scored) -> Iterator[str]:
    """The report on a story: a line of sums, and a line for each thing that is not right."""
    count = {
        verdict: sum(said.verdict == verdict for said in scored.rows) for verdict in (RIGHT, WRONG, NOT_KNOWN, OPEN)
    }
    counted = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    yield f"{scored.name} (Kafka {scored.kept['kafka']}, records {scored.kept['traffic']}): {counted}"
    for said in scored.rows:
        if said.verdict in (WRONG, NOT_KNOWN):
            row = said.row
            told = f"generation {row.generation}: found {row.cause} ({row.confidence:.2f}), done: {said.done}"
            yield f"  {said.verdict.upper()} {told}, expected {' or '.join(said.fits) or 'no rebalance'}"
    for done in scored.done:
        if not done.named:
            yield f"  NOT NAMED {done.about}: {' or '.join(sorted(done.causes))}"
    for row, pattern, true, right in scored.patterns:
        if not right:
            yield f"  PATTERN generation {row.generation}: found {pattern or 'none'}, expected {true or 'none'}"
    for rule in scored.wrong_findings:
        healthy = " of a healthy group" if scored.expected.is_healthy else ""
        yield f"  FINDING {rule} is wrong{healthy}"
    for rules in scored.missing_findings:
        yield f"  FINDING {' or '.join(sorted(rules))} is missing"


def totals(all_scored: Sequence[Scored]) -> dict[str, Any]:
    """The sums over all stories."""
    rows = [said for scored in all_scored for said in scored.rows]
    done = [each for scored in all_scored for each in scored.done]
    sure = [said for said in rows if said.row.confidence >= 0.9]
    patterns = [each for scored in all_scored for each in scored.patterns]
    return {
        "stories": len(all_scored),
        "rows": len(rows),
        **{verdict: sum(said.verdict == verdict for said in rows) for verdict in (RIGHT, WRONG, NOT_KNOWN, OPEN)},
        "wrong_and_sure": sum(said.verdict == WRONG and said.row.confidence >= UNSURE for said in rows),
        "done": len(done),
        "named": sum(each.named for each in done),
        "sure_rows": len(sure),
        "sure_and_true": sum(said.is_true for said in sure),
        "patterns": len(patterns),
        "patterns_right": sum(right for *_, right in patterns),
        "findings_right": sum(len(scored.right_findings) for scored in all_scored),
        "findings_wrong": sum(len(scored.wrong_findings) for scored in all_scored),
        "findings_missing": sum(len(scored.missing_findings) for scored in all_scored),
        "healthy": sum(scored.expected.is_healthy for scored in all_scored),
        "accused": sum(scored.expected.is_healthy and bool(scored.findings) for scored in all_scored),
    }


def main() -> None:
    """Print the score of the files named on the command line, or of all."""
    paths = [Path(name) for name in sys.argv[1:]] or files()
    all_scored = [score(path) for path in paths]
    for scored in all_scored:
        print("\n".join(printed(scored)))
    print(json.dumps(totals(all_scored), indent=1))


if __name__ == "__main__":
    main()
