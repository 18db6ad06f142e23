"""The loop that runs the cores: who waits for what, and how it ends."""

import asyncio
import contextlib

import pytest

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import FailureKind
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ClosedError, MusterError
from muster.protocol.messages import ListGroupsRequest
from tests.support.driver_client import echo, failed, scripted


async def test_close_answers_what_is_under_way():
    asked = asyncio.Event()

    async def never(peer):
        asked.set()

    async with scripted(never, known=1) as (_, made):
        parked = made.begin(ListGroupsRequest(), 1)
        waiting = asyncio.ensure_future(made.loop.wait_for(lambda: False))
        await asked.wait()
        await made.loop.close()
        assert failed(await parked, FailureKind.DISCONNECTED) == "the client was closed"
        assert failed(await made.ask(ListGroupsRequest(), 1), FailureKind.UNREACHABLE) == "the client is closed"
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await made.loop.wait_for(lambda: False)
        with pytest.raises(ClosedError):
            await made.driver.start()


async def test_a_defect_in_a_core_is_raised_where_somebody_waits():
    class Broken:
        def poll(self, now):
            raise ZeroDivisionError("a defect")

        def next_deadline(self, now):
            return None

    async with scripted() as (_, made):
        loop = CoreLoop(made.driver, [Broken()])
        await loop.start()
        for _ in range(2):
            with pytest.raises(MusterError, match="create a new one: ZeroDivisionError") as caught:
                await loop.wait_for(lambda: False)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_question_that_raises_is_its_askers_affair():
    """A caller waits for a position; the partition is given up meanwhile, so that its position can no longer be asked
    for."""
    async with scripted() as (_, made):
        answers = [False]
        with pytest.raises(IndexError):
            await made.loop.wait_for(lambda: answers.pop())
        assert await made.loop.wait_for(lambda: made.metadata.version > 0)


async def test_waiting_ends_in_time():
    async with scripted() as (_, made):
        assert not await made.loop.wait_for(lambda: False, 20)


async def test_whoever_waits_is_notified_once_though_the_cores_turn_again_before_it_runs():
    turned = []

    async with scripted(echo) as (_, made):

        def on_turn(now):
            turned.append(now)
            if len(turned) == 1:
                made.loop.wakeup()

        made.loop._on_turn = on_turn
        assert await made.loop.wait_for(lambda: bool(turned))
        assert await made.loop.wait_for(lambda: len(turned) > 1)
        assert made.loop.error is None


class Counting:
    """A core that counts its turns and always asks for another one."""

    def __init__(self, due=None):
        self.turns = 0
        self.due = due

    def poll(self, now):
        self.turns += 1
        if self.due is not None and now >= self.due:
            self.due = None
        return []

    def next_deadline(self, now):
        return self.due


@contextlib.asynccontextmanager
async def turning(*cores, on_turn=None):
    config = ClientConfig()
    loop = CoreLoop(Driver(config, ClusterMetadata(config)), cores, on_turn)
    await loop.start()
    try:
        yield loop
    finally:
        await loop.close()


async def test_what_a_turn_tells_is_seen_by_those_who_wait_in_the_same_turn():
    reported: list[int] = []
    async with turning(on_turn=reported.append) as loop:
        async with asyncio.timeout(20):  # nothing else causes another turn
            assert await loop.wait_for(lambda: bool(reported))


async def test_what_holds_when_the_time_is_over_holds():
    answers = [False, False, True]
    async with turning() as loop:
        assert await loop.wait_for(lambda: answers.pop(0), 20)


async def test_who_has_waited_is_not_kept():
    async with turning() as loop:
        assert not await loop.wait_for(lambda: False, 1)
        assert not loop._waiters


async def test_what_holds_already_is_no_matter_for_a_client_that_is_closed():
    async with turning() as loop:
        pass
    assert await loop.wait_for(lambda: True)


async def test_a_closed_client_makes_no_more_turns():
    core = Counting()
    async with turning(core) as loop:
        await loop.wait_for(lambda: core.turns > 0)
        turns = core.turns
        loop.wakeup()
    await asyncio.sleep(0)
    assert core.turns == turns


async def test_a_client_that_failed_makes_no_more_turns(caplog):
    class Broken(Counting):
        def poll(self, now):
            self.turns += 1
            raise ZeroDivisionError("a defect")

    core = Broken()
    async with turning(core) as loop:
        with pytest.raises(MusterError):
            await loop.wait_for(lambda: False)
        loop.wakeup()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert core.turns == 1


async def test_the_earliest_deadline_of_all_cores_is_kept():
    async with turning() as loop:
        now = loop.driver.now()
        soon, late = Counting(now + 20), Counting(now + 3_600_000)
        loop.cores = [late, soon]
        loop.wakeup()
        async with asyncio.timeout(20):
            while soon.due is not None:
                await asyncio.sleep(0.01)
