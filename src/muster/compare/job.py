"""All runs of a comparison, one after another, each on servers that were started for it; and how it ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from muster.clock import wall_clock_ms
from muster.compare.page import FIGURES, render
from muster.compare.rules.checks import ResultCheck, is_well, judge
from muster.compare.rules.formulas import TITLES, Scheme
from muster.compare.rules.results import Results, SchemeRun, to_json
from muster.compare.rules.workload import differing_script, fragile
from muster.compare.servers import UserServers, start_ensemble, start_servers
from muster.compare.trial import Trial, TrialOptions

STORY = 5
_MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "–"}


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """The options of the command line."""

    out: Path
    """An empty folder."""
    schemes: Sequence[Scheme]
    sizes: Sequence[int]
    given: UserServers
    differing: bool
    """Whether to add a run on ZooKeeper servers whose states differ for a while."""


async def run(wanted: ComparisonOptions, note: Callable[[str], None]) -> Results:
    """Run each scheme with each number of members."""
    results = Results(story=STORY if STORY in wanted.sizes else wanted.sizes[0])
    results.left_out = _left_out(wanted.given)
    for size in wanted.sizes:
        for scheme in wanted.schemes:
            results.runs.append(await _run_one(wanted, scheme, size, note))
    if wanted.differing:
        results.differing = await _run_differing(wanted, note)
    results.setting = _setting(wanted.given, results.runs[0])
    return results


def _setting(given: UserServers, one: SchemeRun) -> str:
    brokers = f"{one.brokers} brokers of {'muster' if given.kafka is None else 'the Kafka at ' + given.kafka}"
    zookeeper = "a ZooKeeper of one server" if given.zookeeper is None else f"the ZooKeeper at {given.zookeeper}"
    return f"{one.partitions} partitions on {brokers}, with {zookeeper}; assignment by range."


def _left_out(given: UserServers) -> list[str]:
    """The steps that are left out, since they would stop the user's servers."""
    found = []
    if given.kafka is not None:
        found.append("stopping a broker, since the brokers are the user's")
    if given.zookeeper is not None:
        found.append("stopping ZooKeeper, since it is the user's")
    return found


async def _run_one(wanted: ComparisonOptions, scheme: Scheme, size: int, note: Callable[[str], None]) -> SchemeRun:
    suffix = "" if wanted.given.zookeeper is None else f"-{wall_clock_ms() // 1_000}"
    name = f"compare-{scheme.value}-{size}{suffix}"
    folder = wanted.out / name
    folder.mkdir()
    note(f"{TITLES[scheme]}, {size} members")
    async with start_servers(scheme, folder, wanted.given, name) as servers:
        found = await Trial(scheme, size, servers, TrialOptions(folder, name), note).run()
    shutil.rmtree(folder, ignore_errors=True)
    return found


async def _run_differing(wanted: ComparisonOptions, note: Callable[[str], None]) -> SchemeRun:
    """Scheme 1 on an ensemble, one server of which receives changes late; the members watch the brokers."""
    steps = differing_script()
    folder = wanted.out / "compare-differing"
    folder.mkdir()
    note(f"{TITLES[Scheme.WATCHERS]}, on ZooKeeper servers that differ, and with watch_brokers")
    async with start_ensemble(folder, fragile(steps)[0]) as servers:
        options = TrialOptions(folder, folder.name, watch_brokers=True)
        found = await Trial(Scheme.WATCHERS, 3, servers, options, note, steps).run()
    shutil.rmtree(folder, ignore_errors=True)
    return found


# --- how it ends -----------------------------------------------------------------------------------------------------


def conclude(results: Results, out: Path, console: Console) -> bool:
    """Check, print, write the page and the results; returns whether all checks passed."""
    checks = judge(results)
    (out / "results.json").write_text(json.dumps(to_json(results)), encoding="utf-8")
    page = out / "compare.html"
    page.write_text(render(results, checks), encoding="utf-8")
    console.print(_totals(results.stories()))
    console.print(_checked(checks))
    console.print(f"The page with the timelines and the curves: {page}", soft_wrap=True)
    print(json.dumps(last_line(results, checks)), flush=True)
    return is_well(checks)


def _totals(stories: Sequence[SchemeRun]) -> Table:
    table = Table(title="What the same workload cost", title_justify="left")
    table.add_column("")
    for story in stories:
        table.add_column(TITLES[story.scheme], justify="right", overflow="fold")
    for name, figure in FIGURES.items():
        table.add_row(name, *(figure(story) for story in stories))
    return table


def _checked(checks: Sequence[ResultCheck]) -> Table:
    table = Table(title="Checked", title_justify="left")
    for column in ("", "what must hold", "seen"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(_MARKS[check.ok], check.title, check.seen)
    return table


def last_line(results: Results, checks: Sequence[ResultCheck]) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "ok": is_well(checks),
        "wrong": [check.title for check in checks if check.ok is False],
        "not_judged": [check.title for check in checks if check.ok is None],
        "left_out": results.left_out,
        "runs": [_run_line(found) for found in results.runs],
        "differing": None if results.differing is None else _run_line(results.differing),
    }


def _run_line(found: SchemeRun) -> dict[str, Any]:
    return {
        "scheme": found.scheme.value,
        "members": found.size,
        "partitions": found.partitions,
        "brokers": found.brokers,
        "produced": found.produced,
        "handled": found.handled,
        "lost": found.lost,
        "twice": found.twice,
        "two_owners": len(found.doubles),
        "steps": [
            {
                "step": str(step.step),
                "members": step.size,
                "converge_ms": step.converge_ms,
                "rebalances": step.work.rebalances,
                "failed_tries": step.work.failed_tries,
                "notifications": step.counted.watches,
                "reads": step.counted.reads,
                "writes": step.counted.writes,
                "requests": step.work.requests,
                "ownerless_ms": step.ownerless_ms,
                "twice": step.twice,
                "after_waking": step.after_waking,
                "two_owners_ms": step.doubled_ms,
                "stale_commits": step.stale_commits,
                "sessions_lost": step.expired,
            }
            for step in found.steps
        ],
    }
