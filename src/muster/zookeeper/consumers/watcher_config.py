"""The settings of `WatcherConsumer`: those of Kafka 0.8's consumer, with the names that the other consumers use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any

from muster.client.config import ConsumerConfig
from muster.errors import ConfigError
from muster.zookeeper.base.znodes import BrokerRegistration, check_name
from muster.zookeeper.watchers.settings import WatcherSettings

_BROKER_VERSIONS = {1: "0.8", 2: "0.9"}
"""By the version of a broker's registration: brokers of these releases do not report which requests they support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherConfig(ConsumerConfig):
    """The additional settings of a consumer that watches ZooKeeper, with the defaults of Kafka 0.8.2.

    `zookeeper_connect` is `host:port,host:port/chroot`. `group_id` is required; `consumer_id` is generated unless
    given. `partition_assignment_strategy` is range or roundrobin. Brokers are found in ZooKeeper, so there are no
    `bootstrap_servers`. `watch_brokers` triggers a rebalance whenever a broker joins or leaves, which no release of
    Kafka did. Settings for members of later groups (sessions, heartbeats, static members) have no effect.
    `security_protocol` and related settings are for the brokers: ZooKeeper is accessed without TLS or SASL.
    """

    zookeeper_connect: str = "localhost:2181"
    zookeeper_session_timeout_ms: int = 6_000
    zookeeper_connection_timeout_ms: int = 6_000
    consumer_id: str | None = None
    partition_assignment_strategy: tuple[Any, ...] = ("range",)
    rebalance_max_retries: int = 4
    rebalance_backoff_ms: int = 2_000
    auto_commit_interval_ms: int = 60_000
    watch_brokers: bool = False

    def _check(self) -> None:
        ConsumerConfig._check(self)
        if self.group_id is None:
            raise ConfigError("group_id is not set: a consumer that watches ZooKeeper is always in a group")
        if self.bootstrap_servers != ("localhost:9092",):
            raise ConfigError("bootstrap_servers is set, but this consumer finds the brokers in ZooKeeper")
        if len(self.partition_assignment_strategy) != 1:
            raise ConfigError("partition_assignment_strategy must name one strategy: members in ZooKeeper do not vote")
        if self.consumer_id is not None:
            check_name("consumer_id", self.consumer_id)
        self.settings("x")

    def settings(self, consumer_id: str) -> WatcherSettings:
        """The settings of the member."""
        assert self.group_id is not None
        return WatcherSettings(
            self.group_id,
            consumer_id,
            self.partition_assignment_strategy[0],
            self.zookeeper_session_timeout_ms,
            self.rebalance_max_retries,
            self.rebalance_backoff_ms,
            self.enable_auto_commit,
            self.watch_brokers,
            self.security_protocol,
        )

    def of_reader(self, consumer_id: str, brokers: Collection[BrokerRegistration]) -> dict[str, Any]:
        """The settings of the consumer that reads the member's partitions from these brokers."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(ConsumerConfig)}
        fallback = _BROKER_VERSIONS.get(min((broker.version for broker in brokers), default=3))
        return values | {
            "bootstrap_servers": self.addresses_of(brokers),
            "broker_version_fallback": self.broker_version_fallback or fallback,
            "client_id": self.client_id or consumer_id,
            "group_id": None,
        }

    def addresses_of(self, brokers: Iterable[BrokerRegistration]) -> list[str]:
        """Where brokers listen for this consumer's `security_protocol`."""
        found = (broker.endpoint(self.security_protocol) for broker in brokers)
        return [_address(endpoint.host, endpoint.port) for endpoint in found if endpoint is not None]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
