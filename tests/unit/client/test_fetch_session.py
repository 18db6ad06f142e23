"""Fetch sessions (KIP-227): the contents of a request after each answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.core.consume.fetch_session import FetchSession, FetchSpec, all_have_ids
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import FetchRequest, ForgottenTopic

OLD_ID, NEW_ID = bytes([1] * 16), bytes([2] * 16)
P0 = TopicPartition("t", 0)

Wanted = dict[TopicPartition, FetchSpec]


def ask(session: FetchSession, topic_id: bytes = OLD_ID, offset: int = 0) -> FetchRequest:
    return session.request({P0: FetchSpec(topic_id, offset, 1)}, 1_000)


def opened() -> FetchSession:
    """A session that the broker has opened as number 77."""
    session = FetchSession()
    ask(session)
    session.on_response(ErrorCode.NONE, 77)
    return session


def test_a_topic_that_was_made_again_is_forgotten_under_its_former_id() -> None:
    request = ask(opened(), NEW_ID)
    assert request.forgotten_topics_data == [ForgottenTopic("t", OLD_ID, [0])]
    assert [(topic.topic_id, topic.partitions[0].fetch_offset) for topic in request.topics] == [(NEW_ID, 0)]


def test_after_the_last_epoch_comes_the_first() -> None:
    session = opened()
    session.epoch = 2**31 - 1
    session.on_response(ErrorCode.NONE, 77)
    request = ask(session)
    assert (request.session_id, request.session_epoch, request.topics) == (77, 1, [])


def test_a_broker_that_opens_another_session_begins_to_count_again() -> None:
    session = opened()
    session.on_response(ErrorCode.NONE, 77)
    session.on_response(ErrorCode.NONE, 78)
    assert (session.session_id, session.epoch) == (78, 1)


@pytest.mark.parametrize(("error", "number"), [(ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77), (ErrorCode.NONE, 0)])
def test_without_a_session_all_is_said_again(error: ErrorCode, number: int) -> None:
    """A broker whose cache is full answers without a session."""
    session = opened()
    session.on_response(error, number)
    request = ask(session)
    assert (request.session_id, request.session_epoch, len(request.topics)) == (0, 0, 1)
    assert session.closing_request() is None


def test_one_topic_without_an_id_is_enough_to_ask_by_names() -> None:
    with_id, without = FetchSpec(OLD_ID, 0, 1), FetchSpec(bytes(16), 0, 1)
    other = TopicPartition("other", 0)
    assert all_have_ids({P0: with_id, other: with_id})
    assert not all_have_ids({P0: with_id, other: without})


# --- what the broker knows -------------------------------------------------------------------------------------------

IDS = st.sampled_from([OLD_ID, NEW_ID])
PLACES = st.sampled_from([P0, TopicPartition("t", 1), TopicPartition("other", 0)])


@st.composite
def wanted_partitions(draw: st.DrawFn) -> Wanted:
    """Partitions of two topics, each of which has one id at a time."""
    ids = {"t": draw(IDS), "other": draw(IDS)}
    places = draw(st.dictionaries(PLACES, st.tuples(st.integers(0, 2), st.integers(-1, 2))))
    return {place: FetchSpec(ids[place.topic], *spec) for place, spec in places.items()}


def taken_in(known: dict[tuple[bytes, str, int], tuple[int, int]], request: FetchRequest) -> None:
    """How a broker applies a request: it forgets, then adds and replaces."""
    if request.session_epoch == 0:
        known.clear()
    for gone in request.forgotten_topics_data:
        for number in gone.partitions:
            del known[gone.topic_id, gone.topic, number]
    for topic in request.topics:
        for part in topic.partitions:
            known[topic.topic_id, topic.topic, part.partition] = part.fetch_offset, part.current_leader_epoch


@given(st.lists(st.tuples(wanted_partitions(), st.sampled_from([77, 77, 77, 78, 0]))))
def test_the_broker_knows_what_is_wanted_whichever_of_it_changes(rounds: list[tuple[Wanted, int]]) -> None:
    session = FetchSession()
    known: dict[tuple[bytes, str, int], tuple[int, int]] = {}
    for wanted, number in rounds:
        request = session.request(wanted, 1_000)
        taken_in(known, request)
        assert known == {
            (spec.topic_id, place.topic, place.partition): (spec.offset, spec.leader_epoch)
            for place, spec in wanted.items()
        }
        is_new = request.session_epoch == 0 or number == session.session_id
        session.on_response(ErrorCode.NONE if is_new else ErrorCode.FETCH_SESSION_ID_NOT_FOUND, number)


@pytest.mark.parametrize(
    "after", [FetchSpec(NEW_ID, 5, 3), FetchSpec(OLD_ID, 6, 3), FetchSpec(OLD_ID, 5, 4)], ids=FetchSpec._fields
)
def test_each_thing_that_changes_alone_is_said_and_nothing_else(after: FetchSpec) -> None:
    before = FetchSpec(OLD_ID, 5, 3)
    other = TopicPartition("t", 1)
    session = FetchSession()
    session.request({P0: before, other: before}, 1_000)
    session.on_response(ErrorCode.NONE, 77)
    [topic] = session.request({P0: after, other: before}, 1_000).topics
    [part] = topic.partitions
    assert FetchSpec(topic.topic_id, part.fetch_offset, part.current_leader_epoch) == after
    assert part.partition == 0
