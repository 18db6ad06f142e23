"""The steps of the workload, as data: the same for each scheme and for any number of members.

Members are `m1`, `m2` … in the order in which they join, with leading zeros so that their names sort in this order:
range gives partitions to the first ones, if there are too few for all. The oldest ones leave first, so it is known
beforehand which members crash and freeze: these have separate processes, the others may share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class StepKind(StrEnum):
    """What a step does."""

    JOIN = "joins"
    LEAVE = "leaves"
    CRASH = "crashes"
    FREEZE = "is frozen past its session, and resumes"
    BROKER = "a broker stops and restarts"
    ZOOKEEPER = "ZooKeeper stops and restarts"
    LATE = "joins while another member's ZooKeeper server lags"
    LAG = "is connected to a ZooKeeper server that lags"


CHANGES = (StepKind.JOIN, StepKind.LEAVE)
"""The changes of a group in which nothing fails: their costs are checked."""
OF_SERVERS = (StepKind.BROKER, StepKind.ZOOKEEPER)
"""What happens to servers, not to a member."""
LOSSES = (StepKind.LEAVE, StepKind.CRASH, StepKind.FREEZE)


@dataclass(frozen=True, slots=True)
class WorkloadStep:
    """One step. `member` is "" if it happens to the servers."""

    kind: StepKind
    member: str = ""

    def ends_session_of(self, member: str) -> bool:
        """Whether this step is supposed to end the member's session."""
        return member == self.member and self.kind in (StepKind.CRASH, StepKind.FREEZE, StepKind.LAG)

    def __str__(self) -> str:
        return f"{self.member} {self.kind.value}" if self.member else self.kind.value


def script(size: int, *, broker: bool = True, zookeeper: bool = True) -> list[WorkloadStep]:
    """The steps for a group of `size` members, at least two. `broker` and `zookeeper` say whether those may be stopped.

    A loss leaves at least one member to take over: if it would leave none, another member joins first.
    """
    if size < 2:
        raise ValueError(f"a group of {size} has no member to take over")
    width = len(str(size))
    steps = [WorkloadStep(StepKind.JOIN, f"m{number:0{width}}") for number in range(1, size + 1)]
    members = [step.member for step in steps]
    come = size
    for kind in LOSSES:
        if len(members) < 2:
            come += 1
            members.append(f"m{come:0{width}}")
            steps.append(WorkloadStep(StepKind.JOIN, members[-1]))
        steps.append(WorkloadStep(kind, members.pop(0)))
    steps += [WorkloadStep(StepKind.BROKER)] * broker
    steps += [WorkloadStep(StepKind.ZOOKEEPER)] * zookeeper
    return steps


def differing_script() -> list[WorkloadStep]:
    """One member uses its own ZooKeeper server, which lags at first and then learns nothing for a while."""
    start = [WorkloadStep(StepKind.JOIN, "m1"), WorkloadStep(StepKind.JOIN, "m2")]
    return [*start, WorkloadStep(StepKind.LATE, "m3"), WorkloadStep(StepKind.BROKER), WorkloadStep(StepKind.LAG, "m2")]


def fragile(steps: Iterable[WorkloadStep]) -> list[str]:
    """The members that crash or freeze, or have a server of ZooKeeper for themselves."""
    return [step.member for step in steps if step.kind in (StepKind.CRASH, StepKind.FREEZE, StepKind.LAG)]


def hosts(steps: Iterable[WorkloadStep], per_host: int) -> list[list[str]]:
    """Which members share a process: those that crash or freeze are alone, of the others `per_host` are together."""
    steps = list(steps)
    alone = fragile(steps)
    others = [step.member for step in steps if step.kind in (StepKind.JOIN, StepKind.LATE) and step.member not in alone]
    return [[name] for name in alone] + [others[at : at + per_host] for at in range(0, len(others), per_host)]
