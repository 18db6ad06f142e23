"""The testing kit on an event loop: its waits do not block the loop for the clients that run on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest

import muster.testing
from muster import AsyncConsumer
from muster.testing import AsyncKafka, WaitTimeoutError, async_kit


@pytest.fixture(params=[True, False], ids=["thread", "process"])
async def kafka(request: pytest.FixtureRequest) -> AsyncIterator[AsyncKafka]:
    async with AsyncKafka(in_process=request.param) as kafka:
        yield kafka


def consumer(kafka: AsyncKafka, client_id: str) -> AsyncConsumer:
    return AsyncConsumer(
        bootstrap_servers=kafka.bootstrap,
        group_id="billing",
        client_id=client_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        session_timeout_ms=60_000,
    )


async def test_a_group_its_faults_and_its_time(kafka: AsyncKafka) -> None:
    topic = await kafka.topic(partitions=2, records=[b"a", b"b"])
    handled = []

    async def work(member: AsyncConsumer) -> None:
        async for record in member:
            handled.append(record.value)
            await member.commit()

    async with consumer(kafka, "billing-1") as one, consumer(kafka, "billing-2") as two:
        for member in (one, two):
            member.subscribe([topic])
        tasks = [asyncio.create_task(work(member)) for member in (one, two)]
        await kafka.until_assigned("billing", members=2)
        await kafka.until_lag_zero("billing")
        muster.testing.assert_handled_once(handled, [b"a", b"b"])
        async with kafka.assert_no_rebalance("billing"), kafka.lose_answer("OffsetCommit") as fault:
            await kafka.produce(topic, [b"c"])
            await fault.wait_struck()
            await kafka.until_committed("billing", topic, 3)
            await kafka.until(lambda: fault.blocking.seen == 2, "the commit to be sent again")
            assert (fault.name, await fault.seen(), await fault.struck()) == (fault.blocking.name, 2, 1)
        held = await kafka.hold("Heartbeat", client="billing-1", times=None)
        await held.wait_struck()
        assert await held.held() == 1
        generation = (await kafka.view("billing"))["generation"]
        await kafka.clock.advance(70, silent="billing-1")
        await kafka.until_stable("billing", generation=generation + 1)
        assert "session expired" in await kafka.story("billing")
        await held.release()
        await held.remove()
        await kafka.until_assigned("billing", members=2)
        await kafka.group("billing").rebalance()
        await kafka.until_stable("billing", generation=generation + 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await kafka.until_empty("billing")
    assert sorted(record.value or b"" for record in await kafka.records(topic)) == [b"a", b"b", b"c"]


async def test_an_error_in_the_block_comes_out_of_it() -> None:
    async def idle(error: type[Exception] | None = None) -> None:
        async with AsyncKafka(in_process=True, strict=True) as kafka:
            await kafka.hold("Heartbeat", name="idle")
            if error is not None:
                raise error

    async def rebalanced(error: type[Exception] | None = None) -> None:
        async with (
            AsyncKafka(in_process=True) as kafka,
            consumer(kafka, "billing-1") as member,
            kafka.assert_no_rebalance("billing"),
        ):
            member.subscribe([await kafka.topic()])
            while (await kafka.view("billing"))["state"] != "Stable":
                await member.poll(10)
            if error is not None:
                raise error

    with pytest.raises(AssertionError, match=r"never struck: idle"):
        await idle()
    with pytest.raises(ZeroDivisionError):
        await idle(ZeroDivisionError)
    with pytest.raises(AssertionError, match="rebalanced"):
        await rebalanced()
    with pytest.raises(ZeroDivisionError):
        await rebalanced(ZeroDivisionError)


async def test_connections_are_refused_for_a_block() -> None:
    async with AsyncKafka(in_process=True) as kafka:
        host, port = kafka.bootstrap.split(":")
        async with kafka.refuse_connections():
            with pytest.raises(OSError, match=port):
                await asyncio.open_connection(host, int(port))
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()


async def test_a_wait_that_blocks_the_loop_says_so() -> None:
    async with AsyncKafka(in_process=True) as kafka:
        with pytest.raises(WaitTimeoutError, match=r"blocked the event loop.*AsyncKafka"):
            kafka.blocking.until_assigned("billing", timeout_s=0.01)
        with pytest.raises(WaitTimeoutError) as caught:
            await kafka.until_assigned("billing", timeout_s=0.01)
        assert "blocked" not in str(caught.value)


async def test_what_is_cancelled_while_it_is_entered_is_left_again() -> None:
    """Its thread cannot be cancelled: the fault would remain without an owner, and connections would still be
    refused."""
    entering, may_enter = threading.Event(), threading.Event()

    def slowly(kafka: muster.testing.Kafka, do: str) -> muster.testing.Fault:
        entering.set()
        may_enter.wait()
        return kafka.fault(do, "JoinGroup")

    @contextmanager
    def refused(kafka: muster.testing.Kafka) -> Iterator[None]:
        entering.set()
        may_enter.wait()
        with kafka.refuse_connections():
            yield

    async with AsyncKafka(in_process=True) as kafka:
        of_fault = async_kit._of_fault(slowly)
        blocks: list[AbstractAsyncContextManager[object]] = [
            of_fault(kafka, "hold"),
            async_kit._entered(refused)(kafka),
        ]
        for block in blocks:
            entering.clear()
            may_enter.clear()
            task = asyncio.ensure_future(block.__aenter__())
            await asyncio.to_thread(entering.wait)
            task.cancel()
            await asyncio.sleep(0)
            may_enter.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert kafka.blocking.ask_all("GET", "faults") == [{"faults": []}]
        host, port = kafka.bootstrap.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
