"""Parked fetches, which wait for more bytes or for their timeout.

A fetch that would get less than min_bytes is parked until appends bring that much, or until max_wait_ms has passed.

Appends count in bytes once they are below the high watermark. A read_committed fetch cannot read them while a
transaction is open, and a marker releases more bytes than its own. So once the last stable offset of one of its
partitions lags behind the high watermark, such a fetch measures its logs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from muster.broker.net.calls import Call, at_once
from muster.broker.net.intake import Timer, TimerLoop
from muster.broker.topics.fetch_sessions import FetchPlan
from muster.broker.topics.log_reads import LogReader
from muster.errors import KafkaError
from muster.log import PartitionLog
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from muster.protocol.api import READ_COMMITTED
from muster.protocol.messages import FetchRequest, FetchResponse

MANY = 1_000
"""A fetch of more partitions than this is handled in slices."""

MOST_KEPT = 100_000
"""How many partitions parked fetches without a session may have, at about 300 bytes each. Beyond that a fetch is
answered immediately."""

PartitionKey = tuple[str, int]

_COORDINATORS_TOPICS = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)


class ParkedFetch:
    """A fetch that waits for `missing` more bytes, or for its timeout.

    It keeps the keys of its partitions. A fetch of more than MANY partitions does not; it is asked whether it waits for
    a given one.
    """

    __slots__ = (
        "_answer",
        "_call",
        "_done",
        "_fetches",
        "_measures",
        "_plan",
        "_reader",
        "_request",
        "_timer",
        "keys",
        "missing",
    )

    def __init__(
        self,
        reader: LogReader,
        request: FetchRequest,
        plan: FetchPlan,
        call: Call,
        missing: int,
        answer: Callable[[], Generator[None, None, FetchResponse]],
        measures: bool = False,
    ) -> None:
        self._reader = reader
        self._measures = measures
        self._fetches: ParkedFetches | None = None
        self._answer = answer
        self._request = request
        self._plan = plan
        self._call = call
        self._done = False
        self._timer: Timer | None = None
        self.missing = missing
        self.keys: list[PartitionKey] = []
        if not self.is_large:
            for partition in plan.partitions.values():
                name = reader.topic_name(partition)
                if name is not None:
                    self.keys.append((name, partition.requested.partition))

    @property
    def is_large(self) -> bool:
        """Whether it has more than MANY partitions: checking each of them takes a long time."""
        return len(self._plan.partitions) > MANY

    @property
    def partitions_kept(self) -> int:
        """Partitions that only this fetch keeps in memory; a session counts its own."""
        return len(self._plan.partitions) if self.is_large and self._plan.session is None else 0

    def waits_for(self, topic: str, partition: int) -> bool:
        """Whether a partition is among those of a large fetch."""
        by_id = (self._reader.topic_id(topic), partition)
        return (topic, partition) in self._plan.partitions or by_id in self._plan.partitions

    def start(self, fetches: ParkedFetches, loop: TimerLoop) -> None:
        """Begin to wait."""
        self._fetches = fetches
        self._call.on_cancel = self.cancel
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self.complete)

    def complete(self) -> None:
        """Answer with what there is now."""
        if not self._done:
            self.cancel()
            steps = self._answer()
            self._call.reply(steps if self.is_large else at_once(steps))

    def cancel(self) -> None:
        """Stop waiting."""
        self._done = True
        if self._fetches is not None:
            self._fetches.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def note(self, size: int, log: PartitionLog | None) -> None:
        """Count `size` more bytes below the high watermark of a log; None if the partition was deleted."""
        is_stable = True
        if self._request.isolation_level == READ_COMMITTED and log is not None:
            is_stable = log.last_stable_offset >= log.high_watermark
            self._measures = self._measures or not is_stable
        if self._measures and not self.is_large:
            self.missing = self._measure()
        elif is_stable:  # measuring every partition of a large fetch takes too long
            self.missing -= size

    def _measure(self) -> int:
        """The missing bytes, measured in the logs; 0 if one cannot be read: the answer reports why."""
        missing = self._request.min_bytes
        for partition in self._plan.partitions.values():
            log, requested = self._reader.log_of(partition), partition.requested
            try:
                size = log.readable_size(requested.fetch_offset, READ_COMMITTED) if log is not None else 0
            except KafkaError:
                return 0
            missing -= min(size, requested.partition_max_bytes)
        return missing

    def log_has_grown(self) -> bool:
        """Whether any of the partitions has records now."""
        for partition in self._plan.partitions.values():
            log = self._reader.log_of(partition)
            if log is None or log.readable_end(self._request.isolation_level) > partition.requested.fetch_offset:
                return True
        return False


class ParkedFetches:
    """The fetches that wait, by partition; woken by appends."""

    def __init__(self) -> None:
        self._by_partition: dict[PartitionKey, dict[ParkedFetch, None]] = {}
        self._appended: dict[PartitionKey, list[tuple[int, int]]] = {}
        # Coordinators' writes to their topics are not reported here: fetches of these topics are checked one by one.
        self._of_coordinators: dict[ParkedFetch, None] = {}
        self._large: dict[ParkedFetch, None] = {}
        self._kept = 0

    def park(self, fetch: ParkedFetch, loop: TimerLoop) -> bool:
        """Let a fetch wait. Returns False if too many partitions are kept for parked fetches already."""
        if fetch.partitions_kept:
            if self._kept + fetch.partitions_kept > MOST_KEPT:
                return False
            self._kept += fetch.partitions_kept
        if fetch.is_large:
            self._large[fetch] = None
        for key in fetch.keys:
            self._by_partition.setdefault(key, {})[fetch] = None
            if key[0] in _COORDINATORS_TOPICS:
                self._of_coordinators[fetch] = None
        fetch.start(self, loop)
        return True

    def forget(self, fetch: ParkedFetch) -> None:
        """Forget a fetch that no longer waits."""
        self._of_coordinators.pop(fetch, None)
        if fetch in self._large:
            del self._large[fetch]
            self._kept -= fetch.partitions_kept
        for key in fetch.keys:
            waiting = self._by_partition.get(key)
            if waiting is not None:
                waiting.pop(fetch, None)
                if not waiting:
                    del self._by_partition[key]

    def appended(self, topic: str, partition: int, size: int, end: int) -> None:
        """Note an append that ends before offset `end`; `wake` acts on it once that may be read.

        With fsync=always a fetch may be parked between the append and its sync: it has not seen the records, and no
        later event will wake it for them. So an append is noted even if no fetch waits for its partition yet.
        """
        self._appended.setdefault((topic, partition), []).append((end, size))

    def wake(self, partition: Callable[[str, int], PartitionLog | None]) -> None:
        """Answer the fetches that have enough now. `partition` finds a log."""
        if self._of_coordinators:
            for fetch in [fetch for fetch in self._of_coordinators if fetch.log_has_grown()]:
                fetch.complete()
        if not self._appended:
            return
        appended, self._appended = self._appended, {}
        enough: dict[ParkedFetch, None] = {}
        for key, appends in appended.items():
            log = partition(*key)
            readable = log.high_watermark if log is not None else 0
            if not self._large and key not in self._by_partition and appends[-1][0] <= readable:
                continue
            size = sum(size for end, size in appends if end <= readable)
            later = [(end, size) for end, size in appends if end > readable]
            if later and log is not None:
                self._appended[key] = later
            for fetch in self._waiting_for(key):
                fetch.note(size, log)
                if fetch.missing <= 0:
                    enough[fetch] = None
        for fetch in enough:
            fetch.complete()

    def topics_deleted(self, topics: Iterable[str]) -> Generator[None, None, None]:
        """Answer the fetches that wait for deleted topics, one after another."""
        gone = frozenset(topics)
        waiting = dict.fromkeys(fetch for key, some in self._by_partition.items() if key[0] in gone for fetch in some)
        for fetch in [*waiting, *self._large]:
            fetch.complete()
            yield

    def _waiting_for(self, key: PartitionKey) -> list[ParkedFetch]:
        return [*self._by_partition.get(key, ()), *(fetch for fetch in self._large if fetch.waits_for(*key))]

    def __len__(self) -> int:
        return len({fetch for waiting in self._by_partition.values() for fetch in waiting}) + len(self._large)
