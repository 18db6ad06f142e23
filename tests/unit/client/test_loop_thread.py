"""The thread behind the blocking faces."""

import asyncio
import multiprocessing
import threading
from contextvars import copy_context

import pytest

from muster.client.net.loop import LoopCall, LoopThread
from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError


@pytest.fixture
def thread():
    made = LoopThread("test")
    yield made
    made.close()


async def answer():
    return threading.current_thread().name


def test_work_runs_in_a_thread_that_starts_when_it_is_needed(thread):
    assert "test" not in {found.name for found in threading.enumerate()}
    assert thread.run(answer()) == "test"
    thread.close()
    thread.close()
    assert "test" not in {found.name for found in threading.enumerate()}


def test_errors_come_through(thread):
    async def fail():
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        thread.run(fail())


def test_a_timeout_cancels_the_work(thread):
    began, cancelled = threading.Event(), threading.Event()

    async def wait():
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    while not began.is_set():  # on a busy machine the timeout may pass before: then there is nothing to cancel
        with pytest.raises(KafkaTimeoutError, match="20 ms"):
            thread.run(wait(), timeout_ms=20)
    assert cancelled.wait(20)


def test_a_timeout_of_the_work_itself_is_another_one(thread):
    async def wait():
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        thread.run(wait())


def test_close_ends_what_waits(thread):
    entered = threading.Event()
    outcome = []

    async def wait():
        entered.set()
        await asyncio.sleep(60)

    def call():
        try:
            thread.run(wait())
        except ClosedError as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert entered.wait(20)
    thread.close()
    caller.join(20)
    assert len(outcome) == 1


def test_closing_again_does_not_cut_the_farewell_short():
    reported: list[str] = []

    async def farewell():
        for _ in range(50):
            made.close(0)
            await asyncio.sleep(0)
        reported.append("farewell")

    made = LoopThread("test", farewell)
    made.run(answer())
    made.close()
    assert reported == ["farewell"]
    assert "test" not in {found.name for found in threading.enumerate()}


def test_a_call_that_comes_between_the_last_round_and_the_end_gets_an_error():
    late = LoopCall(answer)

    async def farewell():
        loop, served = asyncio.get_running_loop(), made._served
        close = loop.close
        assert served is not None

        def close_later():
            served.calls.add(late)
            served.call_soon(late.begin, copy_context(), served.calls)
            close()

        loop.close = close_later  # type: ignore[method-assign]

    made = LoopThread("test", farewell)
    made.run(answer())
    made.close()
    assert late.ended
    with pytest.raises(ClosedError):
        late.result()


def test_after_close_nothing_runs(thread):
    thread.close()
    with pytest.raises(ClosedError):
        thread.run(answer())


def test_a_blocking_call_from_the_thread_itself_is_refused(thread):
    async def nested():
        return thread.run(answer())

    with pytest.raises(IllegalStateError, match="would wait for itself"):
        thread.run(nested())


def in_child(thread, pipe):
    try:
        pipe.send(thread.run(answer()))
    except IllegalStateError as error:
        pipe.send(str(error))


def outcome_in_child(thread):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_child, args=(thread, theirs))
    child.start()
    try:
        assert ours.poll(30)
        return ours.recv()
    finally:
        child.join(30)
        ours.close()
        theirs.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_thread_does_not_live_on_in_a_forked_child(thread):
    thread.run(answer())
    assert "before the process forked" in outcome_in_child(thread)


def test_a_thread_that_was_not_started_works_in_a_forked_child(thread):
    assert outcome_in_child(thread) == "test"


def test_an_interrupt_while_python_waits_for_the_thread_is_an_interrupt(thread, monkeypatch):
    """It comes when `Condition.wait` has just released its lock, which is then released a second time."""
    start = threading.Thread.start

    def unlocked(self):
        start(self)
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", unlocked)
    with pytest.raises(KeyboardInterrupt):
        thread.run(asyncio.sleep(0))
    monkeypatch.undo()
    assert thread.run(asyncio.sleep(0, 7)) == 7
