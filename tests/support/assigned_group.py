"""Verbs for tests of groups whose coordinator assigns the partitions: `AssignedGroup().settle("a", "b").shares()`."""

from __future__ import annotations

from typing import Any, Self

from muster.coordinator.groups.config import GroupConfig
from muster.errors import ErrorCode
from muster.protocol.messages import JoinGroupResponse, SyncGroupResponse
from muster.protocol.subscription import Subscription, decode_assignment, encode_subscription
from tests.support.group_harness import GroupHarness


def reads(*topics: str, version: int = 0, **fields: Any) -> bytes:
    """The bytes of a subscription to topics."""
    return encode_subscription(Subscription(list(topics), **fields), version)


class AssignedGroup(GroupHarness):
    """One group whose coordinator assigns partitions, with topics `t` of four partitions and `u` of two."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        super().__init__(config or GroupConfig(server_assigned_groups="g.*"))

    def settle(self, *names: str, **fields: Any) -> Self:
        """These members join, and all get their assignments."""
        fields.setdefault("protocols", {"range": reads("t")})
        for name in names:
            self.join(name, **fields)
        self.tick(self.config.group_initial_rebalance_delay_ms * 2)
        for name in names:
            assert self.error(name) is ErrorCode.NONE, (name, self.error(name))
        return self

    def rejoin(self, *names: str, **fields: Any) -> Self:
        """Members that are known join again, each with its id."""
        fields.setdefault("protocols", {"range": reads("t")})
        for name in names:
            self.join_once(name, **fields)
        return self

    def shares(self) -> dict[str, list[tuple[str, int]]]:
        """What a SyncGroup of each member returns now, at once."""
        found = {}
        for name in self.members:
            self.sync(name)
            answer = self.reply(name)
            assert isinstance(answer, SyncGroupResponse)
            assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
            found[name] = [(topic, number) for topic, number in decode_assignment(answer.assignment).partitions]
        return found

    def joined_as(self, name: str) -> JoinGroupResponse:
        """The answer to the member's last JoinGroup, which succeeded."""
        answer = self.reply(name)
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        return answer

    def topics_changed(self, *names: str) -> Self:
        """The coordinator is notified of these topics; without names, that any may have changed."""
        self._take(self.shard.topics_changed(frozenset(names) if names else None, self.now))
        return self
