"""Kafka's znodes: their paths, their contents byte for byte, and how they are read, as untrusted input.

Any program may have written a znode. So a reader returns a value in every case: the contents, or `Unreadable` with the
reason, which the caller reports and skips (`znode_json.py`). It never raises, and allocates memory only in proportion
to the data. `MemberRegistration.poison` says why Java's 0.8 consumers cannot read a registration that can be read here:
a single one stops all of them (`Json.scala` of 0.8.2.2 reads each number with `toInt`).

Writers produce what Kafka's own writers do, with keys in the same order, so that tools of every release can read it.
Names are not escaped in paths: `check_name` refuses names that cannot be part of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from muster.errors import ConfigError
from muster.model import Node
from muster.zookeeper.base.znode_json import (
    DECIMAL,
    INT32,
    InvalidZnodeError,
    Json,
    Unreadable,
    encode,
    integers,
    parse_znode,
    quoted,
    text_of,
)

T = TypeVar("T")

CONSUMERS = "/consumers"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
COORDINATORS = "/muster/coordinators"
SLOTS = "/muster/slots"
GROUPS = "/muster/groups"
TRANSACTION_VERSION = "/muster/transaction.version"
"""The level of `transaction.version`, the same for all brokers of a cluster. Its epoch is the version of this znode, as
the version of `/feature` was in Kafka."""

MAX_STREAMS = 10_000
"""The most streams that one member may register: each is a thread in the assignment that every member computes."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]+\Z")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z")
_HOST = re.compile(r"[0-9a-zA-Z_.:%-]{1,255}\Z")
_ENDPOINT = re.compile(r"([a-zA-Z0-9_.-]+)://\[?([0-9a-zA-Z_.:%-]{0,255})\]?:(-?[0-9]{1,5})\Z")

# --- paths -----------------------------------------------------------------------------------------------------------


def check_name(kind: str, name: str) -> str:
    """The name, if it may be part of a path.

    Kafka 0.8 allows the same characters in `group.id`, `client.id` and names of topics.

    Raises:
        ConfigError: it may not; the message begins with `kind`.
    """
    if not _NAME.match(name):
        raise ConfigError(f"{kind} is {name!r}; in ZooKeeper it may contain only letters, digits, '.', '_' and '-'")
    return name


def is_topic_name(name: str) -> bool:
    """Whether a broker can have a topic of that name. Kafka 0.8 allows 255 characters; later releases allow 249."""
    return len(name) <= 255 and _NAME.match(name) is not None


def broker_path(broker_id: int) -> str:
    """Where a broker registers."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Where a topic's partitions and their replicas are."""
    return f"{BROKER_TOPICS}/{topic}"


def partition_state_path(topic: str, partition: int) -> str:
    """Where a partition's leader is; the parent znodes have no data."""
    return f"{BROKER_TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """Where a topic's settings are."""
    return f"{TOPIC_CONFIGS}/{topic}"


class GroupPaths:
    """The znodes of a group of scheme 1. Raises ConfigError for a group id that cannot be part of a path."""

    def __init__(self, group_id: str) -> None:
        check_name("group_id", group_id)
        self.ids = f"{CONSUMERS}/{group_id}/ids"
        self.owners = f"{CONSUMERS}/{group_id}/owners"
        self.offsets = f"{CONSUMERS}/{group_id}/offsets"

    def member(self, consumer_id: str) -> str:
        """Where a member registers, ephemeral."""
        return f"{self.ids}/{consumer_id}"

    def owner(self, topic: str, partition: int) -> str:
        """Where a thread claims a partition, ephemeral."""
        return f"{self.owners}/{topic}/{partition}"

    def offset(self, topic: str, partition: int) -> str:
        """Where the group's committed offset is."""
        return f"{self.offsets}/{topic}/{partition}"


# --- brokers ---------------------------------------------------------------------------------------------------------


