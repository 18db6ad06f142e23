"""Draws the state diagrams of docs/reference/rebalancing.md from the tables that the code follows.

`python -m tools.rebalancing_page` updates them; the text around them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from muster.client.core.group.member_state import TRANSITIONS as MEMBER
from muster.client.core.group.member_state import MemberState
from muster.coordinator.groups.group import TRANSITIONS as GROUP
from muster.coordinator.groups.group import GroupState
from muster.zookeeper.server_assigned.states import COORDINATOR_TRANSITIONS, ServerAssignedState
from muster.zookeeper.server_assigned.states import TRANSITIONS as SERVER_ASSIGNED
from muster.zookeeper.watchers.states import TRANSITIONS as WATCHER
from muster.zookeeper.watchers.states import WatcherState

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "rebalancing.md"

Arrow = tuple[str, str, str]
"""The state before, the state after, and what causes the change."""


def page(text: str) -> str:
    """The page with its diagrams redrawn."""
    diagrams: dict[str, list[Arrow]] = {
        "watcher": _moved(WATCHER, {WatcherState.UNREGISTERED, WatcherState.CLOSED}),
        "server-assigned": _moved(SERVER_ASSIGNED, {ServerAssignedState.CLOSED}),
        "coordinator": _moved(COORDINATOR_TRANSITIONS, set()),
        "group": _followed(GROUP, GroupState.DEAD),
        "member": _followed(MEMBER, MemberState.UNJOINED),
    }
    for place, arrows in diagrams.items():
        begin, end = f"<!-- {place}:begin -->\n", f"<!-- {place}:end -->\n"
        before, found, rest = text.partition(begin)
        _, found_too, after = rest.partition(end)
        if not (found and found_too):
            raise SystemExit(f"{PAGE} has no place for the diagram: {begin.strip()} … {end.strip()}")
        text = before + begin + _diagram(arrows) + end + after
    return text


def _moved(table: Mapping[tuple[Any, Any], Any], left_out: Container[Enum]) -> list[Arrow]:
    """The arrows of a table, without those to states that every state leads to: the text mentions these instead."""
    return [
        (before.value, after.value, happening.value)
        for (before, happening), after in table.items()
        if after not in left_out
    ]


def _followed(table: Mapping[tuple[Any, Any], str], left_out: Enum) -> list[Arrow]:
    """The same for a table that says which state follows which."""
    return [(before.value, after.value, why) for (before, after), why in table.items() if after is not left_out]


def _diagram(arrows: Iterable[Arrow]) -> str:
    arrows = list(arrows)
    names = dict.fromkeys(name for before, after, _ in arrows for name in (before, after))
    ids = {name: re.sub(r"\W", "_", name) for name in names}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{name}" as {ids[name]}' for name in names if ids[name] != name]
    lines += [f"    {ids[before]} --> {ids[after]}: {why}" for before, after, why in arrows]
    return "\n".join([*lines, "```\n"])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
