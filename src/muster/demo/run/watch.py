"""Watches the groups while the demo runs: snapshots from the cluster, events from the broker's file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from muster.client.admin.async_admin import AsyncAdmin
from muster.clock import wall_clock_ms
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.show.story import Snapshot
from muster.errors import KafkaError, MusterError
from muster.history.lag import lag, total
from muster.model import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP

POLL_INTERVAL_S = 0.4


@dataclass(frozen=True, slots=True)
class GroupsSnapshot:
    """A snapshot of the shared group, and the lag of every group that has committed."""

    shared: Snapshot
    lags: dict[str, int]


class Watcher:
    """Polls the cluster about some groups; an unreachable cluster is asked again."""

    def __init__(self, access: ClusterAccess, shared: str, partitions: Mapping[str, Sequence[TopicPartition]]) -> None:
        """`shared` is the group to describe in detail; `partitions` has those that each group reads."""
        self._admin = AsyncAdmin(access.settings(), client_id="muster-demo-watch", request_timeout_ms=5_000)
        self._shared = shared
        self._partitions = partitions

    async def run(self, on_snapshots: Callable[[GroupsSnapshot], None]) -> None:
        """Poll until cancelled."""
        async with self._admin:
            while True:
                try:
                    async with asyncio.timeout(5):
                        snapshots = await self.poll()
                except (MusterError, TimeoutError):
                    pass  # the broker is down: try again
                else:
                    on_snapshots(snapshots)
                await asyncio.sleep(POLL_INTERVAL_S)

    async def poll(self) -> GroupsSnapshot:
        """The groups now."""
        described = (await self._admin.describe_consumer_groups([self._shared]))[self._shared]
        found = await self._admin.list_offsets_of_consumer_groups(self._partitions, raise_errors=False)
        every = dict.fromkeys(chain(*self._partitions.values()), LATEST_TIMESTAMP)
        ends = {
            partition: end.offset
            for partition, end in (await self._admin.list_offsets(every, raise_errors=False)).items()
            if isinstance(end, OffsetAndTimestamp)
        }
        committed = {group: _offsets(offsets) for group, offsets in found.items() if not isinstance(offsets, Exception)}
        shared, own = self._partitions[self._shared], committed.get(self._shared, {})
        snapshot = Snapshot(
            at_ms=wall_clock_ms(),
            state=described.state,
            members=sorted(member.client_id for member in described.members),
            owners={p.partition: member.client_id for member in described.members for p in member.assignment},
            positions={p.partition: own[p] for p in shared if p in own},
            ends={p.partition: ends[p] for p in shared if p in ends},
        )
        lags = {
            group: total(lag(offsets.get(p, 0), ends[p]) for p in self._partitions[group] if p in ends)
            for group, offsets in committed.items()
        }
        return GroupsSnapshot(snapshot, lags)


def _offsets(found: Mapping[TopicPartition, OffsetAndMetadata | KafkaError]) -> dict[TopicPartition, int]:
    return {partition: each.offset for partition, each in found.items() if isinstance(each, OffsetAndMetadata)}


async def tail_events(path: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Pass on the events that the broker appends to its file, until cancelled."""
    position = 0
    while True:
        position = _read_events(path, position, on_event)
        await asyncio.sleep(POLL_INTERVAL_S / 2)


def _read_events(path: Path, position: int, on_event: Callable[[dict[str, Any]], None]) -> int:
    """Read complete lines from a position on. Returns the position after them."""
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
