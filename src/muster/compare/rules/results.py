"""What `muster compare` has measured, as values: of each step, each run of a scheme, and all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from muster.compare.rules.counters import ZooKeeperCounters
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.recorder import Double, Hold, Period
from muster.compare.rules.workload import StepKind, WorkloadStep


@dataclass(slots=True)
class Work:
    """The members' own counts. `requests` are those to coordinators, by name."""

    rebalances: int = 0
    tries: int = 0
    """In scheme 1: each try of a rebalance."""
    conflicts: int = 0
    """In scheme 1: partitions that another owner had not released."""
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def failed_tries(self) -> int:
        """Tries that had to be made again."""
        return max(0, self.tries - self.rebalances)

    @property
    def joins(self) -> int:
        """Requests to coordinators that a change causes: all but heartbeats, commits and the like."""
        return sum(count for name, count in self.requests.items() if name not in _STEADY)

    def since(self, before: Work) -> Work:
        """What was added since an earlier count."""
        requests = {name: count - before.requests.get(name, 0) for name, count in self.requests.items()}
        return Work(
            self.rebalances - before.rebalances,
            self.tries - before.tries,
            self.conflicts - before.conflicts,
            {name: count for name, count in requests.items() if count},
        )

    def __add__(self, other: object) -> Work:
        if not isinstance(other, Work):
            return NotImplemented
        names = self.requests.keys() | other.requests.keys()
        return Work(
            self.rebalances + other.rebalances,
            self.tries + other.tries,
            self.conflicts + other.conflicts,
            {name: self.requests.get(name, 0) + other.requests.get(name, 0) for name in sorted(names)},
        )


SENT_AGAIN = "accepted from its next session"
"""The outcome of a commit that scheme 1 refused because its session had ended."""

_STEADY = frozenset(["Heartbeat", "OffsetCommit", "OffsetFetch", "FindCoordinator"])


@dataclass(slots=True)
class StepResult:
    """What one step did. Times are milliseconds since the run began."""

    kind: StepKind
    member: str
    size: int
    """Members after it."""
    start_ms: int
    settled_ms: int
    """When a partition last changed owner, with all partitions owned from then on."""
    end_ms: int
    counted: ZooKeeperCounters = field(default_factory=ZooKeeperCounters)
    work: Work = field(default_factory=Work)
    twice: int = 0
    """Records that were handled again."""
    ownerless_ms: int = 0
    doubled: int = 0
    """How many times a partition had two owners."""
    doubled_ms: int = 0
    """How long a partition had two owners."""
    expired: int = 0
    """Sessions that ended although the step did not end them: the machine was too slow."""
    stale_commits: dict[str, int] = field(default_factory=dict)
    """The outcome of the commit of a member that woke up: refused, accepted, none, or `SENT_AGAIN`."""
    after_waking: int = 0
    """Records that a member handled after it woke up, of partitions that it had lost meanwhile."""

    @property
    def converge_ms(self) -> int:
        """How long it took until all partitions had their owners again."""
        return max(0, self.settled_ms - self.start_ms)

    @property
    def step(self) -> WorkloadStep:
        """The step."""
        return WorkloadStep(self.kind, self.member)

    @property
    def as_meant(self) -> bool:
        """Whether nothing but the step happened to the group: only then are its counts meaningful."""
        return self.expired == 0


@dataclass(slots=True)
class SchemeRun:
    """One scheme with this number of members. Times are milliseconds since it began."""

    scheme: Scheme
    size: int
    partitions: int
    brokers: int
    steps: list[StepResult] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    naps: dict[str, list[Period]] = field(default_factory=dict)
    doubles: list[Double] = field(default_factory=list)
    outages: list[tuple[str, Period]] = field(default_factory=list)
    """When a broker or ZooKeeper was down."""
    produced: int = 0
    handled: int = 0
    """Records that were handled, each counted once."""
    twice: int = 0
    lost: int = 0
    end_ms: int = 0

    def of_kind(self, *kinds: StepKind) -> list[StepResult]:
        """Its steps of some kinds."""
        return [step for step in self.steps if step.kind in kinds]

    @property
    def start(self) -> list[StepResult]:
        """Its first steps: the members that join one after another."""
        return self.steps[: self.size]

    @property
    def last_change(self) -> StepResult:
        """The join that made the group whole: what a change costs at this size."""
        return self.steps[self.size - 1]


@dataclass(slots=True)
class Results:
    """Everything that was measured. The first run of each scheme with `story` members is the one that is drawn."""

    runs: list[SchemeRun] = field(default_factory=list)
    story: int = 5
    setting: str = ""
    """The machine that it ran on, for people."""
    left_out: list[str] = field(default_factory=list)
    """What was left out, and why."""
    differing: SchemeRun | None = None
    """Scheme 1 with a server of ZooKeeper that receives changes late, and with `watch_brokers`."""

    @property
    def schemes(self) -> list[Scheme]:
        """The schemes that were run, in their order."""
        return [scheme for scheme in Scheme if any(run.scheme is scheme for run in self.runs)]

    def story_of(self, scheme: Scheme) -> SchemeRun | None:
        """The run that is drawn."""
        return next((run for run in self.runs if run.scheme is scheme and run.size == self.story), None)

    def stories(self) -> list[SchemeRun]:
        """The sizes of all schemes."""
        return [run for scheme in self.schemes if (run := self.story_of(scheme)) is not None]


def to_json(results: Results) -> dict[str, Any]:
    """As JSON values."""
    return asdict(results)


def from_json(found: Mapping[str, Any]) -> Results:
    """From the result of `to_json`."""
    differing = _run(found["differing"]) if found["differing"] is not None else None
    runs = [_run(run) for run in found["runs"]]
    return Results(runs, found["story"], found["setting"], list(found["left_out"]), differing)


def _run(found: Mapping[str, Any]) -> SchemeRun:
    lists: dict[str, Any] = {
        "scheme": Scheme(found["scheme"]),
        "steps": [_step(step) for step in found["steps"]],
        "holds": [Hold(*hold) for hold in found["holds"]],
        "naps": {member: [Period(*span) for span in spans] for member, spans in found["naps"].items()},
        "doubles": [Double(each[0], tuple(each[1]), each[2], each[3]) for each in found["doubles"]],
        "outages": [(what, Period(*span)) for what, span in found["outages"]],
    }
    return SchemeRun(**{**found, **lists})


def _step(found: Mapping[str, Any]) -> StepResult:
    values = {
        "kind": StepKind(found["kind"]),
        "counted": ZooKeeperCounters(*found["counted"]),
        "work": Work(**found["work"]),
    }
    return StepResult(**{**found, **values})
