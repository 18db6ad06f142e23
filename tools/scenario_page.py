"""Writes docs/reference/history-scenarios.md from the recorded scenarios. `python -m tools.scenario_page` updates
it."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.history import record as record  # imported so that all scripts are in PLAYS
from tests.history.scenarios.plays import PLAYS
from tests.history.verdicts import NONE, Verdict, files, found_in, load

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "history-scenarios.md"

REWORDED = {
    r"^1 members subscribe at once": "a member subscribes",
    r"\bat once, one topic is not there yet": "at once; one topic does not exist yet",
    r", its poll interval is (\S+ s)": r" (poll interval: \1)",
    r", its session is (\S+ s)": r" (session timeout: \1)",
    r", m1 is busy for 8 s, meanwhile": " while m1 is busy for 8 s; meanwhile",
    r", 4 s later": "; 4 s later",
    r"which come back at once": "which rejoin immediately",
    r"four times, and is started again at once": "four times, and is restarted immediately each time",
    r"four times, and is started again after each": "four times, and is restarted each time",
    r"and is started again at once": "and is restarted immediately",
    r"replaced at once, then m3 and m4": "replaced together, then m3 and m4",
    r"replaced, each of the new ones joins": "replaced; each new one joins",
    r"that subscribe to a second topic besides": "that also subscribe to a second topic",
    r"subscribes to a second topic besides": "also subscribes to a second topic",
    r"\balone$": "only",
    r"exchange nothing from now on": "can no longer reach each other",
    r"of a share group come, and one leaves": "join a share group, and one leaves",
    r"of a streams group come, and one is closed": "of a streams group start, and one is closed",
    r"of a streams group come and leave": "join a streams group and leave",
    r"one each (two seconds|second)": r"one every \1",
    r"without subscription": "without a subscription",
    r"takes m3's instance id over, and the first is fenced": "takes over m3's instance id, and m3 is fenced",
    r"which says nothing for good, and its session expires": "does not leave the group, and its session expires",
    r"\bby an expression\b": "by a regular expression",
    r"^all (are|close) ": r"all members \1 ",
    r"^its offsets expire": "the group's offsets expire",
}
"""Patterns in the texts of recordings, which stay as they were recorded, and the wording of the page."""

HEAD = """\
# Scenarios, and the causes found

The causes that the history finds for each action on a group in a recorded scenario (`tests/history`): real clients on a
real cluster. The rules read only its `__consumer_offsets`, not what the brokers knew (their log, muster's events).

`python -m tools.scenario_page` writes this page; a test checks that it is up to date.

A scenario is recorded with several clients: Java's consumer and librdkafka (through confluent-kafka) with all
protocols, `range` (eager), `cooperative` (sticky) and `consumer` (KIP-848); kafka-python, aiokafka and muster's
consumer; members that are not plain consumers, with their own protocols (`connect`, `sr`, `share`, `streams`). "On
muster" is `muster serve`; all others are Apache Kafka 4.2. `python -m tests.history.record` records the scenarios
again.

Some scenarios (`unseen_*_plays.py`) were written by someone who had not read the rules, and measured before the rules
were changed because of them: [history.md](history.md#results-on-unseen-scripts) has those figures.

If a row has two causes, the records fit both (a member that never commits may have left or crashed): the history names
the first with low confidence and the other as an alternative, with what would distinguish them. "Part of" is the
pattern that the rebalances of a row form together, as scripted and as found.

"""


def page() -> str:
    """The text of docs/reference/history-scenarios.md."""
    told = [(name, each) for name in files() for each in found_in(name)]
    return HEAD + "".join(f"{line}\n" for line in [*_measured([each for _, each in told]), "", *_table(told)])


def _measured(told: list[Verdict]) -> Iterator[str]:
    """How often a scripted cause was found, and a found cause was scripted."""
    yield "## In figures"
    yield ""
    yield "| cause | scripted | of these found | rows with it | of these scripted |"
    yield "|---|---|---|---|---|"
    rows = [(str(row.cause), each) for each in told for row in each.found]
    for cause in sorted({each.cause for each in told} - {NONE} | {cause for cause, _ in rows}):
        scripted = [each for each in told if each.cause == cause]
        found = sum(any(str(row.cause) == cause for row in each.found) for each in scripted)
        mine = [each for name, each in rows if name == cause]
        yield f"| `{cause}` | {len(scripted)} | {found} | {len(mine)} | {sum(cause in each.allowed for each in mine)} |"
    quiet = [each for each in told if each.cause == NONE]
    yield f"| {NONE} | {len(quiet)} | {sum(not each.found for each in quiet)} | | |"


def _table(told: list[tuple[str, Verdict]]) -> Iterator[str]:
    yield "## Scenario by scenario"
    scripts: dict[str, dict[tuple[str, str], list[tuple[str, Verdict]]]] = {}
    abouts = {}
    for name, each in told:
        kept = load(name)
        script, flavour = _parts(kept["scenario"])
        abouts[script] = _docstrings().get(script, kept["about"].split("\n")[0])
        where = {"muster": " on muster"}.get(kept["cluster"], "")
        scripts.setdefault(script, {}).setdefault((_reworded(each.about), each.cause), []).append(
            (flavour + where, each)
        )
    for script, things in scripts.items():
        yield ""
        yield f"### {script.replace('-', ' ')}"
        yield ""
        yield abouts[script]
        yield ""
        yield "| what was done | cause | found | clients |"
        yield "|---|---|---|---|"
        for (about, cause), recorded in things.items():
            yield from _rows(about, cause, recorded)


def _parts(scenario: str) -> tuple[str, str]:
    """`crash-kafka-python-range` is the script `crash` with the flavour `kafka-python range`."""
    for client in ("java", "confluent", "kafka-python", "aiokafka", "muster-async", "muster"):
        script, found, protocol = scenario.rpartition(f"-{client}-")
        if found:
            return script, f"{'librdkafka' if client == 'confluent' else client} {protocol}"
    raise ValueError(scenario)


@cache
def _docstrings() -> dict[str, str]:
    """The current descriptions of the scripts, by scenario: those in recordings may be older."""
    said = {each.script.__name__.replace("_", "-"): inspect.getdoc(each.script) or "" for each in PLAYS}
    return {name: " ".join(text.partition("\n\n")[0].split()) for name, text in said.items() if text}


def _reworded(about: str) -> str:
    for pattern, words in REWORDED.items():
        about = re.sub(pattern, words, about)
    return about


def _rows(about: str, cause: str, told: Iterable[tuple[str, Verdict]]) -> Iterator[str]:
    by_finding: dict[str, list[str]] = {}
    for flavour, each in told:
        by_finding.setdefault(_finding(each), []).append(flavour)
    for finding, flavours in by_finding.items():
        scripted = cause if cause == NONE else f"`{cause}`"
        yield f"| {about} | {scripted} | {finding} | {', '.join(dict.fromkeys(flavours))} |"


def _finding(each: Verdict) -> str:
    """The causes of the rows in their order, each with how often it occurred."""
    counted = Counter(_named(each, str(row.cause)) for row in each.found)
    found = ", ".join(cause if count == 1 else f"{count} × {cause}" for cause, count in counted.items()) or NONE
    parts = {str(row.pattern.kind) for row in each.found if row.pattern is not None}
    return found + "".join(f"; part of `{kind}`" for kind in sorted(parts))


def _named(each: Verdict, cause: str) -> str:
    if cause == each.cause or each.cause in {str(row.cause) for row in each.found}:
        return f"`{cause}`"
    return f"`{cause}` or `{each.cause}`"


if __name__ == "__main__":
    PAGE.write_text(page())
