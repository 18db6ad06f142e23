"""Writes groups.md from the tables that decide the coordinator's answers. `python -m tools.group_tables` updates it."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.groups.classic import TABLES
from muster.coordinator.groups.group import GroupState

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "groups.md"

HEAD = """\
# How a group answers in each state

A group of the classic protocol is in one of five states. `Empty`: it has no members, but perhaps committed offsets.
`PreparingRebalance`: it waits for its members' JoinGroup requests. `CompletingRebalance`: they have all joined, and it
waits for the leader's assignment. `Stable`: every member can get its assignment. `Dead`: it has been deleted, or its
coordinator is unloading it. The docstring of `coordinator/groups/classic.py` says how a group passes from one state to
the next.

The table covers requests that have passed the first checks: the group exists, the member is known and has not been
replaced under its `group.instance.id`, the generation is the group's. *waits* means that the answer is sent when other
members have sent their requests, or have run out of time.

`python -m tools.group_tables` writes this page from the tables that the coordinator itself uses; a test checks that it
is up to date.

"""


def page() -> str:
    """The text of docs/reference/groups.md."""
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
