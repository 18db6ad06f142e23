"""The drafts' requests and responses, byte for byte as Kafka's trunk had them before October 2015."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.draft_api import DRAFT_REQUESTS, DRAFT_VERSIONS
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse

CASES: dict[str, tuple[Any, str]] = {
    "ConsumerMetadata request": (m.FindCoordinatorRequest(key="g"), "0001 67"),
    "ConsumerMetadata response": (
        m.FindCoordinatorResponse(error_code=0, node_id=7, host="hé", port=9092),
        "0000 00000007 0003 68c3a9 00002384",
    ),
    "ConsumerMetadata refused": (
        m.FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1),
        "000f ffffffff 0000 ffffffff",
    ),
    "JoinGroup request of a new member": (
        DraftJoinGroupRequest("g", 30_000, ["t1", "t2"], "", "range"),
        "0001 67 00007530 00000002 0002 7431 0002 7432 0000 0005 72616e6765",
    ),
    "JoinGroup request of a member": (
        DraftJoinGroupRequest("g", 6_000, ["t"], "m-1", "roundrobin"),
        "0001 67 00001770 00000001 0001 74 0003 6d2d31 000a 726f756e64726f62696e",
    ),
    "JoinGroup response": (
        DraftJoinGroupResponse(0, 3, "m-1", [DraftAssignedTopic("t", [0, 2]), DraftAssignedTopic("u", [])]),
        "0000 00000003 0003 6d2d31 00000002 0001 74 00000002 00000000 00000002 0001 75 00000000",
    ),
    "JoinGroup refused": (DraftJoinGroupResponse(25, -1, "x", []), "0019 ffffffff 0001 78 00000000"),
    "Heartbeat request": (m.HeartbeatRequest("g", 3, "m-1"), "0001 67 00000003 0003 6d2d31"),
    "Heartbeat response": (m.HeartbeatResponse(error_code=22), "0016"),
    "LeaveGroup request": (m.LeaveGroupRequest("g", "m-1"), "0001 67 0003 6d2d31"),
    "LeaveGroup response": (m.LeaveGroupResponse(error_code=0), "0000"),
}


@pytest.mark.parametrize(("message", "golden"), CASES.values(), ids=CASES)
def test_bytes(message: Any, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert codec.encode(message, 0) == data
    assert codec.encode(codec.decode(type(message), 0, data), 0) == data


def test_every_request_of_the_drafts_has_a_version_and_its_key() -> None:
    assert DRAFT_REQUESTS.keys() == DRAFT_VERSIONS.keys()
    for key, request in DRAFT_REQUESTS.items():
        first, last = DRAFT_VERSIONS[key]
        assert request.API_KEY == request.RESPONSE.API_KEY == key
        assert request.MIN_VERSION <= first <= last <= request.MAX_VERSION


def test_what_todays_kafka_has_under_the_key_is_laid_out_in_another_way() -> None:
    today = m.JoinGroupRequest("g", 30_000, member_id="", protocol_type="consumer", protocols=[])
    assert codec.encode(today, 0) != codec.encode(DraftJoinGroupRequest("g", 30_000, [], "", "consumer"), 0)
