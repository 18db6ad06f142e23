"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session remembers each partition's fetch position, and the high watermark and log start that it last reported. An
answer leaves out partitions with nothing new: no records, no error, the same high watermark and log start.

    request                           what it is
    session id any, epoch -1          no session: all partitions are named; a session of that id ends
    session id any, epoch 0           a new session is requested; if there is no room, the answer has id 0
    session id n, epoch e             what changed since epoch e-1 of session n

Work on every partition of a request or session is a generator that yields after each SLICE partitions. The handler runs
it without a break, or in slices if there are many partitions.

A session's partitions are read in order. A partition whose records were sent goes to the end, so that none starves
behind others when the answer is full.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from muster.errors import ErrorCode
from muster.protocol.messages import FetchPartition, FetchRequest, PartitionData
from muster.protocol.primitives import ZERO_UUID, records_size

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTION_MS = 120_000
"""Kafka's min.incremental.fetch.session.eviction.ms: only a session unused for this long gives up its place."""

Key = tuple[str | bytes, int]

SLICE = 64
"""Partitions between two yields."""


@dataclass(slots=True)
class FetchedPartition:
    """A partition that a fetch asks for, by name or by id, and what was last reported to its consumer."""

    topic: str
    topic_id: bytes
    requested: FetchPartition
    reported_high_watermark: int = -1
    reported_log_start: int = -1
    name: str | None = None
    """Its topic's name when it was last read: a session keeps it when the topic has been deleted."""

    @property
    def key(self) -> Key:
        return (self.topic_id if self.topic_id != ZERO_UUID else self.topic, self.requested.partition)


@dataclass(slots=True)
class HeldFetchSession:
    """One session. `epoch` is the one that the next request must have."""

    session_id: int
    uses_ids: bool
    epoch: int
    last_used: int
    partitions: dict[Key, FetchedPartition] = field(default_factory=dict)
    counted: int = 0
    """How many of its partitions are included in the count for all sessions."""


@dataclass(slots=True)
class FetchPlan:
    """How to answer a request: with an error, or with these partitions."""

    partitions: dict[Key, FetchedPartition] = field(default_factory=dict)
    error: ErrorCode = ErrorCode.NONE
    session: HeldFetchSession | None = None
    wants_session: bool = False


class FetchSessions:
    """The sessions of all consumers: at most `slots` of them, with at most `most_partitions` in all."""

    def __init__(self, slots: int, most_partitions: int) -> None:
        self._slots = slots
        self._most_partitions = most_partitions
        # In order of use: the first session is the one that was not used for the longest time.
        self._sessions: dict[int, HeldFetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions."""
        return self._partitions

    def size(self, request: FetchRequest) -> int:
        """Roughly how many partitions a request is about."""
        session = self._sessions.get(request.session_id)
        named = sum(len(topic.partitions) for topic in request.topics)
        return named + (len(session.partitions) if session is not None else 0)

    def plan(self, request: FetchRequest, uses_ids: bool, now: int) -> Generator[None, None, FetchPlan]:
        """The partitions that a request is about. Updates the session that it belongs to."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(request.session_id)
            plan = FetchPlan(wants_session=request.session_epoch == INITIAL_EPOCH)
            for count, named in enumerate(_named(request), 1):
                plan.partitions[named.key] = named
                if not count % SLICE:
                    yield
            return plan
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchPlan(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            return FetchPlan(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = session.epoch + 1 if session.epoch < 2**31 - 1 else 1
        session.last_used = now
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        if not (yield from self._update(session, request)):
            self._end(session.session_id)
            return FetchPlan(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            self._end(session.session_id)
            return FetchPlan()
        return FetchPlan(session.partitions, session=session)

    def settle(
        self, plan: FetchPlan, results: list[tuple[FetchedPartition, PartitionData]], uses_ids: bool, now: int
    ) -> Generator[None, None, tuple[int, list[tuple[FetchedPartition, PartitionData]]]]:
        """The session id to answer with, and the results that are new to the consumer."""
        if plan.session is not None:
            news = []
            for count, result in enumerate(results, 1):
                if _is_news(plan.session, *result):
                    news.append(result)
                if not count % SLICE:
                    yield
            return plan.session.session_id, news
        if not plan.wants_session or not self._make_room(len(results), now):
            return NO_SESSION, results
        session = HeldFetchSession(self._free_id(), uses_ids, INITIAL_EPOCH + 1, now, plan.partitions)
        self._sessions[session.session_id] = session
        self._count(session)
        for count, (partition, data) in enumerate(results, 1):
            partition.reported_high_watermark, partition.reported_log_start = data.high_watermark, data.log_start_offset
            if not count % SLICE:
                yield
        return session.session_id, results

    def _update(self, session: HeldFetchSession, request: FetchRequest) -> Generator[None, None, bool]:
        """Add a request's partitions. False if there is no room for them: the consumer has to open a new session."""
        for count, named in enumerate(_named(request), 1):
            known = session.partitions.get(named.key)
            if known is not None:
                known.requested = named.requested
            elif self._partitions - session.counted + len(session.partitions) >= self._most_partitions:
                return False
            else:
                session.partitions[named.key] = named
            if not count % SLICE:
                yield
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if topic.topic_id != ZERO_UUID else topic.topic
            for index in topic.partitions:
                session.partitions.pop((name, index), None)
            yield
        if session.session_id in self._sessions:
            self._count(session)
        return True

    def _count(self, session: HeldFetchSession) -> None:
        self._partitions += len(session.partitions) - session.counted
        session.counted = len(session.partitions)

    def _make_room(self, partitions: int, now: int) -> bool:
        while len(self._sessions) >= self._slots or self._partitions + partitions > self._most_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used < EVICTION_MS:
                return False
            self._end(oldest.session_id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.counted

    def _free_id(self) -> int:
        while True:
            session_id = random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id


def _named(request: FetchRequest) -> Iterator[FetchedPartition]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield FetchedPartition(topic.topic, topic.topic_id, partition)


def _is_news(session: HeldFetchSession, partition: FetchedPartition, data: PartitionData) -> bool:
    has_records = records_size(data.records) > 0
    news = (
        has_records
        or data.error_code != 0
        or data.diverging_epoch is not None
        or data.high_watermark != partition.reported_high_watermark
        or data.log_start_offset != partition.reported_log_start
    )
    # After an error the partition is sent again, whatever it then has.
    partition.reported_high_watermark = -1 if data.error_code else data.high_watermark
    partition.reported_log_start = data.log_start_offset
    if has_records and partition.key in session.partitions:
        session.partitions[partition.key] = session.partitions.pop(partition.key)
    return news
