"""The settings of `ServerAssignedConsumer`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from muster.client.config import ConsumerConfig, addresses
from muster.client.security.settings import SecurityConfig
from muster.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAssignedConfig(ConsumerConfig):
    """The additional setting of a consumer whose coordinator assigns its partitions, and the differences from other
    consumers.

    `coordinator_servers` has the draft listeners of one or more coordinators, `host:port,host:port`: it is required,
    and any of them leads to the group's coordinator. Records are read from `bootstrap_servers`, brokers of Kafka or
    muster. `group_id` is required. `partition_assignment_strategy` names one strategy of the coordinator: range or
    roundrobin. There are no static members (`group_instance_id`), and no limit on the time between two polls:
    `max_poll_interval_ms` limits how long a join waits for the other members. `security_protocol` and related settings
    are for the brokers: a draft listener has neither TLS nor SASL.
    """

    coordinator_servers: tuple[str, ...] = ()
    partition_assignment_strategy: tuple[Any, ...] = ("range",)

    def _check(self) -> None:
        ConsumerConfig._check(self)
        object.__setattr__(self, "coordinator_servers", addresses("coordinator_servers", self.coordinator_servers))
        if not self.coordinator_servers:
            raise ConfigError("coordinator_servers is empty: name at least one coordinator as host:port")
        if self.group_id is None:
            raise ConfigError("group_id is not set: a ServerAssignedConsumer is always in a group")
        if self.group_instance_id is not None:
            raise ConfigError("group_instance_id is set, but these groups have no static members")
        strategies = self.partition_assignment_strategy
        if len(strategies) != 1 or not isinstance(strategies[0], str):
            raise ConfigError(
                "partition_assignment_strategy must name exactly one strategy, which the coordinator applies"
            )

    def of_member(self) -> ServerAssignedConfig:
        """The settings of the member's connections, without secrets: coordinators do not need them."""
        plain: dict[str, Any] = {setting.name: setting.default for setting in fields(SecurityConfig)}
        return replace(self, **plain)

    def of_reader(self) -> dict[str, Any]:
        """The settings of the consumer that reads the member's partitions."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(ConsumerConfig)}
        return values | {"group_id": None}
