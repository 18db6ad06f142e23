"""The stream of events from a consumer's core, and how a face handles its part of them."""

from __future__ import annotations

import logging

import pytest

from muster.client.config import ConsumerConfig
from muster.client.core.events import (
    WARNING,
    CallbackKind,
    Disconnect,
    Event,
    EventStream,
    Fatal,
    Note,
    RebalanceCallback,
)
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import Channel
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ErrorCode, KafkaError

TOLD, LISTENER = Note(WARNING, "a line"), RebalanceCallback(CallbackKind.REVOKED, (), 1)


def test_what_waits_for_the_user_stays_in_its_order() -> None:
    error = Fatal(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    stream = EventStream([TOLD, LISTENER, Disconnect(3), error, TOLD])
    assert stream.has_fatal
    assert stream.take(for_user=False) == [TOLD, Disconnect(3), TOLD]
    assert stream == [LISTENER, error]
    assert stream.take(for_user=False) == []
    assert stream.take() == [LISTENER, error]
    assert stream == []
    assert not stream.has_fatal


def test_an_error_is_not_reported_twice_while_it_waits() -> None:
    stream = EventStream()
    for text in ("a", "a", "b"):
        stream.fail(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text))
    reported = [event.error for event in stream.take() if isinstance(event, Fatal)]
    assert [str(error) for error in reported] == ["TOPIC_AUTHORIZATION_FAILED: a", "TOPIC_AUTHORIZATION_FAILED: b"]
    stream.fail(reported[0])
    assert stream.has_fatal


class Connections(Driver):
    """Records which connections it should close."""

    def __init__(self) -> None:
        config = ConsumerConfig.of(bootstrap_servers="localhost:1")
        super().__init__(config, ClusterMetadata(config))
        self.closed: list[tuple[int, Channel]] = []

    def disconnect(self, node_id: int, channel: Channel) -> None:
        self.closed.append((node_id, channel))


@pytest.mark.parametrize(
    ("event", "lines", "closed"),
    [
        (TOLD, ["a line"], []),
        (Disconnect(3), [], [(3, Channel.COORDINATOR)]),
        (LISTENER, [], []),
    ],
)
def test_a_face_logs_and_closes_by_itself(
    event: Event, lines: list[str], closed: list[tuple[int, Channel]], caplog: pytest.LogCaptureFixture
) -> None:
    driver = Connections()
    CoreLoop(driver, []).attend(event, logging.getLogger("muster.test"))
    assert (caplog.messages, driver.closed) == (lines, closed)
