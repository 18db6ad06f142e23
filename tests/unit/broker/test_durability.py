"""Who waits for a sync is told of it, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.broker.durability import Durability
from muster.log import FsyncPolicy, LogStore


class Over:
    """What is over from the beginning."""

    over = True


class Never:
    """What is not over, and does not become so."""

    over = False


async def test_an_answer_that_raises_does_not_keep_the_others_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one who raises must cost neither the others of its sync, nor those of the next, nor the sync itself."""
    flushed = 0

    def on_flushed() -> None:
        nonlocal flushed
        flushed += 1
        if flushed == 1:
            raise LookupError("no such shelf")

    store = LogStore.open(tmp_path, now=0, fsync=FsyncPolicy.ALWAYS)
    durability = Durability(store, FsyncPolicy.ALWAYS, on_flushed)
    never: list[str] = []

    def refuse() -> None:
        raise LookupError("no such book")

    first, second = asyncio.Event(), asyncio.Event()
    durability.start(housekeeping_ms=10**6)
    durability.wait([Over()], refuse)
    durability.wait([Over()], first.set)
    durability.wait([Over(), Never()], lambda: never.append("told"))
    await asyncio.wait_for(first.wait(), 30)
    durability.wait([Over()], second.set)
    await asyncio.wait_for(second.wait(), 30)
    await durability.stop()
    store.close()
    assert never == []
    assert "no such book" in caplog.text
    assert "no such shelf" in caplog.text
