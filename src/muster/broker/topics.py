"""The topic catalogue: names, ids, partition counts and settings, in one file of the data folder.

The catalogue says which topics exist. A topic is there once its line is in the file, and gone once it is not: folders
of partitions are made after the one and removed after the other, and what a crash left between is put right at start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from muster.broker.files import write_whole
from muster.broker.identity import random_uuid, uuid_bytes, uuid_text
from muster.errors import ConfigError
from muster.model import INTERNAL_TOPICS
from muster.protocol.primitives import ZERO_UUID

FILE = "muster-topics.json"
MAX_NAME_LENGTH = 249
_PARTITION = re.compile(r".+-\d+\Z")
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def invalid_name(name: str) -> str | None:
    """Why Kafka would refuse the name, None if it would not."""
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
    """Refuse a folder with somebody else's partitions, before anything in it is touched.

    A folder of ours has the catalogue before it has its first partition.

    Raises:
        ConfigError: there are partitions, but no catalogue.
    """
    if (folder / FILE).exists() or not folder.is_dir():
        return
    for entry in folder.iterdir():
        if _PARTITION.match(entry.name) and any(entry.glob("*.log")):
            raise ConfigError(f"{folder} holds {entry.name}, but no {FILE}: this is the data folder of another broker")


@dataclass(slots=True)
class Topic:
    """A topic. `settings` are its own, as text; the rest it has from the broker."""

    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether it is a topic of the broker's own."""
        return self.name in INTERNAL_TOPICS


class TopicCatalogue:
    """The topics that exist. Answers the coordinator's questions about them too (`TopicResolver`)."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        # Metric names know no difference between '.' and '_': Kafka keeps such topics apart.
        self._collisions: dict[str, str] = {}

    @classmethod
    def load(cls, folder: Path) -> TopicCatalogue:
        """The folder's catalogue, an empty one if it has none.

        Raises:
            ConfigError: the file cannot be understood.
        """
        catalogue = cls(folder)
        try:
            content = json.loads(catalogue._path.read_bytes())
            for name, entry in content["topics"].items():
                topic = Topic(name, uuid_bytes(entry["id"]), entry["partitions"], entry["settings"])
                catalogue._put(topic)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{catalogue._path} cannot be understood: {error}") from None
        return catalogue

    def __iter__(self) -> Iterator[Topic]:
        """All topics, by name."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        """The topic of a name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic of an id."""
        return self._by_id.get(topic_id)

    def colliding(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in '.' and '_'."""
        other = self._collisions.get(name.replace(".", "_"))
        return other if other != name else None

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        """Add a topic that does not exist yet; durable when this returns.

        Raises:
            OSError: the catalogue could not be written; the topic does not exist.
        """
        topic = Topic(name, random_uuid(), partitions, dict(settings))
        self._put(topic)
        try:
            self._save()
        except OSError:
            self._drop(topic)
            raise
        return topic

    def delete(self, topic: Topic) -> None:
        """Remove a topic; durable when this returns.

        Raises:
            OSError: the catalogue could not be written; the topic is still there.
        """
        self._drop(topic)
        try:
            self._save()
        except OSError:
            self._put(topic)
            raise

    # What the coordinator asks.

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, 0 if there is none of that name."""
        found = self._by_name.get(topic)
        return found.partitions if found is not None else 0

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, zeros if there is none of that name."""
        found = self._by_name.get(topic)
        return found.topic_id if found is not None else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name that goes with an id."""
        found = self._by_id.get(topic_id)
        return found.name if found is not None else None

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._collisions[topic.name.replace(".", "_")] = topic.name

    def _drop(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._collisions.pop(topic.name.replace(".", "_"), None)

    def _save(self) -> None:
        topics = {
            topic.name: {"id": uuid_text(topic.topic_id), "partitions": topic.partitions, "settings": topic.settings}
            for topic in self
        }
        write_whole(self._path, json.dumps({"version": 1, "topics": topics}, indent=1).encode())
