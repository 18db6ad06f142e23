"""Where a record goes: to its partition, or parked while its topic is unknown."""

from __future__ import annotations

from collections import deque
from operator import index

from muster.client.config import ProducerConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import Accumulator, Outgoing
from muster.client.core.produce.partitioner import Partitioner, StickyPartitioner, partition_for_key
from muster.client.core.seeded_random import SeededRandom
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError, MusterError
from muster.model import TopicPartition

_FINAL_ERRORS = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Placement:
    """Chooses partitions and puts records into their batches.

    A record for an unknown topic, or for a partition that its topic does not have yet, is parked. So is every later
    one of the same topic, to keep the order.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: ClusterMetadata,
        accumulator: Accumulator,
        partitioner: Partitioner | None,
        random: SeededRandom,
    ) -> None:
        self.deadline: int | None = None
        """When the next parked record has waited too long."""
        self.stalled_since: dict[int, int] = {}
        """Brokers that are not being sent their ready batches, and since when."""
        self._config = config
        self._metadata = metadata
        self._accumulator = accumulator
        self._partitioner = partitioner
        self._random = random
        self._sticky: dict[str, StickyPartitioner] = {}
        self._partitions: dict[str, dict[int, TopicPartition]] = {}
        """The partitions used so far: creating one for each record would take time."""
        self._parked: dict[str, deque[Outgoing]] = {}
        self._topics_used: dict[str, int] = {}

    def append(self, record: Outgoing, now: int) -> bool:
        """Place or park a record. Returns whether the core must be polled soon."""
        self._topics_used[record.topic] = now
        if record.topic not in self._parked and self._is_known(record):
            return self._place(record, now)
        record.deadline = now + self._config.max_block_ms
        waiting = self._parked.setdefault(record.topic, deque())
        waiting.append(record)
        self._metadata.resume()
        self._metadata.add_interest((record.topic,))
        return len(waiting) == 1

    def look_up(self, topic: str, now: int) -> None:
        """Fetch metadata of a topic that no record waits for. It is forgotten like one that is no longer written to."""
        self._topics_used[topic] = now
        self._metadata.add_interest((topic,))

    # --- parked records ----------------------------------------------------------------------------------------------

    def take_parked(self) -> list[Outgoing]:
        """Remove and return the records that wait for their topic."""
        records = [record for waiting in self._parked.values() for record in waiting]
        self._parked.clear()
        return records

    def place_parked(self, now: int) -> list[tuple[Outgoing, MusterError]]:
        """Place the records that can be placed; returns those that are given up, with their errors."""
        failed: list[tuple[Outgoing, MusterError]] = []
        self.deadline = None
        for topic, waiting in list(self._parked.items()):
            while waiting:
                record = waiting[0]
                error = self._final_error(record, now)
                if error is None:
                    if not self._is_known(record):
                        break  # later records wait too, to keep the order
                    error = self._try_place(record, now)
                waiting.popleft()
                if error is not None:
                    failed.append((record, error))
            if waiting:
                self._keep_waiting(topic, waiting[0].deadline, now)
            else:
                del self._parked[topic]
        return failed

    def _keep_waiting(self, topic: str, deadline: int, now: int) -> None:
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
        if topic in self._metadata.topics:
            self._metadata.request_update(now)  # the partition may yet be added

    def _is_known(self, record: Outgoing) -> bool:
        known = self._metadata.topics.get(record.topic)
        return known is not None and (record.partition is None or record.partition in known.partitions)

    def _final_error(self, record: Outgoing, now: int) -> MusterError | None:
        code = self._metadata.topic_error(record.topic)
        if code in _FINAL_ERRORS:
            return KafkaError(code, f"topic {record.topic!r}")
        if self._metadata.refusal is not None:
            return self._metadata.refusal
        if record.deadline > now:
            return None
        limit = f"within max_block_ms ({self._config.max_block_ms})"
        count = self._metadata.partition_count(record.topic)
        if count is not None:
            missing = f"topic {record.topic} has {count} partitions and no partition {record.partition}"
            return KafkaTimeoutError(f"{missing}: it did not appear {limit}")
        why = self._metadata.last_error or (code.name if code else "no broker knew it")
        return KafkaTimeoutError(f"topic {record.topic} was not found {limit}: {why}")

    def _try_place(self, record: Outgoing, now: int) -> MusterError | None:
        try:
            self._place(record, now)
        except BaseException as error:  # a user's partitioner may raise anything
            return MusterError(f"the partitioner failed: {error!r}")
        return None

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _place(self, record: Outgoing, now: int) -> bool:
        """Put a record into its batch. Returns whether that changes when the core must send next."""
        topic, partition = record.topic, record.partition
        sticky: StickyPartitioner | None = None
        if partition is None:
            if self._partitioner is not None:
                partition = self._ask_partitioner(self._partitioner, topic, record.key)
            elif record.key is not None and not self._config.partitioner_ignore_keys:
                partition = partition_for_key(record.key, len(self._metadata.topics[topic].partitions))
            else:
                sticky = self._sticky_of(topic, now)
                partition = sticky.partition
                assert partition is not None
        known = self._partitions.get(topic)
        if known is None:
            known = self._partitions[topic] = {}
        target = known.get(partition)
        if target is None:
            target = known[partition] = TopicPartition(topic, partition)
        is_new, full = self._accumulator.append(target, record, now)
        if sticky is not None and sticky.produced(record.size, full):
            self._switch(sticky, topic, now)
        # A first record starts the linger time of its batch, and makes the batch before it ready.
        return full or is_new

    def _ask_partitioner(self, partitioner: Partitioner, topic: str, key: bytes | None) -> int:
        partitions = self._metadata.partitions(topic)
        chosen = index(partitioner(key, partitions, self._available(topic) or partitions))
        if chosen not in self._metadata.topics[topic].partitions:
            raise ValueError(f"the partitioner chose partition {chosen} of {topic}, which has {len(partitions)}")
        return chosen

    def _available(self, topic: str) -> list[int]:
        leader = self._metadata.leader
        return [part for part in self._metadata.partitions(topic) if leader(TopicPartition(topic, part)) is not None]

    def _sticky_of(self, topic: str, now: int) -> StickyPartitioner:
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = StickyPartitioner(self._config.batch_size, self._random)
        if sticky.partition not in self._metadata.topics[topic].partitions:
            self._switch(sticky, topic, now)
        return sticky

    def _switch(self, sticky: StickyPartitioner, topic: str, now: int) -> None:
        candidates = self._available(topic)
        if not candidates:
            sticky.switch(self._metadata.partitions(topic))
            return
        if not self._config.partitioner_adaptive_partitioning_enable:
            sticky.switch(candidates)
            return
        quick = self._without_stalled(topic, candidates, now) or candidates
        queues = self._accumulator.queues
        sticky.switch(quick, [len(queues.get(TopicPartition(topic, candidate), ())) for candidate in quick])

    def _without_stalled(self, topic: str, candidates: list[int], now: int) -> list[int]:
        timeout = self._config.partitioner_availability_timeout_ms
        if timeout == 0:
            return candidates
        stalled = {node for node, since in self.stalled_since.items() if now - since > timeout}
        return [part for part in candidates if self._metadata.leader(TopicPartition(topic, part)) not in stalled]

    def forget_idle_topics(self, now: int) -> None:
        """Stop fetching metadata of topics to which nothing was sent for `metadata.max.idle.ms`."""
        idle_ms = self._config.metadata_max_idle_ms
        idle = {topic for topic, used in self._topics_used.items() if now - used > idle_ms}
        if idle:
            idle -= self._accumulator.topics() | set(self._parked)
        if not idle:
            return
        for topic in idle:
            del self._topics_used[topic]
            self._sticky.pop(topic, None)
            self._partitions.pop(topic, None)
        self._metadata.set_interest(self._topics_used)
