"""Fetch (1): records out of the log.

v5: log_start_offset. v7: sessions (KIP-227). v9: the leader epoch that the reader knows. v12: flexible. v13: topic ids
instead of names. v15: replica_state. v16: node_endpoints. v18: high_watermark of followers.

How much (KIP-74): at most max_bytes in all and partition_max_bytes of each partition, but the first partition that has
anything gives at least one batch, however large. A request with less than min_bytes to get is parked until appends
bring that much, or until max_wait_ms is over.

What has to do with every partition is a generator; a fetch of very many partitions is handled a slice at a time.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING

from muster.broker.calls import Call, Sliced, at_once
from muster.broker.clock import now_ms
from muster.broker.fetch_sessions import SLICE, FetchedPartition, FetchPlan
from muster.broker.handlers.metadata import LEADER_EPOCH
from muster.errors import ErrorCode, KafkaError
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol.api import READ_COMMITTED
from muster.protocol.messages import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from muster.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from muster.broker.broker import Broker
    from muster.log import PartitionLog

_TOPIC_IDS_SINCE = 13

MANY = 1_000
"""Partitions of a fetch above which it is handled in slices."""

MOST_KEPT = 100_000
"""Partitions of fetches that wait without a session, some 300 bytes each; one more fetch is answered at once."""

Result = tuple[FetchedPartition, PartitionData]
PartitionKey = tuple[str, int]


def fetch(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse | Sliced | None:
    """Answer with what there is, or park the request."""
    steps = _fetch(broker, request, call)
    return steps if broker.sessions.size(request) > MANY else at_once(steps)


def _fetch(broker: Broker, request: FetchRequest, call: Call) -> Generator[None, None, FetchResponse | None]:
    plan = yield from broker.sessions.plan(request, call.version >= _TOPIC_IDS_SINCE, now_ms())
    if plan.error:
        return FetchResponse(error_code=plan.error)
    results, size, failed = yield from _read(broker, plan, request)
    if size >= request.min_bytes or request.max_wait_ms <= 0 or failed or not plan.partitions:
        return (yield from _answer(broker, plan, results, call.version))
    # Of very many partitions, one that was read some slices ago may have grown since: its reader waits for its time.
    if broker.fetches.park(ParkedFetch(broker, request, plan, call, request.min_bytes - size)):
        return None
    return (yield from _answer(broker, plan, results, call.version))


def _answer(
    broker: Broker, plan: FetchPlan, results: list[Result], version: int
) -> Generator[None, None, FetchResponse]:
    settling = broker.sessions.settle(plan, results, version >= _TOPIC_IDS_SINCE, now_ms())
    session_id, told = yield from settling
    response = FetchResponse(session_id=session_id)
    last: FetchableTopicResponse | None = None
    for count, (partition, data) in enumerate(told, 1):
        if last is None or last.topic != partition.topic or last.topic_id != partition.topic_id:
            last = FetchableTopicResponse(partition.topic, partition.topic_id)
            response.responses.append(last)
        last.partitions.append(data)
        if not count % SLICE:
            yield
    return response


def _read(
    broker: Broker, plan: FetchPlan, request: FetchRequest
) -> Generator[None, None, tuple[list[Result], int, bool]]:
    """What each partition has now, their bytes, and whether one of them failed."""
    room = min(request.max_bytes, broker.max_fetch_bytes)
    aborted: list[object] | None = [] if request.isolation_level == READ_COMMITTED else None
    results: list[Result] = []
    size, failed = 0, False
    for count, partition in enumerate(list(plan.partitions.values()), 1):
        data = PartitionData(partition.asked.partition, high_watermark=-1, records=b"")
        data.aborted_transactions = aborted  # type: ignore[assignment]
        results.append((partition, data))
        try:
            got = _read_one(broker, partition, data, max(room - size, 0), size == 0, request.isolation_level)
        except KafkaError as error:
            data.error_code = error.code
            failed = True
        else:
            size += got
        if not count % SLICE:
            yield
    return results, size, failed


def _read_one(
    broker: Broker,
    partition: FetchedPartition,
    data: PartitionData,
    room: int,
    at_least_one: bool,
    isolation_level: int,
) -> int:
    """Fill in what the partition has; returns its bytes. Raises KafkaError with what is wrong."""
    asked = partition.asked
    name = topic_name(broker, partition)
    log = broker.partition(name, asked.partition) if name is not None else None
    if log is None:
        data.aborted_transactions = []
        by_id = name is None and partition.topic_id != ZERO_UUID
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_leader_epoch(asked.current_leader_epoch)
    limit = min(asked.partition_max_bytes, room)
    found = log.read(asked.fetch_offset, limit, min_one=at_least_one, isolation_level=isolation_level)
    data.high_watermark = found.high_watermark
    # A sync may have ended meanwhile.
    data.last_stable_offset = min(log.readable_end(READ_COMMITTED), found.high_watermark)
    data.log_start_offset = found.log_start_offset
    data.records = found.data
    return len(found.data)


def check_leader_epoch(epoch: int) -> None:
    """Refuse a reader that knows of another leader than this one.

    Raises:
        KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
    """
    if epoch >= 0 and epoch != LEADER_EPOCH:
        older = epoch < LEADER_EPOCH
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)


def topic_name(broker: Broker, partition: FetchedPartition) -> str | None:
    """The name of a partition's topic, which may be given by its id."""
    if partition.topic_id == ZERO_UUID:
        return partition.topic
    return broker.topics.topic_name(partition.topic_id)


