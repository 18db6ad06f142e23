"""What a request is about: the group, member, topics and so on by which faults select requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.protocol.api import CoordinatorType
from muster.protocol.primitives import Request, Struct

_TOPIC = ("name", "topic", "topic_name")
_PARTITIONS = frozenset({"partition_index", "partition", "index", "partition_indexes", "partitions"})
_GROUPS = frozenset({"group_id", "groups_names", "groups"})
_MEMBERS = frozenset({"member_id", "group_instance_id"})
_TRANSACTIONAL_IDS = frozenset({"transactional_id", "transactional_ids", "v3_and_below_transactional_id"})


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties by which a rule can select a request."""

    api: str
    version: int = 0
    client_id: str = ""
    groups: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    """Member ids and instance ids."""
    transactional_ids: frozenset[str] = frozenset()
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The topics that the request names, each with the partitions that it names."""


def facts_of(
    request: Request[Any], version: int, client_id: str, topic_name: Callable[[bytes], str | None] = lambda _: None
) -> Facts:
    """The facts about a decoded request. `topic_name` returns the name of a topic id, or None if it is unknown."""
    names = _NamesInRequest(topic_name)
    names.collect(request, None)
    api = type(request).__name__.removesuffix("Request")
    if api == "FindCoordinator":
        of_transaction = getattr(request, "key_type", 0) == CoordinatorType.TRANSACTION
        keys = getattr(request, "coordinator_keys", None) or [getattr(request, "key", "")]
        (names.transactional_ids if of_transaction else names.groups).update(keys)
    partitions = {topic: frozenset(indexes) for topic, indexes in names.partitions.items()}
    groups, members, ids = (frozenset(each - {""}) for each in (names.groups, names.members, names.transactional_ids))
    return Facts(api, version, client_id, groups, members, ids, partitions)


class _NamesInRequest:
    """The names in the structures of a request. A partition's structure is inside its topic's structure."""

    def __init__(self, topic_name: Callable[[bytes], str | None]) -> None:
        self.groups: set[str] = set()
        self.members: set[str] = set()
        self.transactional_ids: set[str] = set()
        self.partitions: dict[str, set[int]] = {}
        self._topic_name = topic_name

    def collect(self, struct: Struct, topic: str | None) -> None:
        """Collect what a structure names; `topic` is the topic whose structure it is in, if any."""
        topic = self._topic_of(struct) or topic
        if topic is not None:
            self.partitions.setdefault(topic, set())
        for name in struct.__slots__:
            value = getattr(struct, name)
            values = value if isinstance(value, list) else [value]
            if name in _GROUPS:
                self.groups.update(one for one in values if isinstance(one, str))
            elif name in _MEMBERS:
                self.members.update(one for one in values if isinstance(one, str))
            elif name in _TRANSACTIONAL_IDS:
                self.transactional_ids.update(one for one in values if isinstance(one, str))
            elif name in _PARTITIONS and topic is not None:
                self.partitions[topic].update(one for one in values if isinstance(one, int))
            for one in values:
                if isinstance(one, Struct):
                    self.collect(one, topic)

    def _topic_of(self, struct: Struct) -> str | None:
        """The topic that a structure describes; None for other named structures, such as a protocol or a setting."""
        kind = type(struct).__name__
        if kind == "ForgottenTopic" or "value" in struct.__slots__:
            return None
        topic_id = getattr(struct, "topic_id", None)
        if topic_id is not None and any(topic_id):
            return self._topic_name(topic_id)
        named = [getattr(struct, name) for name in _TOPIC if name in struct.__slots__]
        return named[0] or None if named and "topic" in f"{kind} {struct.__slots__}".lower() else None