class BrokerEndpoint(NamedTuple):
    """A listener of a broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class BrokerRegistration(NamedTuple):
    """What a broker registers in `/brokers/ids`."""

    broker_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    timestamp_ms: int
    """When it registered, since the epoch."""
    version: int = 5
    """Version 1 is from Kafka 0.8, 2 from 0.9, 3 and 4 from 0.10 and later, 5 from 2.7 and later."""
    rack: str | None = None
    jmx_port: int = -1
    draft_listener: BrokerEndpoint | None = None
    """The listener for the protocol of Kafka's drafts. Only muster's brokers have one. It is not among the endpoints,
    because a consumer of Kafka 0.9 fails on an unknown listener name; all releases of Kafka ignore unknown keys."""
    offline: frozenset[tuple[str, int]] = frozenset()
    """The partitions that the broker cannot open and so cannot lead, by topic id and number. Only muster's brokers have
    this. A recreated topic has another id, so its partitions are not affected."""

    @property
    def plaintext(self) -> BrokerEndpoint | None:
        """The first listener without encryption that can be connected to: the only kind that consumers of 0.8 know."""
        return self.endpoint("PLAINTEXT")

    def endpoint(self, security_protocol: str) -> BrokerEndpoint | None:
        """The first listener of a security protocol that can be connected to."""
        fit = (endpoint for endpoint in self.endpoints if endpoint.security_protocol == security_protocol)
        return next((found for found in fit if found.host and 0 < found.port < 1 << 16), None)

    @property
    def node(self) -> Node | None:
        """Its address for clients without encryption; None if it has none."""
        found = self.plaintext
        return Node(self.broker_id, found.host, found.port, self.rack) if found is not None else None

    @property
    def draft_node(self) -> Node | None:
        """Its address for members that speak the draft protocol; None if it has none."""
        found = self.draft_listener
        return Node(self.broker_id, found.host, found.port) if found is not None else None

    def encode(self) -> bytes:
        """In Kafka's form."""
        plain = self.plaintext
        endpoints = [str(endpoint) for endpoint in self.endpoints]
        protocols = {endpoint.listener: endpoint.security_protocol for endpoint in self.endpoints}
        values: dict[str, Any] = {
            "features": {},
            "listener_security_protocol_map": protocols,
            "endpoints": endpoints,
            "jmx_port": self.jmx_port,
            "host": plain.host if plain is not None else None,
            "port": plain.port if plain is not None else -1,
            "timestamp": str(self.timestamp_ms),
            "version": self.version,
            "rack": self.rack,
        }
        names = list(_BROKER_KEYS[self.version])
        if self.rack is not None and self.version >= 3:
            names.append("rack")
        if self.draft_listener is not None:
            names.append("draft_listener")
            values["draft_listener"] = str(self.draft_listener)
        if self.offline:
            names.append("offline_partitions")
            of_topics: dict[str, list[int]] = {}
            for topic_id, number in sorted(self.offline):
                of_topics.setdefault(topic_id, []).append(number)
            values["offline_partitions"] = of_topics
        return encode({name: values[name] for name in names})


_BROKER_KEYS: dict[int, tuple[str, ...]] = {
    1: ("jmx_port", "timestamp", "host", "version", "port"),
    2: ("jmx_port", "timestamp", "endpoints", "host", "version", "port"),
    3: ("jmx_port", "timestamp", "endpoints", "host", "version", "port"),
    4: ("listener_security_protocol_map", "endpoints", "jmx_port", "host", "timestamp", "port", "version"),
    5: ("features", "listener_security_protocol_map", "endpoints", "jmx_port", "port", "host", "version", "timestamp"),
}
"""The keys of each version in the order in which Kafka happens to write them."""


def read_broker(name: str, data: bytes | None) -> BrokerRegistration | Unreadable:
    """What the child `name` of `/brokers/ids` says, in any version."""
    return parse_znode(f"{BROKER_IDS}/{name}", data, lambda found: _broker(name, found))


