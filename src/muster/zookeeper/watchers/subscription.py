"""The subscription of a member of scheme 1: topics with a number of streams, or all topics that match an expression.

A list is expanded in every rebalance, by each member for every other one. So an expression must have the same meaning
for all, and must not keep any of them busy (`topic_expression.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.errors import ConfigError
from muster.model import GROUP_METADATA_TOPIC
from muster.zookeeper.base.znodes import MAX_STREAMS, MemberRegistration, SubscriptionPattern, check_name
from muster.zookeeper.watchers.topic_expression import topic_expression


def list_text(text: str) -> str:
    """A list as Kafka's tools read it (`TopicFilter.scala`): commas separate alternatives, blanks and quotes are
    removed."""
    return text.strip().replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")


class WatcherSubscription:
    """One member's subscription. `streams` has its streams by topic, or by the expression of a list, as in its id."""

    __slots__ = ("_expression", "pattern", "streams")

    def __init__(self, pattern: SubscriptionPattern, streams: Mapping[str, int]) -> None:
        self.pattern = pattern
        self.streams = dict(streams)
        is_list = pattern is not SubscriptionPattern.STATIC and self.streams
        self._expression = topic_expression(next(iter(self.streams))) if is_list else None

    @classmethod
    def to_topics(cls, topics: Mapping[str, int]) -> WatcherSubscription:
        """These topics, each with a number of streams. Raises ConfigError."""
        for topic in topics:
            check_name("a topic", topic)
        return cls(SubscriptionPattern.STATIC, _checked(topics))

    @classmethod
    def to_list(cls, regex: str, streams: int = 1, *, white: bool = True) -> WatcherSubscription:
        """All topics whose whole name the expression matches, or with `white=False` does not. Raises ConfigError."""
        pattern = SubscriptionPattern.WHITE_LIST if white else SubscriptionPattern.BLACK_LIST
        text = list_text(regex)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the expression {text!r} cannot be written as UTF-8") from None
        return cls(pattern, _checked({text: streams}))

    @property
    def is_list(self) -> bool:
        """Whether the topics have to be looked up."""
        return self._expression is not None

    def topics(self, existing: Iterable[str]) -> dict[str, int]:
        """Streams by topic, with the topics that exist now. A list never includes the topic of committed offsets.

        Kafka 0.8 knows no other internal topic, so other members expect a list to include newer ones.

        Raises:
            TooCostlyError: matching them would take too long.
        """
        if self._expression is None:
            return self.streams
        count = next(iter(self.streams.values()))
        white = self.pattern is SubscriptionPattern.WHITE_LIST
        topics = [topic for topic in existing if topic != GROUP_METADATA_TOPIC]
        matching = self._expression.matching(topics)
        return {topic: count for topic in topics if (topic in matching) == white}

    def registration(self, now: int) -> MemberRegistration:
        """The contents of the member's id; `now` is the wall-clock time in milliseconds."""
        return MemberRegistration(self.pattern, self.streams, now)


def _checked(streams: Mapping[str, int]) -> Mapping[str, int]:
    if not streams:
        raise ConfigError("subscribe() needs at least one topic")
    if any(type(count) is not int or count < 1 for count in streams.values()) or sum(streams.values()) > MAX_STREAMS:
        raise ConfigError(f"each topic needs at least 1 stream, and a consumer may have at most {MAX_STREAMS}")
    return streams
