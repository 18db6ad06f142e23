"""Writes docs/groups.md from the tables that the coordinator answers by. `python -m tools.group_tables` renews it."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.classic import TABLES
from muster.coordinator.group import GroupState

PAGE = Path(__file__).resolve().parents[1] / "docs" / "groups.md"

HEAD = """\
# What a group answers in which state

A group of the classic protocol is in one of five states. `Empty`: it has no members, but perhaps committed offsets.
`PreparingRebalance`: it waits for its members' JoinGroup requests. `CompletingRebalance`: they have all joined, and it
waits for the leader's assignment. `Stable`: every member can have its share. `Dead`: it has been deleted, or its
coordinator is going away. How a group passes from one to the next is told at the head of
`src/muster/coordinator/classic.py`.

The table is for requests that have passed the guards, which come first: the group exists, the member is known and has
not been replaced under its `group.instance.id`, the generation is the group's. *waits* means that the answer comes when
other members have done their part, or their time is over.

This page is written by `python -m tools.group_tables` from the very tables that the coordinator uses; a test sees to it
that it is up to date.

"""


def page() -> str:
    """The text of docs/groups.md."""
    rows = [
        ["Request", *(state.value for state in GroupState)],
        ["---"] * (len(GroupState) + 1),
        *([name, *(_cell(table[state]) for state in GroupState)] for name, table in TABLES.items()),
    ]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(answer: object) -> str:
    return "*waits*" if answer is None else getattr(answer, "name", str(answer))


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