def _broker(name: str, found: Json) -> BrokerRegistration:
    version = found.integer("version")
    if version < 1:
        raise InvalidZnodeError("its version is below 1")
    _check_id(name)
    if version == 1:
        host = found.text("host")
        if not _HOST.match(host):
            raise InvalidZnodeError(f"{quoted(host)} is not a host name")
        endpoints: tuple[BrokerEndpoint, ...] = (BrokerEndpoint("PLAINTEXT", host, found.port("port")),)
    else:
        protocols = found.mapping("listener_security_protocol_map") if "listener_security_protocol_map" in found else {}
        endpoints = tuple(_endpoint(text, protocols) for text in found.texts("endpoints"))
    return BrokerRegistration(
        int(name),
        endpoints,
        found.time("timestamp"),
        version,
        found.text("rack") if found.get("rack") is not None else None,
        found.integer("jmx_port") if "jmx_port" in found else -1,
        _draft_listener(found),
        _offline(found),
    )


def _offline(found: Json) -> frozenset[tuple[str, int]]:
    if "offline_partitions" not in found:
        return frozenset()
    of_topics = found.mapping("offline_partitions").items()
    return frozenset((topic_id, number) for topic_id, held in of_topics for number in integers(topic_id, held))


def _draft_listener(found: Json) -> BrokerEndpoint | None:
    return _endpoint(found.text("draft_listener"), {"DRAFT": "PLAINTEXT"}) if "draft_listener" in found else None


def _check_id(name: str) -> None:
    if not _NUMBER.match(name) or int(name) >= INT32:
        raise InvalidZnodeError("its name is not a broker id")


def _endpoint(text: str, protocols: Mapping[str, Any]) -> BrokerEndpoint:
    parts = _ENDPOINT.match(text)
    if parts is None:
        raise InvalidZnodeError(f"{quoted(text)} is not a listener")
    listener, host, port = parts.groups()
    protocol = protocols.get(listener, listener)  # before version 4 a listener is named after its protocol
    if not isinstance(protocol, str):
        raise InvalidZnodeError("a security protocol is not text")
    return BrokerEndpoint(listener, host, int(port), protocol)


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicRegistration(NamedTuple):
    """A topic's partitions, each with the ids of the brokers that hold it, the preferred leader first."""

    partitions: dict[int, list[int]]
    topic_id: str | None = None
    """As Kafka writes it since 2.8: 22 characters of base64."""
    version: int = 3

    def encode(self) -> bytes:
        """As Kafka 0.8 writes it in version 1, and as Kafka 3 does in version 3."""
        partitions = {str(number): replicas for number, replicas in self.partitions.items()}
        if self.version == 1:
            return encode({"version": 1, "partitions": partitions})
        values: dict[str, Any] = {"partitions": partitions}
        if self.topic_id is not None:
            values["topic_id"] = self.topic_id
        return encode({**values, "adding_replicas": {}, "removing_replicas": {}, "version": self.version})


def read_topic(topic: str, data: bytes | None) -> TopicRegistration | Unreadable:
    """What `/brokers/topics/[topic]` says, in any version."""
    return parse_znode(topic_path(topic), data, _topic)


def _topic(found: Json) -> TopicRegistration:
    partitions: dict[int, list[int]] = {}
    for name, replicas in found.mapping("partitions").items():
        if not _NUMBER.match(name) or int(name) >= INT32:
            raise InvalidZnodeError(f"{quoted(name)} is not a partition number")
        partitions[int(name)] = integers("replicas", replicas)
    topic_id = found.text("topic_id") if found.get("topic_id") is not None else None
    return TopicRegistration(dict(sorted(partitions.items())), topic_id, found.integer("version"))


class LeaderAndIsr(NamedTuple):
    """A partition's leader and in-sync replicas. `leader` is -1 while no replica can lead."""

    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int

    def encode(self) -> bytes:
        """In the form that all Kafka releases share."""
        values = {"controller_epoch": self.controller_epoch, "leader": self.leader, "version": 1}
        return encode({**values, "leader_epoch": self.leader_epoch, "isr": self.isr})


