"""Several callers of one consumer, callers that leave in the middle of a call, and calls within calls."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from muster import AsyncConsumer, Consumer
from muster.assignors import MemberAssignment, RangeAssignor
from muster.client.consumer.listener import RebalanceListener
from muster.errors import ClosedError, IllegalStateError, WakeupError
from muster.model import ConsumerRecord, TopicPartition
from tests.support.faces import rest, until
from tests.support.numbered_records import World, first

NOWHERE = "127.0.0.1:1"
ZERO = TopicPartition("flights", 0)


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that calls a function, and what the call raises."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, raised


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


# --- two at once -----------------------------------------------------------------------------------------------------


def test_a_second_poll_is_refused_and_the_first_continues() -> None:
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        consumer.assign([ZERO])
        thread, raised = in_thread(lambda: consumer.poll(60_000))
        until(lambda: consumer._consumer._polling, rest)
        for call in (consumer.poll, consumer.poll_arrow, lambda: next(consumer)):
            with pytest.raises(IllegalStateError, match="poll of this consumer is in progress"):
                call()
        assert consumer.assignment() == {ZERO}
        assert consumer._consumer._core.in_poll
        consumer.close()
        thread.join(60)
        assert [type(error) for error in raised] == [ClosedError]


async def test_polls_that_begin_together_are_two_polls() -> None:
    async with AsyncConsumer(bootstrap_servers=NOWHERE) as consumer:
        consumer.assign([ZERO])
        found = await asyncio.gather(consumer.poll(50), consumer.poll(100), return_exceptions=True)
        assert found[0] == {}
        assert isinstance(found[1], IllegalStateError)


def test_two_close_at_once(world: World) -> None:
    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic])
    first(consumer)
    threads = [in_thread(consumer.close) for _ in range(4)]
    for thread, raised in threads:
        thread.join(60)
        assert raised == []
    assert consumer._thread._thread is not None
    assert not consumer._thread._thread.is_alive()
    assert world.members() == 0


def test_a_close_that_another_thread_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE)
    consumer.start()
    run = consumer._run

    def run_late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        thread, raised = in_thread(consumer.close)
        thread.join(60)
        assert raised == []
        return run(*arguments, **named)

    monkeypatch.setattr(consumer, "_run", run_late)
    consumer.close()
    assert not consumer._thread.is_open


def test_several_consumers_in_one_thread(world: World) -> None:
    consumers = [Consumer(**world.settings | {"group_id": f"{world.group}-{number}"}) for number in range(3)]
    for consumer in consumers:
        consumer.subscribe([world.topic])
    found = [offsets(first(consumer, max_records=5)) for consumer in consumers]
    assert found == [[0, 1, 2, 3, 4]] * 3
    for consumer in consumers:
        consumer.close()


# --- wakeup ----------------------------------------------------------------------------------------------------------


def test_wakeup_ends_the_poll_under_way_and_nothing_else() -> None:
    with Consumer(bootstrap_servers=NOWHERE) as consumer:
        consumer.assign([ZERO])
        thread, raised = in_thread(lambda: consumer.poll(60_000))
        until(lambda: consumer._consumer._polling, rest)
        consumer.wakeup()
        thread.join(60)
        assert [type(error) for error in raised] == [WakeupError]
        assert consumer.poll(10) == {}
        consumer.wakeup()
        with pytest.raises(WakeupError):
            next(consumer)
        assert consumer.poll(10) == {}
    consumer.wakeup()


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.position(ZERO),
        lambda consumer: consumer.committed([ZERO]),
        lambda consumer: consumer.commit({ZERO: 1}),
        lambda consumer: consumer.end_offsets([ZERO]),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_wakeup_ends_other_calls_that_wait(call: Callable[[Consumer], object], before: bool) -> None:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([ZERO])
        if before:
            consumer.wakeup()
        thread, raised = in_thread(lambda: call(consumer))
        if not before:
            until(lambda: bool(consumer._consumer._loop._waiters), rest)
            consumer.wakeup()
        thread.join(60)
        assert [type(error) for error in raised] == [WakeupError]
        assert consumer.poll(10) == {}
        consumer.seek(ZERO, 7)
        consumer.wakeup()
        assert consumer.position(ZERO) == 7  # this one need not wait
        with pytest.raises(WakeupError):
            consumer.poll(10)
        consumer.close(0)  # without waiting for an acknowledgement that no broker sends


def test_wakeup_by_a_signal_loses_nothing(world: World) -> None:
    with Consumer(**world.settings) as consumer:
        consumer.subscribe([world.topic])
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.wakeup())
        seen: list[int] = []
        try:
            assert offsets(first(consumer, max_records=3)) == [0, 1, 2]
            while len(seen) < 30:
                signal.raise_signal(signal.SIGUSR1)
                with pytest.raises(WakeupError):
                    consumer.poll(60_000)
                seen += offsets(first(consumer, max_records=3))
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert seen == list(range(3, 33))


# --- cancelled -------------------------------------------------------------------------------------------------------


async def test_a_poll_that_is_cancelled_anywhere_loses_nothing(world: World) -> None:
    """After each number of steps of the event loop, until the poll completes before it can be cancelled."""
    consumer = AsyncConsumer(**world.settings)
    consumer.subscribe([world.topic])
    seen: list[int] = []
    steps = 0
    while len(seen) < 90:
        steps += 1
        poll = asyncio.create_task(consumer.poll(60_000, max_records=3))
        for _ in range(steps):
            await asyncio.sleep(0)
        poll.cancel()
        with suppress(asyncio.CancelledError):
            seen += [record.offset for batch in (await poll).values() for record in batch]
            steps = 0
    assert seen == list(range(90))
    await consumer.close()
    assert await asyncio.to_thread(world.committed) == [90]


async def test_a_timeout_around_a_poll_loses_nothing(world: World) -> None:
    consumer = AsyncConsumer(**world.settings)
    consumer.subscribe([world.topic])
    seen: list[int] = []
    while len(seen) < 60:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                seen += [r.offset for batch in (await consumer.poll(60_000, max_records=3)).values() for r in batch]
        with suppress(TimeoutError):
            seen.append((await asyncio.wait_for(anext(consumer), 0.001)).offset)
    assert seen == list(range(len(seen)))
    await consumer.close()


# --- between the parts of what was handed out ------------------------------------------------------------------------


def test_what_is_done_to_a_partition_holds_for_what_iteration_has_of_it(bootstrap: str) -> None:
    world = World(bootstrap, 200, partitions=2)
    zero, one = world.places
    with world.admin, Consumer(**world.settings) as consumer:
        consumer.assign([zero])
        assert [next(consumer).offset for _ in range(5)] == list(range(5))
        consumer.seek(zero, 50)
        assert [next(consumer).offset for _ in range(5)] == list(range(50, 55))
        consumer.pause([zero])
        assert consumer.poll(50) == {}
        assert consumer.position(zero) == 55
        consumer.resume([zero])
        assert next(consumer).offset == 55
        assert offsets(first(consumer, max_records=4)) == [56, 57, 58, 59]
        assert next(consumer).offset == 60
        [table] = consumer.poll_arrow(60_000, columns=["offset"]).values()
        assert table.column("offset").to_pylist()[0] == 61
        consumer.seek(zero, 61)
        assert next(consumer).offset == 61
        consumer.assign([zero, one])
        assert {next(consumer).offset for _ in range(3)} >= {62}
        consumer.assign([one])
        assert next(consumer).partition == 1
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="before poll"):
            next(consumer)
        consumer.assign([zero])
        consumer.seek(zero, 7)
        assert next(consumer).offset == 7


# --- calls within calls ----------------------------------------------------------------------------------------------


class Closing(RebalanceListener):
    def __init__(self, consumer: Any, when: str) -> None:
        self._consumer, self._when = consumer, when

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._when == "assigned":
            self._consumer.close()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        if self._when == "revoked":
            self._consumer.close()


def test_a_listener_that_closes_ends_the_poll_that_it_is_called_from(world: World) -> None:
    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic], listener=Closing(consumer, "assigned"))
    with pytest.raises(ClosedError):
        first(consumer)
    assert world.members() == 0
    assert consumer._thread._thread is not None
    assert not consumer._thread._thread.is_alive()


def test_a_listener_that_closes_while_the_consumer_is_closed(world: World) -> None:
    consumer = Consumer(**world.settings)
    consumer.subscribe([world.topic], listener=Closing(consumer, "revoked"))
    first(consumer)
    consumer.close()
    assert world.members() == 0
    assert world.committed() == [100]


def test_closing_during_a_rebalance(world: World) -> None:
    """The other member's join is parked; this one's is too, or is about to be."""
    with Consumer(**world.settings) as one:
        one.subscribe([world.topic])
        first(one, max_records=10)
        two = Consumer(**world.settings)
        two.subscribe([world.topic])
        two.poll(50)
        two.close()
        assert world.members() == 1
        assert offsets(first(one, max_records=10)) == list(range(10, 20))


class Hiccup(RangeAssignor):
    """Raises once."""

    name = "hiccup"
    raised = 0

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        if not Hiccup.raised:
            Hiccup.raised += 1
            raise RuntimeError("one hiccup in on_assignment")


def test_an_assignor_that_raises_is_reported_once_and_the_consumer_continues(world: World) -> None:
    Hiccup.raised = 0
    raised: list[Exception] = []
    with Consumer(**world.settings, partition_assignment_strategy=[Hiccup()]) as consumer:
        consumer.subscribe([world.topic])

        def poll() -> list[ConsumerRecord]:
            try:
                return first(consumer)
            except Exception as error:
                raised.append(error)
                return []

        seen: list[int] = []
        until(lambda: len(seen) == 100, lambda: seen.extend(offsets(poll())))
    assert len(raised) == 1
    assert "one hiccup" in str(raised[0])
    assert seen == list(range(100))
