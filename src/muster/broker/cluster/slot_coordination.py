"""Coordination of groups whose slots are in ZooKeeper (`group.coordinator.store=zookeeper`).

The rules are `zookeeper/cluster/slots.py` and `group_store.py` next to it; this file runs them on the loop, on the
session that the broker has anyway. So a broker that dies takes its slots with it, and another broker has them when
ZooKeeper has ended the session.

Two things need care:

- A slot is read after this broker has taken it, and offsets of topics that do not exist are removed at that point. A
  topic that another broker knew when it wrote the offsets must not be missing here. ZooKeeper notifies a session of all
  earlier changes before it answers a request. So the coordinator gets a slot only once the catalogue has all changes
  reported until then (`followed`).
- A frozen process may receive requests before it learns that its session has ended. Each request checks the clock
  (`may_serve`); if in doubt, the broker drops its slots first, and the coordinator answers with NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from muster.broker.cluster.follower import Follower
from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination, Slots
from muster.coordinator.shards.store import Store
from muster.errors import ClosedError, ConfigError
from muster.log.producers.producer_state import PartitionProducers
from muster.model import Node
from muster.protocol.group_partitions import group_partition
from muster.protocol.group_records import GroupMetadataRecord, encode_record
from muster.zookeeper.base.operations import Plan, SessionEvent, Watched, ZooKeeperError
from muster.zookeeper.base.znodes import BrokerEndpoint, CoordinatorRegistration
from muster.zookeeper.cluster.cached_znode import MAX_OFFSET_METADATA
from muster.zookeeper.cluster.group_store import GroupStore
from muster.zookeeper.cluster.slots import SLOT_COUNT, SlotKeeper

log = logging.getLogger("muster.broker")

PAUSE_S = 0.2
"""The pause after a failed turn; it doubles while turns fail and nothing happens, up to `LONGEST_PAUSE_S`."""

LONGEST_PAUSE_S = 6.0

KEPT_PAUSE_S = 0.5
"""How often to check slots that wait for their groups to rebalance before they go to another broker."""


def check_settings(config: BrokerConfig) -> None:
    """Refuse settings with which groups cannot be kept here.

    Raises:
        ConfigError: the metadata of commits could be too long.
    """
    if config.integer("offset.metadata.max.bytes") > MAX_OFFSET_METADATA:
        raise ConfigError(
            f"offset.metadata.max.bytes must be at most {MAX_OFFSET_METADATA} with group.coordinator.store=zookeeper"
        )


def registration_of(cluster: ClusterView) -> CoordinatorRegistration:
    """This process's registration as a coordinator, once its ports are open."""
    node, draft = cluster.node, cluster.draft_node
    listener = BrokerEndpoint("DRAFT", draft.host, draft.port) if draft is not None else None
    return CoordinatorRegistration(node.host, node.port, listener)


