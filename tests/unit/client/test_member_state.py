"""A member only makes the state transitions in the table, from which docs/reference/rebalancing.md has its diagram."""

from __future__ import annotations

import pytest

from muster.client.core.group.member_state import TRANSITIONS, MemberState


@pytest.mark.parametrize("before", MemberState)
@pytest.mark.parametrize("after", MemberState)
def test_a_member_only_makes_the_transitions_in_the_table(before: MemberState, after: MemberState) -> None:
    if (before, after) in TRANSITIONS:
        assert before.to(after) is after
    else:
        with pytest.raises(AssertionError, match=f"a member cannot go from {before.value} to {after.value}"):
            before.to(after)
