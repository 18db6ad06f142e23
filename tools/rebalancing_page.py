"""Draws the state diagrams of docs/rebalancing.md from the tables that the code goes by.

`python -m tools.rebalancing_page` renews them; the text around them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from muster.coordinator.group import TRANSITIONS as GROUP
from muster.coordinator.group import GroupState
from muster.zookeeper.watcher_states import TRANSITIONS as WATCHER
from muster.zookeeper.watcher_states import WatcherState

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rebalancing.md"

Arrow = tuple[str, str, str]
"""From a state to another one, and what brings it."""


def page(text: str) -> str:
    """The page with diagrams drawn anew."""
    for place, arrows in (("group", _group()), ("watcher", _watcher())):
        begin, end = f"<!-- {place}:begin -->", f"<!-- {place}:end -->"
        text, found = re.subn(
            f"{begin}.*?{end}", lambda _: f"{begin}\n{_diagram(arrows)}\n{end}", text, flags=re.DOTALL
        )
        if found != 1:
            raise SystemExit(f"{PAGE} has no place for the diagram: {begin} … {end}")
    return text


def _watcher() -> list[Arrow]:
    # From every state but one leads the same way out: that would be drawn as a heap of arrows.
    return [
        (before.value, after.value, happening.value)
        for (before, happening), after in WATCHER.items()
        if after not in (WatcherState.UNREGISTERED, WatcherState.CLOSED)
    ]


def _group() -> list[Arrow]:
    return [(before, after, why) for (before, after), why in GROUP.items() if after is not GroupState.DEAD]


def _diagram(arrows: Iterable[Arrow]) -> str:
    arrows = list(arrows)
    names = dict.fromkeys(name for before, after, _ in arrows for name in (before, after))
    ids = {name: re.sub(r"\W", "_", name) for name in names}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{name}" as {ids[name]}' for name in names if ids[name] != name]
    lines += [f"    {ids[before]} --> {ids[after]}: {why}" for before, after, why in arrows]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
