"""The checks: what must be true of the results whatever the machine's speed. Times are shown, but not checked.

If sessions ended unexpectedly during a step (on a stalled machine), its counts mean nothing: they are not checked, and
the step is named. Lost records are still checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from muster.compare.rules.formulas import (
    TITLES,
    Range,
    Scheme,
    reads_range,
    start_notifications,
    start_rebalances,
    writes_range,
)
from muster.compare.rules.results import SENT_AGAIN, Results, SchemeRun, StepResult
from muster.compare.rules.workload import CHANGES, StepKind

_Wanted = Callable[[SchemeRun, StepResult], tuple[int, Range]]


class ResultCheck(NamedTuple):
    """One check. `ok` is None if it could not be judged."""

    scheme: Scheme
    size: int
    name: str
    ok: bool | None
    seen: str

    @property
    def title(self) -> str:
        """What it is about, for people."""
        return f"{TITLES[self.scheme]}, {self.size} members: {self.name}"


def judge(results: Results) -> list[ResultCheck]:
    """All checks, in the order of the runs."""
    checks = [check for run in results.runs for check in _of_run(run)]
    if results.differing is not None:
        checks += _of_differing(results.differing)
    return checks


def _of_differing(run: SchemeRun) -> Iterator[ResultCheck]:
    """The flaws must show. Members that see different members fail to rebalance although all sessions are alive; a
    member continues although ZooKeeper has ended its session, because its server does not know."""
    yield _check(run, "no record is lost while a server lags", run.lost == 0, f"{run.handled:,} of {run.produced:,}")
    tries = sum(step.work.failed_tries for step in run.of_kind(StepKind.LATE))
    yield _shown(run, "attempts fail while members see different members", tries > 0, f"{tries:,}")
    name = "with watch_brokers all members rebalance when a broker stops and restarts"
    yield _brokers_watched(run, name, watched=True)
    doubled = f"{len(run.doubles)} partitions for {sum(step.doubled_ms for step in run.steps):,} ms"
    yield _shown(run, "two members read the same partitions while a server lags", bool(run.doubles), doubled)


def _shown(run: SchemeRun, name: str, shown: bool, seen: str) -> ResultCheck:
    """A flaw that must show, unless sessions ended unexpectedly: their members had to register and rebalance, so the
    step could not show it."""
    expired = sum(step.expired for step in run.steps)
    ok = None if expired and not shown else shown
    return _check(run, name, ok, f"{seen}; {expired:,} sessions expired unexpectedly" if ok is None else seen)


def is_well(checks: Iterable[ResultCheck]) -> bool:
    """Whether nothing is wrong."""
    return all(check.ok is not False for check in checks)


def _of_run(run: SchemeRun) -> Iterator[ResultCheck]:
    yield _check(run, "no record is lost", run.lost == 0, f"{run.handled:,} of {run.produced:,} handled")
    if run.scheme.watches:
        yield _start_rebalances(run)
    if run.scheme is Scheme.WATCHERS:
        if run.of_kind(StepKind.BROKER):
            name = "without watch_brokers no member rebalances when a broker stops and restarts"
            yield _brokers_watched(run, name, watched=False)
        yield _unfenced(run)
        yield _start_notifications(run)
        yield _each(run, "reads of a change", _reads_wanted)
        yield _each(run, "writes of a change", _writes_wanted)
    if not run.scheme.watches:
        yield _each(run, "ZooKeeper's reads of a change", lambda run, step: (step.counted.reads, Range(0, 0)))
        yield _each(run, "notifications of a change", lambda run, step: (step.counted.watches, Range(0, 0)))
        yield _each(run, "ZooKeeper's writes of a change", _coordinator_writes_wanted)
        yield _fenced(run)
    if run.scheme is not Scheme.KAFKA08:
        yield _one_reader(run)
    if run.scheme is Scheme.MEMBERS:
        yield _nothing_twice(run)


def _check(run: SchemeRun, name: str, ok: bool | None, seen: str) -> ResultCheck:
    return ResultCheck(run.scheme, run.size, name, ok, seen)


def _nothing_twice(run: SchemeRun) -> ResultCheck:
    """Members give a partition up in a poll, after all records are processed and committed.

    Those of schemes 1 and 2 do not wait for a poll: records that they are processing are handled twice.
    """
    steps = [step for step in run.of_kind(*CHANGES) if step.as_meant]
    again = {str(step.step): step.twice for step in steps if step.twice}
    seen = ", ".join(f"{step}: {count:,}" for step, count in again.items()) or "none"
    return _check(run, "no record is handled twice when members join and leave", not again if steps else None, seen)


def _one_reader(run: SchemeRun) -> ResultCheck:
    """A member reports what it gives up before the next member can get it: by its znode, JoinGroup or SyncGroup. Kafka
    0.8.2.2's own consumer is not checked: it logs what it reads, and has left only once its JVM has ended."""
    steps = [step for step in run.of_kind(*CHANGES) if step.as_meant]
    double = {str(step.step): step.doubled for step in steps if step.doubled}
    seen = ", ".join(f"{step}: {count:,}" for step, count in double.items()) or "none"
    return _check(run, "no partition has two readers when members join and leave", not double if steps else None, seen)


