"""Every cell of the state x request tables, tried on a group that is in that state."""

from collections.abc import Callable

import pytest

from muster.coordinator.groups import classic
from muster.coordinator.groups.group import TRANSITIONS, ClassicGroupBase, GroupState
from muster.errors import ErrorCode
from tests.support.group_harness import GroupHarness
from tools import group_tables, rebalancing_page

WAITS = None


def in_state(state: GroupState) -> GroupHarness:
    """A group with a leader `a` and a member `b` in this state; in an empty one both have left."""
    group = GroupHarness().stable_with("a", "b")
    match state:
        case GroupState.EMPTY:
            group.leave("a").leave("b")
        case GroupState.PREPARING_REBALANCE:
            group.join("c")
        case GroupState.COMPLETING_REBALANCE:
            group.join("a").join("b")
        case GroupState.DEAD:
            # A request that was routed to the group before it was deleted: only the rules themselves see this state.
            group.group.state = GroupState.DEAD
    assert group.state is state
    return group


def answer_to(group: GroupHarness, name: str) -> ErrorCode | None:
    if group.waits(name):
        return WAITS
    answer = group.reply(name)
    if getattr(answer, "members", None) and hasattr(answer.members[0], "error_code"):
        return ErrorCode(answer.members[0].error_code)
    return ErrorCode(answer.error_code)


REQUESTS: dict[str, Callable[[GroupHarness], ErrorCode | None]] = {
    "Heartbeat": lambda group: group.heartbeat("b"),
    "JoinGroup by a member, unchanged": lambda group: answer_to(group.join("b", member_id=group.ids["b"]), "b"),
    "JoinGroup by the leader": lambda group: answer_to(group.join("a", member_id=group.ids["a"]), "a"),
    "SyncGroup by a member": lambda group: answer_to(group.sync("b"), "b"),
    "SyncGroup by the leader": lambda group: answer_to(group.sync("a"), "a"),
    "LeaveGroup": lambda group: answer_to(group.leave("b", version=2), "b"),
    "OffsetCommit by a member": lambda group: ErrorCode(group.commit("b", {("t", 0): 5})[0]),
    "OffsetCommit without membership": lambda group: ErrorCode(group.commit(None, {("t", 0): 5})[0]),
    "DeleteGroups": lambda group: ErrorCode(group.delete()),
    "OffsetDelete, of other topics": lambda group: ErrorCode(group.delete_offsets(("other", 0))[0]),
}


def test_every_table_is_tried():
    assert REQUESTS.keys() == classic.TABLES.keys()


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_cell(request_name, state):
    assert REQUESTS[request_name](in_state(state)) == classic.TABLES[request_name][state]


def test_a_newcomer_to_a_dead_group():
    """C3: the post's version says UNKNOWN_MEMBER_ID, today's Kafka says COORDINATOR_NOT_AVAILABLE."""
    group = in_state(GroupState.DEAD)
    assert answer_to(group.join("new"), "new") == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("table", classic.TABLES.values(), ids=classic.TABLES.keys())
def test_tables_have_an_answer_for_every_state(table):
    assert table.keys() == set(GroupState)


@pytest.mark.interpreted
def test_every_transition_is_taken_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    go = ClassicGroupBase.transition_to

    def note(group: ClassicGroupBase, state: GroupState, now: int) -> None:
        before = group.state
        go(group, state, now)
        seen.add((before, state))

    monkeypatch.setattr(ClassicGroupBase, "transition_to", note)
    group = GroupHarness().stable_with("a", "b").restart()
    group.join("c").join("a").join("b").join("d").leave("d").sync_all()
    for name in "abc":
        group.leave(name)
    group.restart()
    group.stable_with("s", instance="s").join("s", member_id="", instance="s")
    assert seen == {pair for pair in TRANSITIONS if GroupState.DEAD not in pair}


@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_a_group_only_makes_the_transitions_in_the_table(before: GroupState, after: GroupState) -> None:
    group = in_state(before).group
    if (before, after) in TRANSITIONS:
        group.transition_to(after, 7)
        assert (group.state, group.state_timestamp) == (after, 7)
    else:
        with pytest.raises(AssertionError, match=f"group 'g' cannot go from {before} to {after}"):
            group.transition_to(after, 7)
        assert group.state is before


def test_the_page_about_groups_is_up_to_date():
    assert group_tables.PAGE.read_text() == group_tables.page(), "run: python -m tools.group_tables"


def test_the_diagrams_of_rebalancing_are_up_to_date():
    text = rebalancing_page.PAGE.read_text()
    assert text == rebalancing_page.page(text), "run: python -m tools.rebalancing_page"
