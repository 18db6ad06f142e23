"""The cluster as one session knows it: brokers, topics and their leaders, read once and kept current by watches.

Theory: every relevant path is either clean, with a watch on it, or dirty. An event makes its path dirty. `refresh`
reads what is dirty and sets the watch in the same request, so no change in between is missed; reading a list of
children makes new ones dirty and forgets deleted ones. When nothing is dirty, the image is a recent state of this
session's ZooKeeper server: perhaps stale, but never a mixture in which a topic has partitions without their
registration. Important writes therefore check a version.

An expired session has no watches: then everything is dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from muster.zookeeper.base.operations import (
    Exists,
    GetChildren,
    GetData,
    NoNodeError,
    Plan,
    SessionEvent,
    Watched,
    ask,
    side_by_side,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONTROLLER,
    TRANSACTION_VERSION,
    BrokerRegistration,
    LeaderAndIsr,
    TopicRegistration,
    broker_path,
    partition_state_path,
    read_broker,
    read_controller,
    read_partition_state,
    read_topic,
    read_topic_config,
    read_transaction_version,
    topic_config_path,
    topic_path,
)

DELETE_TOPICS = "/admin/delete_topics"

NO_CONTROLLER = -1
DELETED_KNOWN = 10_000
"""How many names of deleted topics are remembered."""


@dataclass(slots=True)
class PartitionImage:
    """A partition's state, with the version of its znode."""

    state: LeaderAndIsr
    version: int


@dataclass(slots=True)
class TopicImage:
    """A topic: its partitions, its settings, and the state of each partition, once the controller has written it."""

    registration: TopicRegistration
    settings: dict[str, str] = field(default_factory=dict)
    states: dict[int, PartitionImage] = field(default_factory=dict)


