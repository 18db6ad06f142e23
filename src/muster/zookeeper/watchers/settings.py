"""The settings of a member of scheme 1, and the id that it generates."""

from __future__ import annotations

from dataclasses import dataclass

from muster.errors import ConfigError
from muster.zookeeper.base import znodes
from muster.zookeeper.watchers.assignment import strategy


@dataclass(frozen=True)
class WatcherSettings:
    """The settings of a member, under Kafka 0.8's names in snake_case, with its defaults.

    `rebalance_max_retries` times `rebalance_backoff_ms` should be more than `zookeeper_session_timeout_ms`: otherwise
    the owner znodes of a killed member outlive all attempts.

    Raises:
        ConfigError: a setting is wrong.
    """

    group_id: str
    consumer_id: str
    """Begins with the group's id (see `new_consumer_id`); unique in the group."""
    partition_assignment_strategy: str = "range"
    zookeeper_session_timeout_ms: int = 6_000
    rebalance_max_retries: int = 4
    rebalance_backoff_ms: int = 2_000
    auto_commit_enable: bool = True
    watch_brokers: bool = False
    """Rebalance when a broker joins or leaves. Descriptions of scheme 1 say that members do; no release of Kafka did.
    """
    security_protocol: str = "PLAINTEXT"
    """Which listeners of the brokers it can read from. Consumers of 0.8 knew only one kind."""

    def __post_init__(self) -> None:
        znodes.check_name("group_id", self.group_id)
        znodes.check_name("consumer_id", self.consumer_id)
        strategy(self.partition_assignment_strategy)
        for name in ("zookeeper_session_timeout_ms", "rebalance_max_retries"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.zookeeper_session_timeout_ms >= 1 << 31:
            text = f"zookeeper_session_timeout_ms is {self.zookeeper_session_timeout_ms}; it must be below 2³¹"
            raise ConfigError(text)
        if self.rebalance_backoff_ms < 0:
            raise ConfigError(f"rebalance_backoff_ms is {self.rebalance_backoff_ms}; it must be at least 0")


def new_consumer_id(group_id: str, host: str, now: int, uuid_hex: str) -> str:
    """An id in the form of 0.8: `GROUP_HOST-MILLISECONDS-XXXXXXXX` with the first eight digits of a random UUID."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in host)
    return f"{group_id}_{host}-{now}-{uuid_hex[:8]}"
