"""Fetch sessions (KIP-227): what a session remembers and which partitions a response leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.broker.net.calls import at_once
from muster.broker.topics.fetch_sessions import EVICTION_MS, SLICE, FetchPlan, FetchSessions
from muster.errors import ErrorCode
from muster.protocol import messages as m

IDS = {"a": b"a" * 16, "b": b"b" * 16}


class Reader:
    """A consumer of partitions `a` and `b`, whose logs are given as {name: (high watermark, records)}."""

    def __init__(self, sessions: FetchSessions) -> None:
        self.sessions = sessions
        self.session_id = 0
        self.epoch = 0
        self.now = 1000

    def plan(self, *names: str, forget: str = "", session_id: int | None = None, epoch: int | None = None) -> FetchPlan:
        steps = self.sessions.plan(
            m.FetchRequest(
                session_id=self.session_id if session_id is None else session_id,
                session_epoch=self.epoch if epoch is None else epoch,
                topics=[m.FetchTopic(name, partitions=[m.FetchPartition(0)]) for name in names],
                forgotten_topics_data=[m.ForgottenTopic(name, partitions=[0]) for name in forget],
            ),
            uses_ids=False,
            now=self.now,
        )
        return at_once(steps)

    def fetch(self, *names: str, log: dict[str, tuple[int, bytes]] | None = None, forget: str = "") -> list[str]:
        """The partitions that the response contains, in order."""
        plan = self.plan(*names, forget=forget)
        assert plan.error is ErrorCode.NONE
        results = []
        for partition in plan.partitions.values():
            high_watermark, records = (log or {}).get(partition.topic, (0, b""))
            results.append((partition, m.PartitionData(0, 0, high_watermark, log_start_offset=0, records=records)))
        self.session_id, reported = at_once(self.sessions.settle(plan, results, False, self.now))
        self.epoch += 1
        return [partition.topic for partition, _ in reported]


@pytest.fixture
def reader() -> Reader:
    """A consumer whose session contains `a`."""
    found = Reader(FetchSessions(10, 1_000))
    found.fetch("a")
    return found


def test_only_what_is_new_is_reported():
    reader = Reader(FetchSessions(10, 1_000))
    assert reader.fetch("a", "b") == ["a", "b"]
    assert reader.fetch() == []
    assert reader.fetch(log={"b": (5, b"")}) == ["b"]
    assert reader.fetch(log={"b": (5, b"")}) == []
    assert reader.fetch(log={"b": (5, b"x")}) == ["b"]


def test_a_partition_that_gave_records_is_read_last_next_time():
    reader = Reader(FetchSessions(10, 1_000))
    reader.fetch("a", "b")
    both = {"a": (1, b"x"), "b": (1, b"x")}
    assert reader.fetch(log={"a": (1, b"x")}) == ["a"]
    assert reader.fetch(log=both) == ["b", "a"]


def test_partitions_come_and_go(reader: Reader):
    assert reader.fetch("b") == ["b"]
    assert reader.fetch(forget="a", log={"a": (9, b"x"), "b": (9, b"")}) == ["b"]
    assert reader.fetch(forget="b") == []
    assert reader.session_id == 0, "a session without partitions ends"


def test_after_an_error_the_partition_is_reported_again(reader: Reader):
    plan = reader.plan()
    failed = m.PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, log_start_offset=-1)
    [partition] = plan.partitions.values()
    _, reported = at_once(reader.sessions.settle(plan, [(partition, failed)], False, 0))
    assert len(reported) == 1
    reader.epoch += 1
    assert reader.fetch() == ["a"]


def test_a_log_that_parted_from_the_readers_is_reported_each_time(reader: Reader):
    plan = reader.plan()
    [partition] = plan.partitions.values()
    parted = m.PartitionData(0, log_start_offset=0, diverging_epoch=m.FetchResponseEpochEndOffset(0, 6), records=b"")
    for _ in range(2):
        _, reported = at_once(reader.sessions.settle(plan, [(partition, parted)], False, reader.now))
        assert reported == [(partition, parted)]


def test_what_a_session_refuses(reader: Reader):
    assert reader.plan(session_id=reader.session_id ^ 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert reader.plan(epoch=7).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    request = m.FetchRequest(session_id=reader.session_id, session_epoch=1, topics=[m.FetchTopic("", IDS["a"], [])])
    assert at_once(reader.sessions.plan(request, True, 0)).error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_ends_when_its_reader_says_so(reader: Reader):
    assert len(reader.sessions) == 1
    assert [partition.topic for partition in reader.plan("a", epoch=-1).partitions.values()] == ["a"]
    assert len(reader.sessions) == 0


def test_the_epoch_wraps_to_one(reader: Reader):
    [session] = reader.sessions._sessions.values()
    session.epoch = reader.epoch = 2**31 - 1
    assert reader.plan().error is ErrorCode.NONE
    assert session.epoch == 1


def test_without_room_there_is_no_session_until_one_is_old():
    sessions = FetchSessions(1, 1_000)
    first, second = Reader(sessions), Reader(sessions)
    first.fetch("a")
    second.fetch("a")
    assert first.session_id != 0
    assert second.session_id == 0
    second.now += EVICTION_MS
    second.epoch = 0
    second.fetch("a")
    assert second.session_id != 0
    assert first.plan().error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_is_used_keeps_its_place():
    sessions = FetchSessions(2, 1_000)
    used, unused, late, later = (Reader(sessions) for _ in range(4))
    used.fetch("a")
    unused.fetch("a")
    used.now = late.now = later.now = used.now + EVICTION_MS
    used.fetch()
    late.fetch("a")
    assert unused.plan().error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    later.fetch("a")
    assert later.session_id == 0
    assert used.plan().error is ErrorCode.NONE


def test_a_log_that_begins_later_is_news(reader: Reader):
    for start, news in ((0, 0), (3, 1), (3, 0)):
        plan = reader.plan()
        results = [
            (partition, m.PartitionData(0, 0, 0, log_start_offset=start)) for partition in plan.partitions.values()
        ]
        assert len(at_once(reader.sessions.settle(plan, results, False, reader.now))[1]) == news
        reader.epoch += 1


def test_a_session_that_ends_while_it_grows_is_not_counted(reader: Reader):
    """Its partitions are added slice by slice; meanwhile another session takes its place."""
    topics = [m.FetchTopic("b", partitions=[m.FetchPartition(index) for index in range(2 * SLICE)])]
    steps = reader.sessions.plan(m.FetchRequest(session_id=reader.session_id, session_epoch=1, topics=topics), False, 0)
    next(steps)
    reader.plan(epoch=-1)
    assert len(reader.sessions) == 0
    at_once(steps)
    assert reader.sessions.partitions == 0


def test_partitions_of_all_sessions_are_bounded():
    sessions = FetchSessions(10, 5)
    first, second, third = Reader(sessions), Reader(sessions), Reader(sessions)
    first.fetch("a", "b", "c")
    second.fetch("a", "b", "c")
    assert (first.session_id != 0, second.session_id, sessions.partitions) == (True, 0, 3)
    third.fetch("a", "b")
    assert third.session_id != 0
    assert sessions.partitions == 5


def test_a_session_that_grows_beyond_the_room_ends():
    sessions = FetchSessions(10, 3)
    reader, other = Reader(sessions), Reader(sessions)
    reader.fetch("a")
    other.fetch("a")
    assert reader.fetch("b") == ["b"]
    assert reader.plan("c").error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions == 1
    assert len(sessions) == 1


def test_what_a_session_forgets_is_room_again():
    sessions = FetchSessions(10, 2)
    reader, other = Reader(sessions), Reader(sessions)
    reader.fetch("a", "b")
    reader.fetch(forget="b")
    other.fetch("a")
    assert other.session_id != 0
    assert sessions.partitions == 2


def test_a_plan_is_made_a_slice_at_a_time():
    sessions = FetchSessions(10, 10_000)
    topics = [m.FetchTopic("a", partitions=[m.FetchPartition(index) for index in range(10 * SLICE)])]
    steps = sessions.plan(m.FetchRequest(session_epoch=0, topics=topics), False, 0)
    assert sum(1 for _ in steps) == 10


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 15), max_size=9), st.sets(st.integers(0, 15)))),
)
def test_the_bound_holds_whatever_one_request_adds(most: int, requests: list[tuple[int, set[int], set[int]]]):
    """The partitions of all sessions, counted one by one. A reader whose session was evicted opens a new one."""
    sessions = FetchSessions(10, most)
    known: dict[int, tuple[int, int]] = {}
    for reader, added, forgotten in requests:
        session_id, epoch = known.get(reader, (0, 0))
        request = m.FetchRequest(session_id=session_id, session_epoch=epoch)
        request.topics = [m.FetchTopic("t", partitions=[m.FetchPartition(index) for index in sorted(added)])]
        request.forgotten_topics_data = [m.ForgottenTopic("t", partitions=sorted(forgotten))] if epoch else []
        plan = at_once(sessions.plan(request, False, 1_000))
        known[reader] = (0, 0)
        if plan.error is ErrorCode.NONE:
            results = [(partition, m.PartitionData(0)) for partition in plan.partitions.values()]
            session_id, _ = at_once(sessions.settle(plan, results, False, 1_000))
            known[reader] = (session_id, epoch + 1) if session_id else (0, 0)
        kept = sum(len(session.partitions) for session in sessions._sessions.values())
        assert kept == sessions.partitions <= most