def read_partition_state(topic: str, partition: int, data: bytes | None) -> LeaderAndIsr | Unreadable:
    """What a partition's `state` says."""
    return parse_znode(
        partition_state_path(topic, partition),
        data,
        lambda found: LeaderAndIsr(
            found.integer("leader"),
            found.integer("leader_epoch"),
            integers("isr", found.get("isr")),
            found.integer("controller_epoch"),
        ),
    )


def topic_config_data(settings: Mapping[str, str]) -> bytes:
    """A topic's settings as Kafka writes them."""
    return encode({"version": 1, "config": dict(settings)})


def read_topic_config(topic: str, data: bytes | None) -> dict[str, str] | Unreadable:
    """What `/config/topics/[topic]` says."""
    return parse_znode(topic_config_path(topic), data, _topic_config)


def _topic_config(found: Json) -> dict[str, str]:
    settings = found.mapping("config")
    return {text_of("a setting", name): text_of("a setting", value) for name, value in settings.items()}


# --- the controller --------------------------------------------------------------------------------------------------


class Controller(NamedTuple):
    """The ephemeral znode that says which broker is the controller."""

    broker_id: int
    timestamp_ms: int
    version: int = 1

    def encode(self) -> bytes:
        """As Kafka writes it; version 2 is from Kafka 3.4 and later."""
        values = {"version": self.version, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms)}
        return encode({**values, "kraftControllerEpoch": -1} if self.version >= 2 else values)


def read_controller(data: bytes | None) -> Controller | Unreadable:
    """What `/controller` says."""
    return parse_znode(
        CONTROLLER,
        data,
        lambda found: Controller(found.integer("brokerid"), found.time("timestamp"), found.integer("version")),
    )


def read_transaction_version(data: bytes | None) -> int | Unreadable:
    """What `/muster/transaction.version` says."""
    return _read_decimal(TRANSACTION_VERSION, data)


def read_controller_epoch(data: bytes | None) -> int | Unreadable:
    """What `/controller_epoch` says: a number that only grows."""
    return _read_decimal(CONTROLLER_EPOCH, data)


# --- coordinators that share the groups ------------------------------------------------------------------------------


def coordinator_path(coordinator_id: int) -> str:
    """Where a coordinator registers, ephemeral."""
    return f"{COORDINATORS}/{coordinator_id}"


def slot_epoch_path(slot: int) -> str:
    """Where a slot's epoch is: the version of this znode. Its data is the id of the coordinator that raised it last."""
    return f"{SLOTS}/{slot}/epoch"


def slot_owner_path(slot: int) -> str:
    """Where a coordinator claims a slot, ephemeral."""
    return f"{SLOTS}/{slot}/owner"


class CoordinatorRegistration(NamedTuple):
    """The addresses of a group coordinator."""

    host: str
    port: int
    draft_listener: BrokerEndpoint | None = None
    """The listener for the protocol of Kafka's drafts."""

    def encode(self) -> bytes:
        """In muster's own form; Kafka never had this znode."""
        draft = {} if self.draft_listener is None else {"draft_listener": str(self.draft_listener)}
        return encode({"version": 1, "host": self.host, "port": self.port, **draft})


def read_coordinator(name: str, data: bytes | None) -> CoordinatorRegistration | Unreadable:
    """What the child `name` of `/muster/coordinators` says."""
    return parse_znode(f"{COORDINATORS}/{name}", data, lambda found: _coordinator(name, found))


def _coordinator(name: str, found: Json) -> CoordinatorRegistration:
    _check_id(name)
    host, port = found.text("host"), found.port("port")
    if not _HOST.match(host) or not port:
        raise InvalidZnodeError(f"{quoted(host)} port {port} is not an address")
    return CoordinatorRegistration(host, port, _draft_listener(found))


