"""What a client does while it can do nothing: it waits, without spinning, and no longer than its timeout."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from muster import Consumer
from muster.errors import ErrorCode, KafkaTimeoutError
from muster.protocol.messages import MetadataRequest
from tests.support.client_harness import ConsumerHarness, tp


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_position_without_a_leader_to_ask_waits_for_metadata(code: ErrorCode) -> None:
    """The partition does not exist (yet), or has no leader: nothing is due until another answer changes that."""
    consumer = ConsumerHarness(group_id=None, auto_offset_reset="earliest")
    consumer.topic_errors["flights"] = code
    consumer.core.assign([tp("flights-99")])
    consumer.auto.discard(MetadataRequest)
    consumer.enter_poll()
    consumer.answer(MetadataRequest, consumer.metadata_response(consumer.sent(MetadataRequest)[0]))
    assert consumer.core.next_deadline(consumer.now) is None
    again = consumer.core.metadata.next_deadline(consumer.now)
    assert again is not None
    assert again > consumer.now


def test_a_name_that_is_not_a_host_name_is_an_unreachable_broker() -> None:
    reported = r"in time: no connection to no\.\.name:9092: its host name cannot be resolved"
    with Consumer(bootstrap_servers="no..name:9092") as consumer, pytest.raises(KafkaTimeoutError, match=reported):
        consumer.list_topics(timeout_ms=1_500)


def test_a_broker_that_says_nothing_costs_no_more_than_the_time_given(mute: str) -> None:
    """`request_timeout_ms` is longer, but the caller has set the limit."""
    with Consumer(bootstrap_servers=mute, request_timeout_ms=10**8) as consumer:
        with pytest.raises(KafkaTimeoutError, match="in time: no broker answered"):
            consumer.partitions_for("flights", timeout_ms=100)
        with pytest.raises(KafkaTimeoutError):
            consumer.list_topics(timeout_ms=100)
        consumer.close(timeout_ms=100)
