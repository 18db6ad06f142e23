"""Results of a comparison as a run would produce them: made up, by the formulas, for tests of checks and page."""

from __future__ import annotations

from muster.compare.rules import formulas
from muster.compare.rules.counters import ZooKeeperCounters
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.recorder import Double, Hold, Period
from muster.compare.rules.results import SENT_AGAIN, Results, SchemeRun, StepResult, Work
from muster.compare.rules.workload import CHANGES, LOSSES, StepKind, script

PARTITIONS = 4
STEP_MS = 3_000


def run(scheme: Scheme, size: int = 3, *, brokers: int = 3) -> SchemeRun:
    """One run in which everything went well."""
    made = SchemeRun(scheme, size, PARTITIONS, brokers, produced=1_000, handled=1_000, twice=120)
    members = 0
    for number, step in enumerate(script(size)):
        start = number * STEP_MS
        members += (step.kind is StepKind.JOIN) - (step.kind in LOSSES and step.kind is not StepKind.FREEZE)
        done = StepResult(step.kind, step.member, members, start, start + 700, start + STEP_MS)
        if step.kind in CHANGES:
            _cost(done, scheme, brokers)
        if step.kind is StepKind.FREEZE:
            done.stale_commits, done.after_waking = {"refused": 1}, 40
            if scheme is Scheme.WATCHERS:
                done.stale_commits[SENT_AGAIN] = 1
            done.doubled, done.doubled_ms, done.twice, done.ownerless_ms = 1, 300, 120, 4_000
        made.steps.append(done)
    made.end_ms = len(made.steps) * STEP_MS
    _draw(made)
    return made


def _cost(step: StepResult, scheme: Scheme, brokers: int) -> None:
    step.work = Work(step.size, step.size, 0, {} if scheme.watches else {"JoinGroup": step.size, "Heartbeat": 7})
    if scheme is Scheme.WATCHERS:
        reads = formulas.reads_of_change(step.size, PARTITIONS, brokers) + (step.kind is StepKind.JOIN)
        writes = formulas.writes_of_change(PARTITIONS)
        step.counted = ZooKeeperCounters(reads, writes, step.size - 1, reads + writes + 20)
    elif scheme is Scheme.SERVER:
        step.counted = ZooKeeperCounters(0, 1, 0, 12)


def _draw(made: SchemeRun) -> None:
    half, end = made.end_ms // 2, made.end_ms
    for partition in range(PARTITIONS):
        made.holds.append(Hold(partition, "m1", 500, half))
        made.holds.append(Hold(partition, "m3", half - 300 if partition == 0 else half, end))
    made.doubles = [Double(0, ("m1", "m3"), half - 300, half)]
    made.naps = {"m3": [Period(half + 100, half + 2_000)]}
    made.outages = [("a broker", Period(end - 2 * STEP_MS, end - STEP_MS))]


def differing() -> SchemeRun:
    """Members on ZooKeeper servers, one of which learns late and lags."""
    made = run(Scheme.WATCHERS)
    made.steps = made.steps[:2]
    made.steps.append(StepResult(StepKind.LATE, "m3", 3, 4_000, 5_000, 5_500, work=Work(3, 6)))
    made.steps.append(StepResult(StepKind.BROKER, "", 3, 5_500, 5_800, 6_000, work=Work(6, 6)))
    made.steps.append(StepResult(StepKind.LAG, "m2", 3, 6_000, 9_000, 12_000, twice=77, doubled=1, doubled_ms=2_500))
    made.holds = [Hold(0, "m1", 500, 12_000), Hold(0, "m2", 3_000, 9_000)]
    made.doubles, made.naps = [Double(0, ("m1", "m2"), 3_000, 9_000)], {}
    return made


def sample(*schemes: Scheme, sizes: tuple[int, ...] = (3,)) -> Results:
    """A comparison in which everything went well."""
    wanted = schemes or (Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS)
    runs = [run(scheme, size) for scheme in wanted for size in sizes]
    return Results(runs, 3, "ZooKeeper <3.9> & three brokers", ["the consumer of Kafka 0.8.2.2: no jars"])