class ClusterImage:
    """What a session knows about the cluster. `refresh` makes it current, `changed` receives events."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicImage] = {}
        self.controller_id = NO_CONTROLLER
        self.deletions: set[str] = set()
        """Topics whose deletion was requested."""
        self.transaction_version: tuple[int, int] | None = None
        """The level of `transaction.version`, and its epoch; None before a cluster of muster's brokers has agreed on
        it."""
        self.unreadable: dict[str, Unreadable] = {}
        """Znodes that cannot be parsed, by path, with the reason, for the log. The cluster continues without them."""
        self._roots: dict[str, Callable[[str], Plan[None]]] = {
            BROKER_IDS: self._read_brokers,
            BROKER_TOPICS: self._read_topics,
            DELETE_TOPICS: self._read_deletions,
            CONTROLLER: self._read_controller,
            TRANSACTION_VERSION: self._read_transaction_version,
        }
        """The paths that are always relevant; all others are found from there."""
        self._deleted: dict[str, None] = {}
        self._dirty: dict[str, Callable[[str], Plan[None]]] = {}
        self.forget()

    @property
    def is_current(self) -> bool:
        """Whether all reported changes have been read."""
        return not self._dirty

    def note_deleted(self, names: Iterable[str]) -> None:
        """Topics with these names were deleted, as opposed to missing."""
        for name in names:
            self._deleted.pop(name, None)
            self._deleted[name] = None
        while len(self._deleted) > DELETED_KNOWN:
            del self._deleted[next(iter(self._deleted))]

    def is_deleted(self, name: str) -> bool:
        """Whether a topic is known to have been deleted, and no topic of that name has been created since."""
        return name in self._deleted and not self.has_topic(name)

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of that name, even one whose znode cannot be parsed."""
        return name in self.topics or topic_path(name) in self.unreadable

    def forget(self) -> None:
        """Read everything again, as after an expired session. Known values stay until they are read again."""
        self._dirty = {}
        for path in (*self._roots, *self._known_paths()):
            self.reread(path)

    def changed(self, event: Watched | SessionEvent) -> bool:
        """Handle an event of the session; returns whether there is something to read."""
        if isinstance(event, SessionEvent):
            if event is SessionEvent.EXPIRED:
                self.forget()
            return event is SessionEvent.CONNECTED and not self.is_current
        # Even for unknown paths: the event may be processed before the plan has received the answer that preceded it.
        reader = self._reader(event.path)
        if reader is not None:
            self._dirty[event.path] = reader
        return not self.is_current

    def reread(self, path: str) -> None:
        """Read one path again at the next refresh."""
        reader = self._reader(path)
        if reader is not None:
            self._dirty[path] = reader

    def able(self, topic: TopicImage, number: int) -> Collection[int]:
        """The brokers that may lead a partition: all registered ones except those that cannot open it."""
        if not any(registration.offline for registration in self.brokers.values()):
            return self.brokers
        partition = topic.registration.topic_id, number
        return [broker for broker, registration in self.brokers.items() if partition not in registration.offline]

    def refresh(self) -> Plan[bool]:
        """Read what is dirty, and what becomes dirty meanwhile; returns whether anything was read.

        If an operation raises, everything stays as dirty as before."""
        read = False
        while self._dirty:
            yield from side_by_side(map(self._read, list(self._dirty)))
            read = True
        return read

    def _read(self, path: str) -> Plan[None]:
        # Clean from the moment of the request: an event that arrives before the answer makes it dirty again.
        reader = self._dirty.pop(path, None)
        if reader is None:
            return
        try:
            yield from reader(path)
        except BaseException:
            self._dirty.setdefault(path, reader)
            raise

    # --- the reader of each path -------------------------------------------------------------------------------------

    def _reader(self, path: str) -> Callable[[str], Plan[None]] | None:
        """The function that reads a path; None if it is not part of the image: other code may share the session."""
        match path.split("/")[1:]:
            case ["brokers", "ids", _]:
                return self._read_broker
            case ["brokers", "topics", _]:
                return self._read_topic
            case ["brokers", "topics", _, "partitions", _, "state"]:
                return self._read_state
            case ["config", "topics", _]:
                return self._read_settings
        return self._roots.get(path)

    def _known_paths(self) -> Iterator[str]:
        yield from map(broker_path, self.brokers)
        for name, topic in self.topics.items():
            yield topic_path(name)
            yield topic_config_path(name)
            yield from (partition_state_path(name, number) for number in topic.registration.partitions)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_brokers(self, path: str) -> Plan[None]:
        names = yield from _children(path)
        for gone in [number for number in self.brokers if str(number) not in names]:
            del self.brokers[gone]
        for name in names:
            if not name.isdecimal() or int(name) not in self.brokers:
                self._dirty[f"{path}/{name}"] = self._read_broker

    def _read_broker(self, path: str) -> Plan[None]:
        name = path.rpartition("/")[2]
        data = yield from _listed(path)
        found = read_broker(name, data[0]) if data is not None else None
        if isinstance(found, BrokerRegistration):
            self.brokers[found.broker_id] = found
        elif name.isdecimal():
            self.brokers.pop(int(name), None)
        self._note(path, found)

    def _read_controller(self, path: str) -> Plan[None]:
        data = yield from _data(path)
        found = read_controller(data[0]) if data is not None else None
        self.controller_id = NO_CONTROLLER if found is None or isinstance(found, Unreadable) else found.broker_id
        self._note(path, found)

    def _read_transaction_version(self, path: str) -> Plan[None]:
        data = yield from _data(path)
        found = read_transaction_version(data[0]) if data is not None else None
        if data is not None and isinstance(found, int):
            self.transaction_version = found, data[1]
        self._note(path, found)

    def _read_deletions(self, path: str) -> Plan[None]:
        self.deletions = set((yield from _children(path)))

    def _read_topics(self, path: str) -> Plan[None]:
        names = yield from _children(path)
        for gone in set(self.topics) - set(names):
            del self.topics[gone]
        for name in names:
            if name not in self.topics:
                self._dirty[topic_path(name)] = self._read_topic

    def _read_topic(self, path: str) -> Plan[None]:
        name = path.rpartition("/")[2]
        data = yield from _listed(path)
        found = read_topic(name, data[0]) if data is not None else None
        self._note(path, found)
        if not isinstance(found, TopicRegistration):
            self.topics.pop(name, None)
            return
        known = self.topics.get(name)
        if known is not None and known.registration.topic_id == found.topic_id:
            new = set(found.partitions) - set(known.registration.partitions)
            known.registration = found
            for gone in set(known.states) - set(found.partitions):
                del known.states[gone]
        else:
            self.topics[name] = TopicImage(found)
            new = set(found.partitions)
            self._dirty[topic_config_path(name)] = self._read_settings
        for number in sorted(new):
            self._dirty[partition_state_path(name, number)] = self._read_state

    def _read_settings(self, path: str) -> Plan[None]:
        name = path.rpartition("/")[2]
        data = yield from self._of_topic(name, path)
        found = read_topic_config(name, data[0]) if data is not None else {}
        self._note(path, found)
        if name in self.topics and not isinstance(found, Unreadable):
            self.topics[name].settings = found

    def _read_state(self, path: str) -> Plan[None]:
        parts = path.split("/")
        name, number = parts[3], int(parts[5])
        data = yield from self._of_topic(name, path)
        found = read_partition_state(name, number, data[0]) if data is not None else None
        self._note(path, found)
        topic = self.topics.get(name)
        if topic is None or number not in topic.registration.partitions:
            return
        if data is not None and isinstance(found, LeaderAndIsr):
            topic.states[number] = PartitionImage(found, data[1])
        else:
            topic.states.pop(number, None)

    def _of_topic(self, name: str, path: str) -> Plan[tuple[bytes | None, int] | None]:
        """`_data` of a znode that belongs to a topic. A deleted topic is not watched: ZooKeeper would keep the watches
        of all topics that ever existed. If it is created again, the list of topics changes, and all of its znodes are
        read."""
        while name in self.topics:
            try:
                data, stat = yield from ask(GetData(path, watch=True))
                return data, stat.version
            except NoNodeError:
                if (yield from ask(Exists(topic_path(name)))) is None:
                    self.topics.pop(name, None)
                elif (yield from ask(Exists(path, watch=True))) is None:
                    return None
        return None

    def _note(self, path: str, found: object) -> None:
        if isinstance(found, Unreadable):
            self.unreadable[path] = found
        else:
            self.unreadable.pop(path, None)


def _children(path: str) -> Plan[list[str]]:
    """A znode's children; none if it does not exist. It is watched in both cases."""
    while True:
        try:
            return (yield from ask(GetChildren(path, watch=True)))
        except NoNodeError:
            if (yield from ask(Exists(path, watch=True))) is None:
                return []


def _listed(path: str) -> Plan[tuple[bytes | None, int] | None]:
    """A znode's data and version, watched; None if there is no such znode. The watch on its parent's children reports
    when it exists again."""
    try:
        data, stat = yield from ask(GetData(path, watch=True))
    except NoNodeError:
        return None
    return data, stat.version


def _data(path: str) -> Plan[tuple[bytes | None, int] | None]:
    """A znode's data and version; None if it does not exist. It is watched in both cases."""
    while True:
        try:
            data, stat = yield from ask(GetData(path, watch=True))
            return data, stat.version
        except NoNodeError:
            if (yield from ask(Exists(path, watch=True))) is None:
                return None
