"""The options of both concurrent consumers: the consumer's settings, and additional ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.client.concurrent.engine import EngineOptions
from muster.client.config import ConsumerConfig
from muster.client.core.checks import compile_pattern
from muster.client.core.concurrent.rules import Order, Retry, Rules, check_whole
from muster.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    """The options as the user set them."""

    topics: Iterable[str] | str | None = None
    pattern: str | re.Pattern[str] | None = None
    order: Order = "key"
    concurrency: int = 100
    retry: Retry = field(default_factory=Retry)
    dead_letter_topic: str | None = None
    commit_interval_ms: int = 1_000
    drain_timeout_ms: int = 30_000
    max_buffered: int | None = None
    handle_signals: bool = True

    def options(self, config: ConsumerConfig) -> EngineOptions:
        """The engine's options. Raises ConfigError if they contradict each other."""
        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics or ())
        if bool(topics) == (self.pattern is not None):
            raise ConfigError("set either topics or pattern")
        if config.group_id is None:
            raise ConfigError("group_id is not set: progress is kept in the offsets of a group")
        pattern = None if self.pattern is None else compile_pattern(self.pattern)
        letters = self.dead_letter_topic
        if letters is not None and (letters in topics or (pattern is not None and pattern.fullmatch(letters))):
            raise ConfigError(f"{letters} is one of the topics to read, and cannot be the dead letter topic too")
        check_whole("commit_interval_ms", self.commit_interval_ms, 1)
        check_whole("drain_timeout_ms", self.drain_timeout_ms, 0)
        if self.drain_timeout_ms >= config.max_poll_interval_ms:
            raise ConfigError(
                f"drain_timeout_ms ({self.drain_timeout_ms}) must be below max_poll_interval_ms "
                f"({config.max_poll_interval_ms}): a rebalance waits no longer than that for a member"
            )
        return EngineOptions(
            topics=topics,
            pattern=pattern,
            rules=self._rules(),
            dead_letter_topic=letters,
            commit_interval_ms=self.commit_interval_ms,
            drain_timeout_ms=self.drain_timeout_ms,
            handle_signals=self.handle_signals,
        )

    def _rules(self) -> Rules:
        check_whole("concurrency", self.concurrency, 1)
        buffered = max(1_000, 10 * self.concurrency) if self.max_buffered is None else self.max_buffered
        return Rules(
            order=self.order,
            concurrency=self.concurrency,
            max_buffered=buffered,
            retry=self.retry,
            dead_letters=self.dead_letter_topic is not None,
        )


def consumer_config(settings: Mapping[str, Any] | None, more: Mapping[str, Any]) -> ConsumerConfig:
    """The consumer's settings, with auto commit off."""
    chosen = dict(settings or {}) | dict(more)
    is_set = any(name.replace(".", "_") == "enable_auto_commit" for name in chosen)
    config = ConsumerConfig.of(chosen)
    if is_set and config.enable_auto_commit:
        raise ConfigError("enable_auto_commit cannot be on: only records that handlers have finished are committed")
    return replace(config, enable_auto_commit=False)
