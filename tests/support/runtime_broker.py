"""A coordinator's runtime with logs in memory, and the end of a broker's turn."""

from typing import Any

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import GroupEvent
from muster.coordinator.runtime import Client, CoordinatorRuntime
from muster.coordinator.shards.log_store import ShardLogStore
from muster.coordinator.shards.shards import ShardHost
from muster.coordinator.shards.store import Store
from muster.protocol import messages as m
from tests.support.group_harness import DEFAULT_PROTOCOLS, FakeTopics
from tests.support.memory_log import MemoryLog


class Broker:
    """A runtime with logs in memory; `turn` does what the broker does at the end of a turn of its loop."""

    def __init__(
        self,
        logs: dict[int, MemoryLog] | None = None,
        *,
        turns: bool = True,
        store: Store | None = None,
        assigned: str | None = None,
    ) -> None:
        self.logs = {} if logs is None else logs
        self.topics = FakeTopics()
        self.now = 1_700_000_000_000
        self.events: list[GroupEvent] = []
        self.flushes_wanted = 0
        self.opened: list[int] = []
        self._ids = 0
        self.runtime = CoordinatorRuntime(
            GroupConfig(group_initial_rebalance_delay_ms=0, server_assigned_groups=assigned),
            store or ShardLogStore(self._open),
            ShardHost(lambda: self.now, self.events.append, self._schedule if turns else None),
            topics=self.topics,
            new_member_id=self._new_member_id,
        )

    def loaded(self) -> "Broker":
        self.runtime.load_all(sorted(self.logs))
        return self

    def _open(self, partition: int) -> MemoryLog:
        self.opened.append(partition)
        return self.logs.setdefault(partition, MemoryLog())

    def _schedule(self) -> None:
        self.flushes_wanted += 1

    def _new_member_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    def send(self, request: Any, version: int = 5) -> list[Any]:
        answers: list[Any] = []
        self.runtime.submit(request, Client("cli", "/127.0.0.1", version), answers.append)
        return answers

    def commit(self, group_id: str = "g", offset: int = 1, partition: int = 0, *, turn: bool = False) -> list[Any]:
        """Commit; returns the list that gets the answer. `turn`: end the turn, so that it has the answer."""
        topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(partition, offset)])
        answers = self.send(m.OffsetCommitRequest(group_id, topics=[topic]), 8)
        if turn:
            self.turn()
        return answers

    def fetch(self, *group_ids: str) -> list[Any]:
        return self.send(m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(g, topics=None) for g in group_ids]), 8)

    def join(self, group_id: str = "g", member_id: str = "", instance: str | None = None) -> list[Any]:
        protocols = [m.JoinGroupRequestProtocol(*item) for item in DEFAULT_PROTOCOLS.items()]
        return self.send(m.JoinGroupRequest(group_id, 10_000, 60_000, member_id, instance, "consumer", protocols))

    def turn(self) -> None:
        self.runtime.flush()
        if (deadline := self.runtime.next_deadline()) is not None and deadline <= self.now:
            self.runtime.on_deadlines(self.now)
            self.runtime.flush()

    def log_of(self, group_id: str) -> MemoryLog:
        return self.logs[self.runtime.partition_for(group_id)]


def code(answers: list[Any]) -> int:
    """The error code of the only answer; that of its first partition if it has partitions."""
    (answer,) = answers
    holder = answer.topics[0].partitions[0] if getattr(answer, "topics", None) else answer
    return int(holder.error_code)
