"""Progress as it happens: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from muster.demo.course import Course
from muster.demo.show.story import Snapshot, Story

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_NOTES = 14


class ProgressView(Protocol):
    """Shows the demo's progress."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str) -> None:
        """Show that something happened."""

    def progress(self, story: Story, course: Course, sent: int, total: int) -> None:
        """The groups, the queries and the data, now."""


def open_view(console: Console) -> ProgressView:
    """The live view in a terminal, lines elsewhere."""
    return LiveView(console) if console.is_terminal else PlainView(console)


class PlainView:
    """A line for each event, and one about the progress every few seconds."""

    def __init__(self, console: Console, every_ms: int = 5_000) -> None:
        self._console = console
        self._every_ms = every_ms
        self._zero: int | None = None
        self._last = 0
        self._now = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def note(self, text: str) -> None:
        """Print it."""
        self._console.print(f"{self._seconds():6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def progress(self, story: Story, course: Course, sent: int, total: int) -> None:
        """Print a line, if the last one is old enough."""
        snapshot = story.latest
        if snapshot is None:
            return
        if self._zero is None:
            self._zero = snapshot.at_ms
        self._now = snapshot.at_ms - self._zero
        if self._now - self._last >= self._every_ms:
            self._last = self._now
            owners = ", ".join(f"{name} {partitions}" for name, partitions in _by_owner(snapshot))
            generation = f" generation {story.generation}" if story.generation >= 0 else ""
            state = f"shared group {snapshot.state}{generation}, lag {snapshot.lag}: {owners or 'no owners'}"
            self.note(f"{sent}/{total} sent; {state}")
            if course.batches:
                self.note("  " + ", ".join(f"{name} at batch {of[-1].number}" for name, of in course.batches.items()))

    def _seconds(self) -> float:
        return self._now / 1000


class LiveView:
    """A table of the partitions, redrawn in place, above the last events."""

    def __init__(self, console: Console) -> None:
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._table: Table | Text = Text("starting …")
        self._queries: Table | Text = Text("")
        self._bar: Table | Text = Text("")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Add it to the list below the table."""
        self._notes.append(text)
        self._draw()

    def progress(self, story: Story, course: Course, sent: int, total: int) -> None:
        """Redraw."""
        snapshot = story.latest
        if snapshot is not None:
            self._table = _partition_table(story, snapshot)
            self._queries = _query_table(course)
            self._bar = _bar(snapshot, sent, total)
        self._draw()

    def _draw(self) -> None:
        notes = Panel(Text("\n".join(self._notes)), title="what happens", title_align="left", height=_NOTES + 2)
        self._live.update(Group(self._table, self._queries, self._bar, notes))


def _partition_table(story: Story, snapshot: Snapshot) -> Table:
    generation = str(story.generation) if story.generation >= 0 else "?"
    title = f"shared group {story.group}: {snapshot.state}, generation {generation}, {len(snapshot.members)} members"
    table = Table(title=title, title_justify="left", expand=True)
    for column, justify in (
        ("partition", "right"),
        ("owner", "left"),
        ("position", "right"),
        ("end", "right"),
        ("lag", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    colours = {member: _COLOURS[i % len(_COLOURS)] for i, member in enumerate(sorted(snapshot.members))}
    for partition, end in sorted(snapshot.ends.items()):
        owner = snapshot.owners.get(partition, "—")
        position = snapshot.positions.get(partition, 0)
        name = Text(owner, style=colours.get(owner, "dim"))
        table.add_row(str(partition), name, f"{position:,}", f"{end:,}", f"{max(0, end - position):,}")
    return table


def _query_table(course: Course) -> Table:
    table = Table(title="queries on Spark", title_justify="left", expand=True)
    for column in ("query", "batch", "records/s", "watermark", "rows in state"):
        table.add_column(column, justify="left" if column == "query" else "right")
    for query, batches in sorted(course.batches.items()):
        last = batches[-1]
        watermark = (
            "" if last.watermark_ms is None else f"{datetime.fromtimestamp(last.watermark_ms / 1_000, UTC):%d %b %Y}"
        )
        rows = f"{last.state_rows:,}" if last.state_rows else ""
        table.add_row(query, str(last.number), f"{course.rate(query):,.0f}", watermark, rows)
    return table


def _bar(snapshot: Snapshot, sent: int, total: int) -> Table:
    handled = sum(snapshot.positions.values())
    grid = Table.grid(padding=(0, 1))
    grid.add_row("sent", ProgressBar(total=total, completed=sent, width=50), f"{sent:,} of {total:,}")
    grid.add_row("committed", ProgressBar(total=total, completed=handled, width=50), f"{handled:,}")
    return grid


def _by_owner(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    for member in sorted(set(snapshot.owners.values())):
        numbers = sorted(p for p, owner in snapshot.owners.items() if owner == member)
        yield member, "[" + " ".join(map(str, numbers)) + "]"
