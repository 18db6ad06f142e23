"""Changes to existing topics, which any broker and Kafka's tools of that time request by writing znodes.

New partitions are written to `/brokers/topics/[topic]`, and the controller gives them leaders; settings are written to
`/config/topics/[topic]`. Each write checks that the znode is unchanged since it was read, and starts over if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from muster.zookeeper.base.operations import (
    BadVersionError,
    Check,
    Create,
    GetData,
    Multi,
    NodeExistsError,
    NoNodeError,
    Plan,
    SetData,
    Write,
    ZooKeeperError,
    ask,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    TopicRegistration,
    read_topic,
    read_topic_config,
    topic_config_data,
    topic_config_path,
    topic_path,
)

TRIES = 20
"""Several brokers may change a topic at the same time."""

Settings = Mapping[str, str]


def add_partitions(topic: str, added: Callable[[int], Iterable[list[int]]]) -> Plan[None]:
    """Add partitions to a topic. `added` receives their current number and returns the brokers of each new one; what
    it raises ends the plan.

    Raises:
        NoNodeError: the topic no longer exists.
        ZooKeeperError: it could not be written.
    """
    for _ in range(TRIES):
        data, stat = yield from ask(GetData(topic_path(topic)))
        found = read_topic(topic, data)
        if isinstance(found, Unreadable):
            raise ZooKeeperError(topic_path(topic), str(found))
        count = len(found.partitions)
        partitions = {**found.partitions, **dict(enumerate(added(count), count))}
        try:
            yield from ask(SetData(topic_path(topic), _with(found, partitions), stat.version))
        except BadVersionError:
            continue
        return
    raise ZooKeeperError(topic_path(topic), "other brokers keep changing it: try again")


def _with(found: TopicRegistration, partitions: dict[int, list[int]]) -> bytes:
    return found._replace(partitions=partitions).encode()


def alter_settings(topic: str, change: Callable[[Settings], Settings]) -> Plan[dict[str, str]]:
    """Change a topic's settings, and return them. `change` receives the current ones; what it raises ends the plan.

    Raises:
        NoNodeError: the topic no longer exists.
        ZooKeeperError: it could not be written.
    """
    path = topic_config_path(topic)
    for _ in range(TRIES):
        _, registered = yield from ask(GetData(topic_path(topic)))
        settings: Settings = {}
        version = None
        try:
            data, stat = yield from ask(GetData(path))
        except NoNodeError:
            pass
        else:
            version, found = stat.version, read_topic_config(topic, data)
            if isinstance(found, Unreadable):
                raise ZooKeeperError(path, str(found))
            settings = found
        changed = dict(change(settings))
        content = topic_config_data(changed)
        write: Write[Any] = Create(path, content) if version is None else SetData(path, content, version)
        try:
            yield from ask(Multi(Check(topic_path(topic), registered.version), write))
        except (BadVersionError, NodeExistsError):
            continue
        except NoNodeError:
            if version is None:
                raise
            continue
        return changed
    raise ZooKeeperError(path, "other brokers keep changing it: try again")
