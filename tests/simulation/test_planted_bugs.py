"""Realistic bugs, planted one at a time: the simulation must notice each within a few lives.

The lives are those in which the bug can show: among all lives it would take up to some hundreds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from muster.client.core.group.commits import OffsetCommitter
from muster.client.core.subscription_state import SubscriptionState
from muster.coordinator.groups import classic, classic_group, classic_join, shard
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.shards.served_shard import ServedShard
from muster.errors import ErrorCode
from muster.protocol.messages import OffsetFetchResponseGroup
from tests.simulator import InvariantError, Scenario, simulate

SEEDS = 60


def lead_lives(like: dict[str, Any]) -> None:
    for seed in range(SEEDS):
        simulate(seed, replace(Scenario.draw(Random(f"scenario {seed}")), **like))


def assert_caught(pattern: str, **like: Any) -> None:
    """One of the seeds finds it, in such a scenario, and says what is wrong."""
    with pytest.raises(InvariantError) as caught:
        lead_lives(like)
    said = str(caught.value).splitlines()[0]
    assert re.search(pattern, said), said


@pytest.mark.slow
def test_an_offset_is_returned_before_it_is_durable(monkeypatch):
    real = ServedShard.answer

    def hasty(served: ServedShard[Any], replies: Any) -> None:
        now = [reply for reply in replies if isinstance(reply.response, OffsetFetchResponseGroup)]
        for reply in now:
            reply.ticket(reply.response)
        real(served, [reply for reply in replies if reply not in now])

    monkeypatch.setattr(ServedShard, "answer", hasty)
    assert_caught("was returned for .* durable since the request|after the restart", lazy_log=True)


def test_commits_are_acknowledged_that_could_not_be_written(monkeypatch):
    monkeypatch.setattr(shard, "error_for_lost", lambda answer, error: answer)
    assert_caught("was acknowledged for|which is not durable|was deposed acknowledged|is not durable")


def test_a_fenced_member_that_commits_gets_unknown_member_id(monkeypatch):
    real = classic.check_generation
    monkeypatch.setattr(classic_group, "check_generation", lambda group, who, _, at: real(group, who, None, at))
    assert_caught("was fenced, but|knows that it is fenced", static=True, fetch=True, commits=("async",), members=3)


def test_a_member_is_expired_though_its_sync_was_answered_just_now(monkeypatch):
    """Its session is not renewed when a rebalance makes it join again."""
    real = classic._answer_sync

    def forgetful(group: Any, member: Any, error: ErrorCode, now: int, effects: Any) -> None:
        deadline = member.session_deadline
        real(group, member, error, now, effects)
        member.session_deadline = deadline

    monkeypatch.setattr(classic, "_answer_sync", forgetful)
    assert_caught(
        "expired, though it was heard from|expired while|still a member|not stable",
        members=5,
        static=False,
        session_timeout_ms=6_000,
        max_poll_interval_ms=15_000,
    )


def test_a_member_that_has_left_is_kept(monkeypatch):
    monkeypatch.setattr(classic, "_leave_one", lambda group, identity, left, effects: ErrorCode.NONE)
    assert_caught("had left, and then it expired")


def test_a_group_takes_one_more_than_it_may(monkeypatch):
    def roomy(group: ClassicGroup, member_id: str) -> bool:
        return len(group.members) <= group.config.group_max_size

    monkeypatch.setattr(classic_join, "_has_room_for", roomy)
    assert_caught(r"has \d+ members of \d+", members=4, static=False, group_max_size=3)


def test_records_are_handed_out_while_their_partition_is_being_given_up(monkeypatch):
    monkeypatch.setattr(SubscriptionState, "mark_pending_revocation", lambda subscription, partitions: None)
    assert_caught("gave .* up properly")


def test_a_position_that_was_looked_up_undoes_a_seek(monkeypatch):
    def overeager(subscription: SubscriptionState, partition: Any, strategy: Any, offset: int) -> None:
        state = subscription.find(partition)
        if state is not None:
            state.move_to(offset, -1)

    monkeypatch.setattr(SubscriptionState, "finish_reset", overeager)
    assert_caught(r"was handed \d+ of .* after|begins", fetch=True, restless=4)


def test_a_commit_goes_through_though_its_partition_was_lost_meanwhile(monkeypatch):
    real = OffsetCommitter.commit

    def unfenced(commits: OffsetCommitter, *arguments: Any, fence: Any = None, **more: Any) -> None:
        owned = commits._membership.ownership
        renewed = None if fence is None else {p: owned.get(p, since) for p, since in fence.items()}
        real(commits, *arguments, fence=renewed, **more)

    monkeypatch.setattr(OffsetCommitter, "commit", unfenced)
    assert_caught(
        "some of which it had lost|moved the offset|though", fetch=False, static=True, session_timeout_ms=6_000
    )
