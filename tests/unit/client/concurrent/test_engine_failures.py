"""The loop behind both faces, scripted: what it does when records fail, and when the run ends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from muster.client.concurrent import engine as module
from muster.client.concurrent.outcomes import HandlerFailedError, PoisonRecordError
from muster.client.core.concurrent.rules import Retry
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import ConsumerRecord
from tests.unit.client.concurrent.test_engine import (
    P0,
    Handler,
    Letters,
    Script,
    engine,
    fine,
    play,
    records,
    stuck_but_for,
    until,
)


def test_a_dead_letter_that_is_not_taken_now_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BURY_AGAIN_S", 0)

    async def scene() -> None:
        script, letters = Script(), Letters(*[KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3)
        it = engine(failing(PoisonRecordError("never")), script, letters, commit_interval_ms=600_000)
        run = asyncio.ensure_future(it.run())
        script.steps.put_nowait(records(b"a"))
        await until(lambda: letters.sent)
        await until(lambda: it.core.counters()["dead_lettered"] == 1)
        it.stop()
        await run
        assert [commit[P0].offset for commit in script.commits] == [1]

    play(scene)


def test_a_dead_letter_that_is_never_taken_ends_the_run() -> None:
    async def scene() -> None:
        script, refused = Script(), KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        it = engine(failing(PoisonRecordError("never")), script, Letters(refused))
        script.steps.put_nowait(records(b"a"))
        with pytest.raises(HandlerFailedError) as raised:
            await it.run()
        assert raised.value.__cause__ is refused
        assert not script.is_committed(1)

    play(scene)


def failing(error: Exception) -> Handler:
    async def handle(_record: ConsumerRecord) -> None:
        raise error

    return handle


def test_a_handler_that_is_none_ends_the_run_before_the_next_of_its_key() -> None:
    async def scene() -> None:
        script, begun = Script(), list[int]()

        async def handle(record: ConsumerRecord) -> None:
            begun.append(record.offset)
            await asyncio.Event().wait()

        it = engine(handle, script, drain_timeout_ms=0)
        run = asyncio.ensure_future(it.run())
        script.steps.put_nowait(records(b"a", b"a"))
        await until(lambda: begun)
        [job] = it._running
        it._ended(job, ConfigError("it has only begun its work"))
        it._pump()  # before the run has come to its end
        assert not it._running
        with pytest.raises(ConfigError):
            await run
        assert begun == [0]
        assert not script.is_committed(1)

    play(scene)


def test_a_handler_that_was_cancelled_by_itself_has_failed() -> None:
    """Something that it awaits was cancelled: the record is tried again, as the run was not asked for that."""

    async def scene() -> None:
        script, attempts = Script(), list[int]()

        async def handle(record: ConsumerRecord) -> None:
            attempts.append(record.offset)
            if len(attempts) == 1:
                raise asyncio.CancelledError

        it = engine(handle, script, retry=Retry(max_attempts=2, delay_ms=0, max_delay_ms=0))
        run = asyncio.ensure_future(it.run())
        script.steps.put_nowait(records(b"a"))
        await until(lambda: it.core.counters()["handled"] == 1)
        it.stop()
        await run
        assert attempts == [0, 0]

    play(scene)


def test_a_second_stop_does_not_wait_for_handlers() -> None:
    async def scene() -> None:
        script, ends = Script(), list[str]()
        it = engine(stuck_but_for(1, ends), script, drain_timeout_ms=200_000)
        run = asyncio.ensure_future(it.run())
        script.steps.put_nowait(records(None, None))
        await until(lambda: ends == ["0"])
        it.stop()
        await asyncio.sleep(0)
        it.stop(drain=False)
        await run
        assert ends == ["0", "1 was cancelled"]

    play(scene)


def test_the_position_behind_the_last_record_is_committed() -> None:
    async def scene() -> None:
        script = Script()
        it = engine(fine, script, commit_interval_ms=1)
        run = asyncio.ensure_future(it.run())
        script.steps.put_nowait(records(b"a"))
        await until(partial(script.is_committed, 1))
        cast(Any, script).handled = lambda: {P0: 5}
        await until(partial(script.is_committed, 5))
        it.stop()
        await run

    play(scene)
