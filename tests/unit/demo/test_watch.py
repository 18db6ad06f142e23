"""The broker's events, which the demo reads while they are being written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.demo.run import watch

PATIENCE_S = 120


async def test_a_line_that_is_still_being_written_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_INTERVAL_S", 0.01)
    path, heard = tmp_path / "events.jsonl", asyncio.Queue[dict[str, Any]]()
    tail = asyncio.create_task(watch.tail_events(path, heard.put_nowait))
    try:
        async with asyncio.timeout(PATIENCE_S):
            with path.open("a", encoding="utf-8", buffering=1) as file:
                for number in range(3):
                    file.write(f'{{"event":{number}}}\n{{"event":')
                    file.flush()
                    assert await heard.get() == {"event": number}
                    file.write('"whole"}\n')
                    file.flush()
                    assert await heard.get() == {"event": "whole"}
        assert heard.empty()
        assert not tail.done()
    finally:
        tail.cancel()
