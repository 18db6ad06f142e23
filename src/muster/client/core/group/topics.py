"""The topics of a member: its subscription, by name or by pattern; for a leader, the topics of all members.

Theory. A pattern is matched with each new answer about the metadata. The member joins again when its subscription
differs from the one it joined with, including when a topic that its pattern matches was created or deleted. A leader
also joins again when the topics that it assigned from have changed. A follower ignores such changes: its leader
triggers the rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.client.config import ConsumerConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.subscription_state import SubscriptionKind, SubscriptionState


class MemberTopics:
    """The topics of one member, and what its last join knew of them."""

    def __init__(self, config: ConsumerConfig, subscription: SubscriptionState, metadata: ClusterMetadata) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._joined: set[str] | None = None
        self._assigned_from: dict[str, object] | None = None
        self._seen_version = -1
        self._seen_refresh = -1
        self._matched_at = -(10**9)
        self._refresh_wanted: int | None = None

    @property
    def _by_pattern(self) -> bool:
        return self._subscription.kind is SubscriptionKind.PATTERN

    def keep_fresh(self, group_topics: Iterable[str] = ()) -> None:
        """Keep metadata of the subscription's topics fresh; a leader passes the topics of the whole group."""
        if self._by_pattern:
            self._metadata.set_interest(None)
        else:
            self._metadata.set_interest(self._subscription.topics | set(group_topics))

    def is_subscribed(self, topic: str) -> bool:
        """Whether the subscription includes a topic, even one that matches the pattern but is not known yet."""
        pattern = self._subscription.pattern
        if self._by_pattern and pattern is not None:
            return pattern.fullmatch(topic) is not None
        return topic in self._subscription.topics

    # --- a pattern ---------------------------------------------------------------------------------------------------

    def match_pattern(self, now: int) -> None:
        """Find the topics that the pattern matches now."""
        if not self._by_pattern or self._seen_refresh == self._metadata.refreshes:
            return
        self._seen_refresh = self._metadata.refreshes
        self._matched_at = now
        hidden = self._config.exclude_internal_topics
        self._subscription.update_pattern(
            name for name, topic in self._metadata.topics.items() if not (hidden and topic.is_internal)
        )

    def pattern_is_fresh(self, now: int) -> bool:
        """Whether metadata is fresh enough to join by pattern; requests it if not.

        With fresh metadata, all members find a new topic in one rebalance, not in many.
        """
        if not self._by_pattern:
            return True
        if self._refresh_wanted is None:
            if now - self._matched_at <= self._config.retry_backoff_ms:
                return True  # as fresh as it can be: metadata is not fetched more often than this
            self._refresh_wanted = self._metadata.refreshes + 1
            self._metadata.request_update(now)
        return self._metadata.refreshes >= self._refresh_wanted

    def forget_matches(self, now: int) -> None:
        """The pattern has changed: match it with the next metadata."""
        self._seen_refresh = -1
        self._refresh_wanted = self._metadata.refreshes + 1
        self._metadata.request_update(now)

    # --- what the last join knew -------------------------------------------------------------------------------------

    def joining(self) -> None:
        """The member joins with the subscription as it is now."""
        self._joined = set(self._subscription.topics)

    def assigned_from(self, topics: Iterable[str]) -> None:
        """The member, as leader, has assigned these topics as they are now."""
        self._assigned_from = {topic: self._assignment_inputs(topic) for topic in topics}
        self._seen_version = self._metadata.version

    def _assignment_inputs(self, topic: str) -> object:
        """What the assignment of a topic depends on; racks count only for a leader that has one, as in Kafka."""
        if self._config.client_rack:
            return self._metadata.partition_count(topic), self._metadata.racks(topic)
        return self._metadata.partition_count(topic)

    def follow(self) -> None:
        """Another member leads: changes of the topics that were assigned do not concern this one."""
        self._assigned_from = None

    def joined(self, *, is_leader: bool) -> None:
        """The join has succeeded."""
        self._refresh_wanted = None
        if not is_leader:
            self.follow()

    def learn(self, assigned: set[str]) -> None:
        """The leader may know topics that match this member's pattern and that this member has not seen yet."""
        if self._by_pattern and self._joined is not None:
            new = assigned - self._joined
            if new:
                self._subscription.topics = self._subscription.topics | new
                self._joined |= new

    def change(self) -> str | None:
        """Why the member must rejoin, if it must."""
        if self._assigned_from is not None and self._seen_version != self._metadata.version:
            self._seen_version = self._metadata.version
            changed = sorted(
                topic for topic, before in self._assigned_from.items() if self._assignment_inputs(topic) != before
            )
            if changed:
                return f"cached metadata has changed: {', '.join(changed)}"
        if self._joined is not None and self._joined != self._subscription.topics:
            return "subscription has changed"
        return None

    def forget(self) -> None:
        """The user has unsubscribed: the next subscription starts afresh."""
        self._joined = None
        self._assigned_from = None