class ParkedFetch:
    """A fetch that waits for `missing` more bytes, or for its time to be over.

    It has the keys of its partitions; one of more than MANY does not, and is asked whether it waits for a partition.
    """

    __slots__ = ("_broker", "_call", "_done", "_plan", "_request", "_timer", "keys", "missing")

    def __init__(self, broker: Broker, request: FetchRequest, plan: FetchPlan, call: Call, missing: int) -> None:
        self._broker = broker
        self._request = request
        self._plan = plan
        self._call = call
        self._done = False
        self._timer: TimerHandle | None = None
        self.missing = missing
        self.keys: list[PartitionKey] = []
        if not self.is_large:
            for partition in plan.partitions.values():
                name = topic_name(broker, partition)
                if name is not None:
                    self.keys.append((name, partition.asked.partition))

    @property
    def is_large(self) -> bool:
        """Whether it is of so many partitions that looking at each takes long."""
        return len(self._plan.partitions) > MANY

    @property
    def partitions_kept(self) -> int:
        """Partitions that it alone keeps in memory: those of a session are the session's."""
        return len(self._plan.partitions) if self.is_large and self._plan.session is None else 0

    def waits_for(self, topic: str, partition: int) -> bool:
        """Whether a partition is among those of a large fetch."""
        by_id = (self._broker.topics.topic_id(topic), partition)
        return (topic, partition) in self._plan.partitions or by_id in self._plan.partitions

    def start(self) -> None:
        """Begin to wait."""
        self._call.on_cancel = self.cancel
        self._timer = self._broker.loop.call_later(self._request.max_wait_ms / 1000, self.complete)

    def complete(self) -> None:
        """Answer with what there is now."""
        if not self._done:
            self.cancel()
            steps = self._steps()
            self._call.reply(steps if self.is_large else at_once(steps))

    def _steps(self) -> Generator[None, None, FetchResponse]:
        results, _, _ = yield from _read(self._broker, self._plan, self._request)
        return (yield from _answer(self._broker, self._plan, results, self._call.version))

    def cancel(self) -> None:
        """Wait no longer."""
        self._done = True
        self._broker.fetches.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def log_has_grown(self) -> bool:
        """Whether any of the partitions has records now."""
        for partition in self._plan.partitions.values():
            name = topic_name(self._broker, partition)
            log = self._broker.partition(name, partition.asked.partition) if name is not None else None
            if log is None or log.readable_end(self._request.isolation_level) > partition.asked.fetch_offset:
                return True
        return False


class ParkedFetches:
    """The fetches that wait, by partition; woken by appends."""

    def __init__(self) -> None:
        self._by_partition: dict[PartitionKey, dict[ParkedFetch, None]] = {}
        self._appended: dict[PartitionKey, list[tuple[int, int]]] = {}
        # The coordinator writes to its topic without telling: its readers are looked after one by one.
        self._of_groups: dict[ParkedFetch, None] = {}
        self._large: dict[ParkedFetch, None] = {}
        self._kept = 0

    def park(self, fetch: ParkedFetch) -> bool:
        """Let a fetch wait. False: too many partitions are kept for such fetches already."""
        if fetch.partitions_kept:
            if self._kept + fetch.partitions_kept > MOST_KEPT:
                return False
            self._kept += fetch.partitions_kept
        if fetch.is_large:
            self._large[fetch] = None
        for key in fetch.keys:
            self._by_partition.setdefault(key, {})[fetch] = None
            if key[0] == GROUP_METADATA_TOPIC:
                self._of_groups[fetch] = None
        fetch.start()
        return True

    def forget(self, fetch: ParkedFetch) -> None:
        """A fetch waits no longer."""
        self._of_groups.pop(fetch, None)
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
        """Take note of an append that ends before offset `end`; `wake` acts on it once that may be read.

        With fsync=always a fetch may be parked between the append and its sync: it has not seen the records, and
        nothing else will tell it. So an append is noted whether somebody waits for it or not.
        """
        self._appended.setdefault((topic, partition), []).append((end, size))

    def wake(self, partition: Callable[[str, int], PartitionLog | None]) -> None:
        """Answer the fetches that have enough now. `partition` finds a log."""
        if self._of_groups:
            for fetch in [fetch for fetch in self._of_groups if fetch.log_has_grown()]:
                fetch.complete()
        if not self._appended:
            return
        appended, self._appended = self._appended, {}
        enough: dict[ParkedFetch, None] = {}
        for key, appends in appended.items():
            log = partition(*key)
            readable = log.high_watermark if log is not None else 0
            size = sum(size for end, size in appends if end <= readable)
            later = [(end, size) for end, size in appends if end > readable]
            if later and log is not None:
                self._appended[key] = later
            for fetch in self._waiting_for(key):
                fetch.missing -= size
                if fetch.missing <= 0:
                    enough[fetch] = None
        for fetch in enough:
            fetch.complete()

    def topics_deleted(self, topics: Iterable[str]) -> Generator[None, None, None]:
        """Answer the fetches that wait for topics that are gone, one after the other."""
        gone = frozenset(topics)
        waiting = dict.fromkeys(fetch for key, some in self._by_partition.items() if key[0] in gone for fetch in some)
        for fetch in [*waiting, *self._large]:
            fetch.complete()
            yield

    def _waiting_for(self, key: PartitionKey) -> list[ParkedFetch]:
        return [*self._by_partition.get(key, ()), *(fetch for fetch in self._large if fetch.waits_for(*key))]

    def __len__(self) -> int:
        return len({fetch for waiting in self._by_partition.values() for fetch in waiting}) + len(self._large)
