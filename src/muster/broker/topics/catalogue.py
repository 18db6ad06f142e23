"""The topic catalogue: names, ids, partition counts and settings, in one file of the data folder.

A topic exists as long as its line is in the file. The folders of its partitions are created after the line is written,
and removed after it is gone. A deleted topic is listed as `deleting` until its folders are removed. So a start after a
crash knows which folders to remove, and mistakes none for those of a new topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from muster.broker.identity import random_uuid, uuid_bytes, uuid_text
from muster.broker.topics.deletion_reserve import DiskReserve
from muster.errors import ConfigError
from muster.log import DISK, Files, write_whole
from muster.model import GROUP_EVENTS_TOPIC, INTERNAL_TOPICS, TopicPartition
from muster.protocol.primitives import ZERO_UUID

FILE = "muster-topics.json"
MAX_NAME_LENGTH = 249
_PARTITION = re.compile(r".+-\d+\Z")
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
EVENTS_TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
}
"""Settings that identify an events topic created by brokers. They are the defaults; no user sets all of them."""


def invalid_name(name: str) -> str | None:
    """Why Kafka rejects the name, None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.match(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with partitions of another program, before anything in it is touched.

    muster writes the catalogue before the first partition.

    Raises:
        ConfigError: there are partitions, but no catalogue.
    """
    if (folder / FILE).exists() or not folder.is_dir():
        return
    for entry in folder.iterdir():
        if _PARTITION.match(entry.name) and entry.is_dir() and any(entry.glob("*.log")):
            raise ConfigError(f"{folder} contains {entry.name}, but no {FILE}: it is another program's data folder")


@dataclass(slots=True)
class Topic:
    """A topic. `settings` are its own, as text; the others come from the broker."""

    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """In a cluster: the newest epoch under which this broker has led each partition."""

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """All its partitions."""
        return [TopicPartition(self.name, index) for index in range(self.partitions)]

    @property
    def internal(self) -> bool:
        """Whether it is an internal topic. An events topic that a user created is not."""
        if self.name == GROUP_EVENTS_TOPIC:
            return self.settings.items() >= EVENTS_TOPIC_SETTINGS.items()
        return self.name in INTERNAL_TOPICS


class TopicToCreate(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    settings: dict[str, str]
    topic_id: bytes | None = None
    """Assigned by a cluster; a standalone broker generates one."""


class Topics:
    """Topics, by name and by id, with most of what a coordinator needs to know about them (`TopicResolver`)."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        """All topics, by name."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        """A topic by its name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """A topic by its id."""
        return self._by_id.get(topic_id)

    def names(self) -> Iterable[str]:
        """The names of all topics."""
        return self._by_name

    def partition_count(self, topic: str) -> int:
        """A topic's number of partitions, 0 if the topic does not exist."""
        found = self._by_name.get(topic)
        return found.partitions if found is not None else 0

    def topic_id(self, topic: str) -> bytes:
        """A topic's id, zeros if the topic does not exist or has none."""
        found = self._by_name.get(topic)
        return found.topic_id if found is not None else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        found = self._by_id.get(topic_id)
        return found.name if found is not None else None


class TopicCatalogue(Topics):
    """The existing topics, in their file."""

    def __init__(self, folder: Path, files: Files = DISK) -> None:
        super().__init__()
        self.reserve = DiskReserve(folder, files)
        """Space reserved for removing topics and records."""
        self._path = folder / FILE
        self._files = files
        # In metric names '.' and '_' are the same: Kafka refuses a topic that differs from another only in these.
        self._collisions: dict[str, str] = {}
        self._deleting: dict[str, Topic] = {}

    @classmethod
    def load(cls, folder: Path, files: Files = DISK) -> TopicCatalogue:
        """The folder's catalogue, an empty one if it has none.

        Raises:
            ConfigError: the file cannot be parsed.
        """
        catalogue = cls(folder, files)
        try:
            content = json.loads(catalogue._path.read_bytes())
            for name, entry in content["topics"].items():
                catalogue._put(_topic(name, entry))
            catalogue._deleting = {name: _topic(name, entry) for name, entry in content.get("deleting", {}).items()}
            if len(catalogue._by_id) != len(catalogue._by_name):
                raise ValueError("two topics have one id")
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{catalogue._path} cannot be parsed: {error}") from None
        return catalogue

    def colliding(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in '.' and '_'."""
        other = self._collisions.get(name.replace(".", "_"))
        return other if other != name else None

    def create_all(self, wanted: Iterable[TopicToCreate]) -> list[Topic]:
        """Add topics that do not exist yet, all or none; durable when this returns. It costs one write in all.

        Raises:
            OSError: the catalogue could not be written; none of them exists.
        """
        topics = [Topic(new.name, new.topic_id or random_uuid(), new.partitions, dict(new.settings)) for new in wanted]
        for topic in topics:
            self._put(topic)
        try:
            self._save()
        except OSError:
            for topic in topics:
                self._drop(topic)
            raise
        return topics

    def change_all(self, changes: Collection[tuple[Topic, int, dict[str, str]]]) -> None:
        """Change topics' partition counts and settings, all or none; durable when this returns.

        Raises:
            OSError: the catalogue could not be written; the topics are as before.
        """
        former = [(topic, topic.partitions, topic.settings) for topic, _, _ in changes]
        for topic, partitions, settings in changes:
            topic.partitions, topic.settings = partitions, dict(settings)
        try:
            self._save()
        except OSError:
            for topic, partitions, settings in former:
                topic.partitions, topic.settings = partitions, settings
            raise

    def note_epochs(self, led: Iterable[tuple[Topic, int, int]]) -> None:
        """Store the epochs under which partitions are led; durable when this returns. Raises OSError; a later change of
        any topic makes it durable too."""
        for topic, index, epoch in led:
            topic.epochs[index] = epoch
        self._save()

    def delete_all(self, topics: Collection[Topic]) -> None:
        """Remove topics, all or none; durable when this returns. They are `deleting` from then on. It costs one write
        in all.

        Raises:
            OSError: the catalogue could not be written; the topics are still there.
        """
        for topic in topics:
            self._drop(topic)
            self._deleting[topic.name] = topic
        try:
            self.reserve.released_for(self._save)
        except OSError:
            for topic in topics:
                del self._deleting[topic.name]
                self._put(topic)
            raise

    def forget(self, topics: Collection[Topic]) -> None:
        """Forget topics whose folders were set aside, all or none; durable when this returns.

        Raises:
            OSError: the catalogue could not be written; the topics are still there.
        """
        for topic in topics:
            self._drop(topic)
        try:
            self._save()
        except OSError:
            for topic in topics:
                self._put(topic)
            raise

    @property
    def deleting(self) -> list[Topic]:
        """Deleted topics whose folders may still exist."""
        return list(self._deleting.values())

    def deleting_by_name(self, name: str) -> Topic | None:
        """The deleted topic of that name whose folders must still be removed."""
        return self._deleting.get(name)

    def deleted(self, topic: Topic) -> None:
        """The topic's folders have been removed. The topic disappears from the file at the next write."""
        self._deleting.pop(topic.name, None)

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._collisions[topic.name.replace(".", "_")] = topic.name

    def _drop(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._collisions.pop(topic.name.replace(".", "_"), None)

    def _save(self) -> None:
        deleting = f',\n"deleting": {_entries(self._deleting.values())}' if self._deleting else ""
        content = f'{{"version": 1,\n"topics": {_entries(self)}{deleting}}}\n'
        write_whole(self._files, self._path, content.encode())


def _entries(topics: Iterable[Topic]) -> str:
    """A JSON object with a topic on each line: indenting all of it takes ten times as long, and blocks all requests."""
    lines = []
    for topic in topics:
        entry: dict[str, object] = {
            "id": uuid_text(topic.topic_id),
            "partitions": topic.partitions,
            "settings": topic.settings,
        }
        if topic.epochs:
            entry["epochs"] = topic.epochs
        lines.append(f"{json.dumps(topic.name)}: {json.dumps(entry)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _topic(name: str, entry: dict[str, Any]) -> Topic:
    """A topic from its entry in the file. Raises ValueError, KeyError or TypeError if the file was edited by hand."""
    partitions, settings = entry["partitions"], entry["settings"]
    if why := invalid_name(name):
        raise ValueError(why)
    if type(partitions) is not int or partitions < 1:
        raise ValueError(f"{name} has {partitions!r} partitions")
    if not all(isinstance(value, str) for value in settings.values()):
        raise ValueError(f"{name} has settings that are not text")
    epochs = {int(index): int(epoch) for index, epoch in entry.get("epochs", {}).items()}
    return Topic(name, uuid_bytes(entry["id"]), partitions, settings, epochs)
