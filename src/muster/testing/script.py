"""A recording as a script: outside events, in order, and in between the progress of the group under test. Pure.

A line is either an act from outside (a record is appended, another member joins, a session expires) or a mark of the
group under test: what it had committed, which generation it had reached, a request of its own at which a fault struck.
An act is due once all marks before it are reached and its recorded delay after the previous line has passed. So a
consumer that is faster or slower than the recorded one meets the same acts at the same points of its work. A mark that
is not reached in time is skipped, and reported as a difference. A fault is added when its mark is next, before its
request arrives. So is an expired session that made a commit fail: it expires when the next commit arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from muster.testing.recording import COMPLETE, Line, Recording

FAULTS = frozenset({"struck", "refused"})


def strikes(line: Line) -> bool:
    """Whether a line happens at a request of the code under test."""
    return line["what"] in FAULTS or "before" in line


class GroupProgress(Protocol):
    """The progress of the group under test."""

    def lacks(self, mark: Line) -> str | None:
        """What is missing for a mark; None once it is reached."""


@dataclass(slots=True)
class Script:
    """A recording that is being replayed.

    Args:
        plays: the clients that the code under test replaces; the lines of others are acts. None: all.
        pace: a factor for recorded times; 0: no act waits for its time.
        patience_ms: how long to wait for a mark.
    """

    recording: Recording
    plays: frozenset[str] | None
    pace: float = 1.0
    patience_ms: int = 30_000
    place: int = 0
    """The next line."""
    differences: list[str] = field(default_factory=list)
    waits_for: str = ""
    end: int = field(init=False)
    """How many lines are replayed."""
    _since: int | None = None
    """When the line before the next one was passed."""
    _last_at: int = 0
    _armed: int = -1
    """The line whose fault was added."""

    def __post_init__(self) -> None:
        self.end = len(self.recording.lines)
        for number, line in reversed(list(enumerate(self.recording.lines))):
            if self.is_mark(line):
                break
            if line["what"] == "left" and self.is_played(line["client"]):
                self.end = number  # what follows does not concern the code under test
        if self.recording.why != COMPLETE:
            self.differences.append(f"the recording is incomplete: {self.recording.why}")

    @property
    def is_over(self) -> bool:
        """Whether all lines are passed."""
        return self.place >= self.end

    def is_mark(self, line: Line) -> bool:
        """Whether a line is waited for."""
        if line["what"] == "generation":
            return any(self.is_played(member["client"]) for member in line["members"])
        return (line["what"] == "committed" or strikes(line)) and self.is_played(line["client"])

    def is_played(self, client: str) -> bool:
        """Whether the code under test replaces a client."""
        return self.plays is None or client in self.plays or not client

    def next(self, now: int, progress: GroupProgress) -> Line | None:
        """The next act that is due, if any; the script moves past it."""
        self._since = now if self._since is None else self._since
        self.waits_for = ""
        while not self.is_over:
            line = self.recording.lines[self.place]
            if self.is_mark(line):
                if strikes(line) and self._armed != self.place:
                    self._armed = self.place
                    return line
                if not self._is_reached(line, now, progress):
                    return None
                self._pass(line, now)
                continue
            due = self._due(line)
            if now < due:
                self.waits_for = f"its time: {due - now} ms"
                return None
            self._pass(line, due if self.pace else now)
            if line["what"] not in ("generation", *FAULTS):
                return line
        return None

    def wait_ms(self, now: int) -> int | None:
        """How long until the next line may be due even without progress of the group; None if the script has ended."""
        if self.is_over or self._since is None:
            return None
        line = self.recording.lines[self.place]
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
        self.place += 1
