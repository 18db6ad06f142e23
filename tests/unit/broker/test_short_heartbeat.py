"""The fast path of Heartbeat answers like the general path, in every version and case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.handlers.coordinators import fast_heartbeat
from muster.errors import ErrorCode
from muster.protocol import codec, framing
from muster.protocol import messages as m
from tests.support import brokers
from tests.support.held_disk import Asked


def short(broker: Broker, request: m.HeartbeatRequest, version: int) -> int:
    """The error code from the fast path, read from the bytes that it would send."""
    answer = fast_heartbeat(broker.groups)(codec.encode(request, version), 0, version, 77)
    assert answer is not None
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    return framing.decode_response(answer[4:], m.HeartbeatRequest, version).error_code


async def join(broker: Broker, instance: str | None, member_id: str = "") -> Any:
    protocols = [m.JoinGroupRequestProtocol("range", b"")]
    request = m.JoinGroupRequest("g", 10_000, 60_000, member_id, instance, "consumer", protocols)
    return await Asked(broker, request, 5).answered()


@pytest.mark.parametrize("version", range(5))
async def test_the_short_way_says_what_the_general_way_says(tmp_path: Path, version: int) -> None:
    async with brokers.running(tmp_path / "data") as broker:
        old = await join(broker, "i")
        new = await join(broker, "i")
        generation = new.generation_id
        cases = [
            ("g", generation, new.member_id, "i", ErrorCode.NONE),
            ("g", generation, old.member_id, "i", ErrorCode.FENCED_INSTANCE_ID),
            ("g", generation, new.member_id, "j", ErrorCode.UNKNOWN_MEMBER_ID),
            ("g", generation, new.member_id, None, ErrorCode.NONE),
            ("g", generation, old.member_id, None, ErrorCode.UNKNOWN_MEMBER_ID),
            ("g", generation + 1, new.member_id, "i", ErrorCode.ILLEGAL_GENERATION),
            ("h", generation, new.member_id, "i", ErrorCode.UNKNOWN_MEMBER_ID),
            ("", generation, new.member_id, None, ErrorCode.INVALID_GROUP_ID),
        ]
        for group, number, member_id, instance, expected in cases:
            if instance is not None and version < 3:
                continue
            request = m.HeartbeatRequest(group, number, member_id, instance)
            assert short(broker, request, version) == expected
            assert Asked(broker, request, version).answer.error_code == expected
