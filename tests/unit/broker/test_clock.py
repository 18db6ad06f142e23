"""The clock of sessions advances only while the process runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.clock import TICK_S, SteadyClock
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support.brokers import RawClient, broker_config, in_thread

SESSION_MS = 6_000


class Time:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        return self.ns

    def pass_ms(self, ms: int) -> None:
        self.ns += ms * 1_000_000


def test_time_passes_while_the_clock_is_read() -> None:
    time = Time()
    clock = SteadyClock(time)
    start = clock()
    for _ in range(100):
        time.pass_ms(1_500)
        clock()
    assert (clock() - start, clock.stalled_ms) == (150_000, 0)


def test_time_without_a_reading_counts_as_one_tick() -> None:
    time = Time()
    clock = SteadyClock(time)
    start = clock()
    time.pass_ms(15_000)
    assert clock() - start == TICK_S * 1_000
    assert clock.stalled_ms == 15_000 - TICK_S * 1_000
    time.pass_ms(1_000)
    assert clock() - start == TICK_S * 1_000 + 1_000


def join(client: RawClient) -> tuple[str, int]:
    """A group with one member."""
    member_id = ""
    while True:
        protocols = [m.JoinGroupRequestProtocol("range", b"")]
        request = m.JoinGroupRequest("g", SESSION_MS, SESSION_MS, member_id, None, "consumer", protocols)
        joined = client.ask(request, 9)
        member_id = joined.member_id
        if joined.error_code == ErrorCode.NONE:
            break
    share = [m.SyncGroupRequestAssignment(member_id, b"")]
    client.ask(m.SyncGroupRequest("g", joined.generation_id, member_id, None, "consumer", "range", share), 5)
    return member_id, joined.generation_id


@pytest.mark.parametrize(("step_ms", "steps", "kept"), [(60_000, 1, True), (1_000, 7, False), (1_000, 5, True)])
async def test_a_member_is_not_expelled_for_what_the_broker_did_not_read(
    tmp_path: Path, step_ms: int, steps: int, kept: bool
) -> None:
    time = Time()
    broker = Broker(broker_config(tmp_path))
    broker._clock = SteadyClock(time)
    async with broker:
        with RawClient(broker.bootstrap) as client:
            member_id, generation_id = await in_thread(join, client)
            for _ in range(steps):
                time.pass_ms(step_ms)
                broker.groups._on_deadline()
            beat = await in_thread(client.ask, m.HeartbeatRequest("g", generation_id, member_id), 4)
            assert (beat.error_code == ErrorCode.NONE) is kept
            await asyncio.sleep(0)


async def test_a_start_that_takes_long_is_not_time_that_was_left_out(tmp_path: Path) -> None:
    time = Time()
    broker = Broker(broker_config(tmp_path))
    broker._clock = SteadyClock(time)
    began = broker._clock()
    time.pass_ms(60_000)
    async with broker:
        assert broker._clock.stalled_ms == 0
        assert broker._clock() == began + 60_000