class SlotOwner(NamedTuple):
    """Which coordinator has a slot, and under which epoch it took it."""

    coordinator_id: int
    epoch: int

    def encode(self) -> bytes:
        """In muster's own form."""
        return encode({"id": self.coordinator_id, "epoch": self.epoch})


def read_slot_owner(slot: int, data: bytes | None) -> SlotOwner | Unreadable:
    """What a slot's `owner` says."""
    return parse_znode(
        slot_owner_path(slot), data, lambda found: SlotOwner(found.integer("id"), found.integer("epoch"))
    )


# --- members of scheme 1 ---------------------------------------------------------------------------------------------


class SubscriptionPattern(Enum):
    """How a member of scheme 1 describes its topics; Kafka calls it the pattern."""

    STATIC = "static"
    """Topics, each with a number of streams."""
    WHITE_LIST = "white_list"
    """All topics whose whole name a regular expression matches."""
    BLACK_LIST = "black_list"
    """All topics whose whole name a regular expression does not match."""


class MemberRegistration(NamedTuple):
    """What a member of scheme 1 registers in `/consumers/[group]/ids`."""

    pattern: SubscriptionPattern
    subscription: dict[str, int]
    """Streams by topic; for a white or black list, by its regular expression, the only key."""
    timestamp_ms: int
    poison: str | None = None
    """Why Java's 0.8 consumers cannot read it; None if they can."""

    def encode(self) -> bytes:
        """As Kafka 0.8.2.2 writes it. The timestamp is text: as a number it would be beyond Java's int (see the top of
        this file). Kafka 0.8.2.2 escapes a regular expression, and nothing else."""
        escape = _plain if self.pattern is SubscriptionPattern.STATIC else _escaped
        streams = ",".join(f'"{escape(name)}":{count}' for name, count in self.subscription.items())
        return (
            f'{{"version":1,"subscription":{{{streams}}},"pattern":"{self.pattern.value}",'
            f'"timestamp":"{self.timestamp_ms}"}}'
        ).encode()


def read_member(path: str, data: bytes | None) -> MemberRegistration | Unreadable:
    """What a member's id says; `path` is that of the znode."""
    return parse_znode(path, data, _member)


def _member(found: Json) -> MemberRegistration:
    name = found.text("pattern")
    lists = {pattern.value: pattern for pattern in SubscriptionPattern}
    pattern = lists.get(name, SubscriptionPattern.STATIC)  # as 0.8 does
    subscription = found.mapping("subscription")
    if pattern is not SubscriptionPattern.STATIC:
        subscription = dict(list(subscription.items())[:1])
    if any(type(count) is not int or count < 1 for count in subscription.values()):
        raise InvalidZnodeError("a number of streams is not an integer of at least 1")
    if sum(subscription.values()) > MAX_STREAMS:
        raise InvalidZnodeError(f"it has more than {MAX_STREAMS} streams")
    poison = found.beyond_java
    return MemberRegistration(pattern, subscription, found.time("timestamp"), poison)


def read_offset(path: str, data: bytes | None) -> int | Unreadable:
    """A committed offset, which is that of the next record to read. Kafka 0.8 writes -1 for none."""
    return _read_decimal(path, data)


def _read_decimal(path: str, data: bytes | None) -> int | Unreadable:
    text = (data or b"").decode("latin-1")
    if not DECIMAL.match(text) or not -(1 << 63) <= int(text) < 1 << 63:
        return Unreadable(path, f"{quoted(text)} is not a 64-bit integer")
    return int(text)


def _plain(name: str) -> str:
    return name


def _escaped(regex: str) -> str:
    """Escapes text like `Utils.JSONEscapeString` of 0.8.2.2."""
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(short.get(c) or (f"\\u{ord(c):04x}" if c < " " or "\x7f" <= c <= "\x9f" else c) for c in regex)
