"""Looking at the group while the demo runs: snapshots by asking the cluster, events from the broker's own file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.client.async_admin import AsyncAdmin
from muster.client.driver import wall_clock_ms
from muster.demo.story import Snapshot
from muster.demo.way import Way
from muster.errors import MusterError
from muster.model import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP

LOOK_EVERY_S = 0.4


class Watcher:
    """Asks the cluster about one group and one topic, again and again; a cluster that is away is asked again."""

    def __init__(self, way: Way, group: str, topic: str, partitions: int) -> None:
        self._admin = AsyncAdmin(way.settings(), client_id="muster-demo-watch", request_timeout_ms=5_000)
        self._group = group
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Look until cancelled."""
        async with self._admin:
            while True:
                try:
                    async with asyncio.timeout(5):
                        snapshot = await self.look()
                except (MusterError, TimeoutError):
                    pass  # the broker is away: the next look tells
                else:
                    on_snapshot(snapshot)
                await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> Snapshot:
        """The group now."""
        described = (await self._admin.describe_consumer_groups([self._group]))[self._group]
        if isinstance(described, Exception):
            raise described
        committed = await self._admin.list_consumer_group_offsets(self._group, self._partitions)
        ends = await self._admin.list_offsets(dict.fromkeys(self._partitions, LATEST_TIMESTAMP))
        owners = {
            partition.partition: member.client_id for member in described.members for partition in member.assignment
        }
        return Snapshot(
            at_ms=wall_clock_ms(),
            state=described.state,
            members=sorted(member.client_id for member in described.members),
            owners=owners,
            positions={
                p.partition: offset.offset for p, offset in committed.items() if isinstance(offset, OffsetAndMetadata)
            },
            ends={p.partition: found.offset for p, found in ends.items() if isinstance(found, OffsetAndTimestamp)},
        )


async def tail_events(path: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Hand over the events that the broker appends to its file, until cancelled."""
    position = 0
    while True:
        position = _read_events(path, position, on_event)
        await asyncio.sleep(LOOK_EVERY_S / 2)


def _read_events(path: Path, position: int, on_event: Callable[[dict[str, Any]], None]) -> int:
    """Read whole lines from a position on; one that is still being written waits. Returns the position behind them."""
    if not path.exists():
        return position
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                break
            position += len(line)
            on_event(json.loads(line))
    return position