def _start_rebalances(run: SchemeRun) -> ResultCheck:
    wanted = start_rebalances(run.size)
    counted = sum(step.work.rebalances for step in run.start)
    return _of_start(run, "rebalances of the start are N(N+1)/2", counted, wanted)


def _start_notifications(run: SchemeRun) -> ResultCheck:
    wanted = start_notifications(run.size)
    counted = sum(step.counted.watches for step in run.start)
    return _of_start(run, "notifications of the start are N(N−1)/2", counted, wanted)


def _of_start(run: SchemeRun, name: str, counted: int, wanted: int) -> ResultCheck:
    ok = counted == wanted if all(step.as_meant for step in run.start) else None
    return _check(run, name, ok, f"{counted:,} of {wanted:,}")


def _reads_wanted(run: SchemeRun, step: StepResult) -> tuple[int, Range]:
    work = step.work
    return step.counted.reads, reads_range(step.size, run.partitions, run.brokers, work.failed_tries, work.conflicts)


def _writes_wanted(run: SchemeRun, step: StepResult) -> tuple[int, Range]:
    work = step.work
    return step.counted.writes, writes_range(step.size, run.partitions, work.failed_tries, work.conflicts)


def _coordinator_writes_wanted(run: SchemeRun, step: StepResult) -> tuple[int, Range]:
    """Scheme 2 writes the group once for each rebalance, and what members commit before it; scheme 3 writes to its log.
    A group's first write also creates its parent znodes."""
    if run.scheme is Scheme.MEMBERS:
        return step.counted.writes, Range(0, 0)
    folders = 2 if step is run.steps[0] else 0
    return step.counted.writes, Range(1, 1 + step.work.requests.get("OffsetCommit", 0) + folders)


def _each(run: SchemeRun, name: str, wanted: _Wanted) -> ResultCheck:
    """Whether the counts of each join and leave that went as planned agree with the formula."""
    steps = [step for step in run.of_kind(*CHANGES) if step.as_meant]
    wrong = []
    counts = []
    for step in steps:
        counted, allowed = wanted(run, step)
        counts.append(counted)
        if counted not in allowed:
            wrong.append(f"{step.step} ({step.size} members): {counted:,} instead of {allowed}")
    seen = "; ".join(wrong) or (f"{min(counts):,} to {max(counts):,}" if counts else "no step went as planned")
    return _check(run, name, not wrong if steps else None, seen)


def _brokers_watched(run: SchemeRun, name: str, *, watched: bool) -> ResultCheck:
    """Every member rebalances when the broker stops and again when it restarts, or no member does."""
    steps = [step for step in run.of_kind(StepKind.BROKER) if step.as_meant]
    counted = sum(step.work.rebalances for step in steps)
    members = sum(step.size for step in steps)
    ok = counted >= 2 * members if watched else counted == 0
    return _check(run, name, ok if steps else None, f"{counted:,} rebalances of {members} members")


def _unfenced(run: SchemeRun) -> ResultCheck:
    """The flaw must show: a commit of scheme 1 names no generation, so only an expired session can prevent it."""
    outcomes = [outcome for step in run.of_kind(StepKind.FREEZE) for outcome in step.stale_commits if outcome != "none"]
    ok = any(outcome in (SENT_AGAIN, "accepted") for outcome in outcomes) if outcomes else None
    name = "a resumed member can commit to partitions that it has lost, from its next session"
    return _check(run, name, ok, ", ".join(outcomes) or "nothing to commit")


def _fenced(run: SchemeRun) -> ResultCheck:
    """The commit of a member that was considered dead must be refused."""
    accepted = sum(step.stale_commits.get("accepted", 0) for step in run.of_kind(StepKind.FREEZE))
    refused = sum(step.stale_commits.get("refused", 0) for step in run.of_kind(StepKind.FREEZE))
    ok = accepted == 0 if accepted + refused else None  # a member that had handled nothing has nothing to commit
    return _check(run, "a resumed member cannot commit", ok, f"{accepted} accepted, {refused} refused")
