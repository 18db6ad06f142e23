"""What happens in the demo, and when: the steps and the pace of the data.

Data must flow while the group changes, and must not run out before the last step is done. So each step starts at a
share of the data, and until it is done the pace drops to a trickle as the next step's share approaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DemoStep(StrEnum):
    """The steps, in this order."""

    JOIN = "a fourth Python member joins"
    DRIVER = "the pipeline's Spark driver is killed with SIGKILL and started again"
    KILL = "a Python member is killed with SIGKILL"
    LEAVE = "a Python member leaves cleanly"
    EXECUTOR = "an executor of the pipeline is killed with SIGKILL"
    RESTART = "the broker is killed with SIGKILL and started again"


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was done: from its start until everything had settled again."""

    step: DemoStep
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class FeedPace:
    """How many of `events` may have been sent at a given time: all within `duration_s`, unless steps are unfinished."""

    events: int
    duration_s: float
    steps: int

    def share_of(self, step: int) -> float:
        """The share of the data after which a step starts: the first at a tenth, the last well before the end."""
        return 0.1 + 0.7 * step / max(1, self.steps)

    def allowed(self, elapsed_s: float, steps_done: int) -> int:
        """How many events may have been sent so far."""
        share = elapsed_s / self.duration_s
        if steps_done < self.steps:
            # Above the ceiling time counts a twentieth: data keeps flowing, slowly, until the step is done.
            ceiling = self.share_of(steps_done + 1)
            share = min(share, ceiling + max(0.0, share - ceiling) / 20, 0.98)
        return min(self.events, int(self.events * share))