class ZooKeeperCoordination(Coordination):
    """Which broker has which slot, by the znodes of `muster.zookeeper.cluster.slots`."""

    is_leased = True
    slots_without_topic = SLOT_COUNT

    def __init__(self, follower: Follower, cluster: ClusterView) -> None:
        self._follower = follower
        self._session = follower.session
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._groups: Slots
        self._store = GroupStore(self._run, lambda: self._groups.release_durable(), PartitionProducers, self._fenced)
        self.keeper = SlotKeeper(
            follower.node_id, self._gained, self._lost, is_busy=lambda slot: self._groups.is_rebalancing(slot)
        )
        self._pending: dict[int, int] = {}
        """Slots that this broker has but does not serve yet, with their epochs."""
        self._wake = asyncio.Event()
        self._turns: asyncio.Task[None] | None = None
        self._plans: set[asyncio.Task[Any]] = set()
        self._failing = False
        self._kept_timer: asyncio.TimerHandle | None = None

    # ----------------------------------------------------------------------------------------------- Coordination

    def store(self) -> Store:
        """ZooKeeper."""
        return self._store

    def record_fits(self, record: GroupMetadataRecord) -> bool:
        """Whether a znode can hold the record."""
        key, value = encode_record(record)
        return value is None or self._store.fits(key, value)

    def start(self, groups: Slots) -> None:
        """Start without slots: they are taken once this broker is registered."""
        self._groups = groups
        groups.serve(SLOT_COUNT)
        self._session.listen(self._on_event)
        self._turns = self._loop.create_task(self._keep())

    def stop(self) -> None:
        """Stop taking slots; the end of the session releases those that it has."""
        if self._turns is not None:
            self._turns.cancel()
        if self._kept_timer is not None:
            self._kept_timer.cancel()

    def may_serve(self) -> bool:
        """Whether no other broker can have this broker's slots, by the clock."""
        return self._session.is_live

    def ensure(self) -> bool:
        """There is nothing to create. If in doubt, this broker's slots are dropped: the coordinator then refuses. A
        session that turns out to be alive may send no event, so a turn takes them again."""
        if not self._session.is_live:
            self.keeper.drop_all()
            self._wake.set()
        return True

    def coordinator(self, group_id: str) -> Node | None:
        """The broker that has the group's slot, None while it is vacant."""
        return self.owner(group_partition(group_id, SLOT_COUNT))

    def owner(self, slot: int) -> Node | None:
        """The broker that has a slot, None while it is vacant."""
        owner = self.keeper.owner(slot)
        if owner is None or slot in self._pending:
            return None
        if owner == self._cluster.node.node_id:
            return self._cluster.node if self._session.is_live else None
        found = self.keeper.live.get(owner)
        return Node(owner, found.host, found.port) if found is not None else None

    def followed(self) -> None:
        """This broker is in line with its image of the cluster: it is registered, and has all topics."""
        self._wake.set()
        if self._follower.image.is_current:
            pending, self._pending = self._pending, {}
            for slot, epoch in pending.items():
                self._groups.lead(slot, epoch)

    # ----------------------------------------------------------------------------------------------- the keeper

    def _on_event(self, event: Watched | SessionEvent) -> None:
        if event is SessionEvent.DOUBTED and self.keeper.held:
            log.warning("no response from ZooKeeper: dropping %d slots of groups", len(self.keeper.held))
        if self.keeper.on_event(event):
            self._wake.set()

    def _fenced(self, slot: int, epoch: int) -> None:
        if self.keeper.fenced(slot, epoch):
            self._wake.set()

    def _gained(self, slot: int, epoch: int) -> None:
        if not self._pending:
            self._follower.wake()
        self._pending[slot] = epoch

    def _lost(self, slot: int) -> None:
        self._pending.pop(slot, None)
        self._groups.resign(slot)

    async def _keep(self) -> None:
        pause = PAUSE_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._follower.is_registered or self.keeper.is_settled:
                continue
            try:
                await self._turn()
                pause = PAUSE_S
            except ClosedError:
                return
            except Exception as error:
                if not self._failing:
                    expected = isinstance(error, ZooKeeperError)
                    log.warning("taking slots of groups failed, trying again: %s", error, exc_info=not expected)
                self._failing = True
                await asyncio.sleep(PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause - PAUSE_S)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                self._wake.set()

    async def _turn(self) -> None:
        before = len(self.keeper.held)
        await self._session.run(self.keeper.turn(registration_of(self._cluster)))
        self._failing = False
        if len(self.keeper.held) != before:
            log.info("coordinates the groups of %d of %d slots", len(self.keeper.held), SLOT_COUNT)
        for unreadable in self.keeper.unreadable.values():
            log.warning("%s", unreadable)
        self.keeper.unreadable.clear()
        if self.keeper.kept and self._kept_timer is None:
            self._kept_timer = self._loop.call_later(KEPT_PAUSE_S, self._check_kept)

    def _check_kept(self) -> None:
        self._kept_timer = None
        if self.keeper.release_kept():
            self._wake.set()
        elif self.keeper.kept:
            self._kept_timer = self._loop.call_later(KEPT_PAUSE_S, self._check_kept)

    # ----------------------------------------------------------------------------------------------- plans of the store

    def _run(self, plan: Plan[Any], then: Callable[[Any], None]) -> Callable[[], None]:
        task = self._loop.create_task(self._session.run(plan))
        self._plans.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._plans.discard(task)
            if not task.cancelled():
                error = task.exception()
                then(error if error is not None else task.result())

        def end() -> None:
            task.cancel()

        task.add_done_callback(done)
        return end
