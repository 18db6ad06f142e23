"""A recording as a script: when each of its lines is replayed. Pure.

A line is either an act (a record is appended, a simulated member joins, a session expires) or a mark, a point in the
work of the group under test: it has committed an offset, completed a generation, or sent a request that a fault struck.
An act is due once all marks before it are reached and its recorded delay after the previous line has passed. So a
consumer that is faster or slower than the recorded one meets the same acts at the same points of its work. A mark that
is not reached in time is skipped, and reported as a difference. The fault of a mark is added when the mark is next,
before the request arrives. An expired session that made a commit fail is treated the same way: it expires when the next
commit arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from muster.testing.recordings.recording import COMPLETE, Line, Recording

FAULTS = frozenset({"struck", "refused"})


def strikes(line: Line) -> bool:
    """Whether a line takes effect at a request of the code under test."""
    return line["what"] in FAULTS or "before" in line


class GroupProgress(Protocol):
    """The progress of the group under test."""

    def lacks(self, mark: Line) -> str | None:
        """What is missing for a mark; None once it is reached."""


@dataclass(slots=True)
class Script:
    """A recording that is being replayed.

    Args:
        under_test: the clients that the code under test replaces; the lines of others are acts. None: all clients.
        pace: a factor for recorded delays; 0: no act is delayed.
        patience_ms: how long to wait for a mark.
    """

    recording: Recording
    under_test: frozenset[str] | None
    pace: float = 1.0
    patience_ms: int = 30_000
    position: int = 0
    """The number of the next line."""
    differences: list[str] = field(default_factory=list)
    waits_for: str = ""
    end: int = field(init=False)
    """The number of lines to replay."""
    _since: int | None = None
    """When the line before the next one was passed."""
    _last_at: int = 0
    _armed: int = -1
    """The number of the line whose fault was added last."""

    def __post_init__(self) -> None:
        self.end = len(self.recording.lines)
        for number, line in reversed(list(enumerate(self.recording.lines))):
            if self.is_mark(line):
                break
            if line["what"] == "left" and self.is_under_test(line["client"]):
                self.end = number  # later lines do not concern the code under test
        if self.recording.why != COMPLETE:
            self.differences.append(f"the recording is incomplete: {self.recording.why}")

    @property
    def is_over(self) -> bool:
        """Whether all lines were passed."""
        return self.position >= self.end

    def is_mark(self, line: Line) -> bool:
        """Whether a line is a mark."""
        if line["what"] == "generation":
            return any(self.is_under_test(member["client"]) for member in line["members"])
        return (line["what"] == "committed" or strikes(line)) and self.is_under_test(line["client"])

    def is_under_test(self, client: str) -> bool:
        """Whether the code under test replaces a client."""
        return self.under_test is None or client in self.under_test or not client

    def next(self, now: int, progress: GroupProgress) -> Line | None:
        """The next act that is due, if any; the script moves past it."""
        self._since = now if self._since is None else self._since
        self.waits_for = ""
        while not self.is_over:
            line = self.recording.lines[self.position]
            if self.is_mark(line):
                if strikes(line) and self._armed != self.position:
                    self._armed = self.position
                    return line
                if not self._is_reached(line, now, progress):
                    return None
                self._pass(line, now)
                continue
            due = self._due(line)
            if now < due:
                self.waits_for = f"it is due in {due - now} ms"
                return None
            self._pass(line, due if self.pace else now)
            if line["what"] not in ("generation", *FAULTS):
                return line
        return None

    def wait_ms(self, now: int) -> int | None:
        """The time until the next line is due if the group makes no progress; None if the script is over."""
        if self.is_over or self._since is None:
            return None
        line = self.recording.lines[self.position]
        due = self._since + self.patience_ms if self.is_mark(line) else self._due(line)
        return max(due - now, 0)

    def _due(self, line: Line) -> int:
        gap_ms: int = max(line["at_ms"] - self._last_at, 0)
        return (self._since or 0) + round(gap_ms * self.pace)

    def _is_reached(self, mark: Line, now: int, progress: GroupProgress) -> bool:
        missing = progress.lacks(mark)
        if missing is None:
            return True
        self.waits_for = missing
        if now < (self._since or 0) + self.patience_ms:
            return False
        self.differences.append(f"{missing}, after {self.patience_ms / 1000:g} s")
        return True

    def _pass(self, line: Line, now: int) -> None:
        self._since, self._last_at = now, line["at_ms"]
        self.position += 1
