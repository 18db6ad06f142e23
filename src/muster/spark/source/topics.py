"""What a query knows about its topics across restarts: their IDs, and which partitions were added later.

A topic that is deleted and recreated under the same name is another topic: its ID shows that (KIP-516), its offsets do
not. So everything that is remembered of a topic's partitions is valid for one ID only.

A partition that did not exist when the query first started is read from its beginning, as in Spark's own
source. `startingOffsets` applies to the partitions that existed then.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.model import TopicPartition
from muster.spark.offsets import TopicState, TopicStates


class QueryTopics:
    """The topics of one query. `seen` and `restore` may be called in either order."""

    def __init__(self) -> None:
        self._known: TopicStates = {}
        self._view: TopicStates | None = None
        self._began = False

    @property
    def decided(self) -> bool:
        """Whether it is known which partitions existed when the query first started."""
        return self._began and self._view is not None

    @property
    def known(self) -> TopicStates:
        """For the checkpoint."""
        return dict(self._known)

    def topic_id(self, topic: str) -> str:
        """The ID that a topic has in the cluster, or had when it was last there; empty if the broker sent none."""
        found = [topics[topic].id for topics in (self._view or {}, self._known) if topic in topics]
        return next(filter(None, found), "")

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition was added after the query first saw its topic."""
        found = self._known.get(partition.topic)
        return found is None or partition.partition >= found.partitions

    def seen(self, view: Mapping[str, TopicState]) -> list[str]:
        """The topics that this query reads, as they are in the cluster now. Returns those recreated since."""
        first = self._view is None
        self._view = dict(view)
        return self._compare(first and not self._known) if self._began else []

    def restore(self, known: Mapping[str, TopicState]) -> list[str]:
        """Start from the topics in the checkpoint. Returns those recreated since."""
        self._began = True
        self._known = dict(known)
        return self._compare(not known) if self._view is not None else []

    def _compare(self, first: bool) -> list[str]:
        assert self._view is not None
        if first:
            self._known = dict(self._view)
            return []
        again: list[str] = []
        for name, now in self._view.items():
            before = self._known.get(name)
            if before is None:
                self._known[name] = TopicState(now.id, 0)
            elif not before.id:
                self._known[name] = before._replace(id=now.id)
            elif now.id and now.id != before.id:
                again.append(name)
                self._known[name] = TopicState(now.id, 0)
        return sorted(again)
