"""The listener of a blocking consumer of schemes 1 and 2: however it ends, the rebalance learns of it."""

from __future__ import annotations

import asyncio

import pytest

from muster.errors import IllegalStateError, MusterError
from muster.zookeeper.consumers.blocking_reader import call_in_thread

PATIENCE_S = 30


async def outcome(error: BaseException | None) -> Exception | None:
    """The exception that the caller gets for a listener that raises `error`."""

    def listener(word: str) -> None:
        assert word == "reported"
        if error is not None:
            raise error

    try:
        async with asyncio.timeout(PATIENCE_S):
            await call_in_thread(listener, "reported")
    except Exception as found:
        return found
    return None


async def test_what_it_raises_is_raised() -> None:
    wrong = ZeroDivisionError("its own")
    assert await outcome(wrong) is wrong
    assert await outcome(None) is None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_one_that_ends_its_thread_is_not_waited_for_forever(error: BaseException) -> None:
    """sys.exit() ends a thread silently. Raised as it is, it would end the loop on which the consumer works."""
    found = await outcome(error)
    assert type(found) is MusterError
    assert str(found) == f"the listener ended with {error!r}"
    assert found.__cause__ is error


async def test_a_next_too_many_is_reported() -> None:
    """A StopIteration can be set in no future and raised in no coroutine."""
    error = StopIteration(1)
    found = await outcome(error)
    assert type(found) is RuntimeError
    assert found.__cause__ is error


async def test_a_coroutine_is_not_a_function() -> None:
    async def listener() -> None: ...

    with pytest.raises(IllegalStateError, match="not coroutines"):
        await call_in_thread(listener)
