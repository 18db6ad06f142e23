"""The producer's own future does everything that a `concurrent.futures.Future` does, whoever comes first."""

import asyncio
import concurrent.futures
import threading
from concurrent.futures import CancelledError, InvalidStateError

import pytest

from muster.client.delivery import DeliveryFuture
from muster.errors import KafkaTimeoutError
from muster.model import RecordMetadata

METADATA = RecordMetadata("t", 0, 7, 1_000)


@pytest.fixture
def future():
    return DeliveryFuture()


def test_a_result_that_nobody_waited_for(future):
    assert not future.done()
    future.set_result(METADATA)
    assert future.done()
    assert (future.cancelled(), future.running()) == (False, False)
    assert future.result() == future.result(0) == METADATA
    assert future.exception() is None
    assert "finished" in repr(future)


def test_an_error(future):
    future.set_exception(KafkaTimeoutError("too late"))
    assert future.done()
    with pytest.raises(KafkaTimeoutError, match="too late"):
        future.result()
    assert isinstance(future.exception(), KafkaTimeoutError)


def test_waiting_ends_in_time(future):
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    assert not future.done()


def test_it_is_settled_once(future):
    future.set_result(METADATA)
    with pytest.raises(InvalidStateError):
        future.set_result(METADATA)
    with pytest.raises(InvalidStateError):
        future.set_exception(KafkaTimeoutError(""))


def test_one_that_was_cancelled_is_not_settled(future):
    assert future.cancel()
    assert (future.done(), future.cancelled()) == (True, True)
    with pytest.raises(InvalidStateError):
        future.set_result(METADATA)
    with pytest.raises(CancelledError):
        future.result()


def test_one_that_is_settled_is_not_cancelled(future):
    future.set_result(METADATA)
    assert not future.cancel()
    assert future.result() == METADATA


def test_callbacks_before_and_after(future):
    reported: list[DeliveryFuture] = []
    future.add_done_callback(reported.append)
    assert reported == []
    future.set_result(METADATA)
    future.add_done_callback(reported.append)
    assert reported == [future, future]


def test_many_are_waited_for_together():
    futures = [DeliveryFuture() for _ in range(4)]
    futures[0].set_result(METADATA)
    done, waiting = concurrent.futures.wait(futures, 0)
    assert (done, waiting) == ({futures[0]}, set(futures[1:]))
    for future in futures[1:]:
        future.set_result(METADATA)
    assert set(concurrent.futures.as_completed(futures, 0)) == set(futures)


def test_asyncio_can_wait_for_it(future):
    async def wait():
        wrapped = asyncio.wrap_future(future)
        threading.Thread(target=future.set_result, args=(METADATA,)).start()
        return await asyncio.wait_for(wrapped, 30)

    assert asyncio.run(wait()) == METADATA


def test_a_waiting_thread_is_notified_whichever_comes_first():
    """Both threads may take `_lock` first: no waiter may be forgotten."""
    futures = [DeliveryFuture() for _ in range(2_000)]
    results: list[RecordMetadata] = []
    begin = threading.Barrier(2)

    def wait():
        begin.wait()
        results.extend(future.result(30) for future in futures)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begin.wait()
    for future in futures:
        future.set_result(METADATA)
    waiting.join()
    assert results == [METADATA] * len(futures)


def waited_for(future, settle):
    """The outcome for a thread that waits for the future, when another thread settles it."""
    found = []
    waiting = threading.Thread(target=lambda: found.append(future.exception()), daemon=True)
    waiting.start()
    while future._locks is None and waiting.is_alive():
        pass
    settle()
    waiting.join(30)
    return found


@pytest.mark.parametrize("watched", [False, True])
def test_a_waiting_thread_gets_an_error(future, watched):
    if watched:  # then it has a condition as well
        future.add_done_callback(lambda _: None)
    error = KafkaTimeoutError("too late")
    assert waited_for(future, lambda: future.set_exception(error)) == [error]


def test_a_future_that_is_settled_just_before_a_thread_begins_to_wait_is_not_waited_for():
    class JustSettled(DeliveryFuture):
        def done(self):
            before = super().done()
            if not before:
                self.set_result(METADATA)
            return before

    assert waited_for(JustSettled(), lambda: None) == [None]


def test_other_attributes_are_missing_as_ever(future):
    with pytest.raises(AttributeError, match="surprise"):
        _ = future.surprise
