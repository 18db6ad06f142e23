"""Groups whose record has the maximum size, and larger ones: muster and Apache Kafka 4.2 refuse the same ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import KafkaBroker

pytestmark = pytest.mark.slow

COMES_AGAIN = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


@pytest.fixture(params=["muster", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka_broker")
        yield kafka.bootstrap
        return
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    yield broker.bootstrap
    assert broker.stop() == 0


def play(bootstrap: str, metadata: int, share: int, protocols: int = 1) -> tuple[ErrorCode, ErrorCode]:
    """A member joins its own group and assigns to itself: the errors of JoinGroup and SyncGroup."""
    group_id = f"large-{uuid.uuid4().hex}"
    client = RawClient(bootstrap)
    client.ask(m.FindCoordinatorRequest(coordinator_keys=[group_id]), 4)
    reported = [m.JoinGroupRequestProtocol(f"p{n}", SUBSCRIPTION + bytes(metadata)) for n in range(protocols)]
    while True:
        join = client.ask(m.JoinGroupRequest(group_id, 300_000, 300_000, "", None, "consumer", reported), 3)
        if join.error_code not in COMES_AGAIN:
            break
        time.sleep(0.1)
    shares = [m.SyncGroupRequestAssignment(join.member_id, bytes(share))]
    sync = client.ask(m.SyncGroupRequest(group_id, join.generation_id, join.member_id, assignments=shares), 1)
    client.close()
    return ErrorCode(join.error_code), ErrorCode(sync.error_code)


@pytest.mark.parametrize(
    ("metadata", "share", "protocols", "error"),
    [
        (0, 1_048_200, 1, ErrorCode.NONE),
        (0, 1_048_588, 1, ErrorCode.UNKNOWN_SERVER_ERROR),
        (0, 8_000_000, 1, ErrorCode.UNKNOWN_SERVER_ERROR),
        (2_000_000, 0, 1, ErrorCode.UNKNOWN_SERVER_ERROR),
        (500_000, 600_000, 1, ErrorCode.UNKNOWN_SERVER_ERROR),
        (300_000, 0, 5, ErrorCode.NONE),
    ],
)
def test_what_a_group_record_may_hold(
    bootstrap: str, metadata: int, share: int, protocols: int, error: ErrorCode
) -> None:
    assert play(bootstrap, metadata, share, protocols) == (ErrorCode.NONE, error)
