"""Fetch sessions (KIP-227): what a request says after each answer."""

from __future__ import annotations

import pytest

from muster.client.core.consume.fetch_session import FetchSession, FetchSpec, all_have_ids
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import FetchRequest, ForgottenTopic

OLD_ID, NEW_ID = bytes([1] * 16), bytes([2] * 16)
P0 = TopicPartition("t", 0)


def ask(session: FetchSession, topic_id: bytes = OLD_ID, offset: int = 0) -> FetchRequest:
    return session.request({P0: FetchSpec(topic_id, offset, 1)}, 1_000)


def opened() -> FetchSession:
    """A session that the broker has opened as number 77."""
    session = FetchSession()
    ask(session)
    session.on_response(ErrorCode.NONE, 77)
    return session


def test_a_topic_that_was_made_anew_is_forgotten_under_its_former_id() -> None:
    request = ask(opened(), NEW_ID)
    assert request.forgotten_topics_data == [ForgottenTopic("t", OLD_ID, [0])]
    assert [(topic.topic_id, topic.partitions[0].fetch_offset) for topic in request.topics] == [(NEW_ID, 0)]


def test_after_the_last_epoch_comes_the_first() -> None:
    session = opened()
    session.epoch = 2**31 - 1
    session.on_response(ErrorCode.NONE, 77)
    request = ask(session)
    assert (request.session_id, request.session_epoch, request.topics) == (77, 1, [])


def test_a_broker_that_opens_another_session_begins_to_count_anew() -> None:
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
