"""The assignment of slots to coordinators: which of them has which slot, under which epoch.

Theory. The groups are divided into slots, and one coordinator at a time has a slot. There are three znodes:

    /muster/coordinators/[id]     ephemeral: the coordinator is alive, at this address
    /muster/slots/[n]/owner       ephemeral: it has the slot, and took it under this epoch
    /muster/slots/[n]/epoch       persistent; its *version* is the slot's epoch

A coordinator takes a slot with one multi: create `owner`, write `epoch` if it still has the version that was read. So
each take-over has its own epoch, greater than all earlier ones. Every write of a group is a multi that checks the
version of `epoch` (`group_store.py`). So if two coordinators both believe that they have a slot, only the one with the
newer epoch can write.

    a coordinator dies      its znodes are deleted with its session; others see it, and take its slots
    it was frozen, resumes  its session has ended: its writes are refused, and it drops its slots
    it hears nothing        after two thirds of its session's timeout, by its own clock, it drops its slots: a later
                            answer might contradict what another one has changed (`SessionEvent.DOUBTED`)
    and then it does        its session has survived, and `owner` exists: it writes `epoch` again, and so has the slot
                            under a new epoch. Writes that it had sent before are refused from then on

Rendezvous hashing over the live coordinators determines which one should have a slot: the one with the greatest hash of
both names. When one joins or leaves, only the slots that it should have, or had, move. A coordinator with a slot that
another should have stops serving it, then deletes `owner`; but not while a group in it rebalances. Which members have
joined is not stored, so the next coordinator would have to restart that rebalance. Coordinators may briefly disagree
about which of them are live, and move a slot twice; that is harmless.

Only coordinators watch: the list of coordinators, and every slot's `owner`, to which they direct clients.

All work is done in turns, as in `scheme.py`: every event wakes `SlotKeeper.turn`, which does what is left to do. So a
turn that was interrupted anywhere is completed by the next. If the answer to a take-over was lost, it is found by its
`owner`, which names the session and the epoch.

Any program may have written these znodes, or deleted them. Missing ones are created again. A new `epoch` counts from 0,
and no epoch may be used again: it is written until it is above all epochs that this coordinator has used. An `owner` or
a coordinator without a session is ignored. A slot that cannot be taken, for whatever reason, does not hold up others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from muster.errors import ConfigError
from muster.zookeeper.base.operations import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    NodeExistsError,
    NoNodeError,
    Plan,
    SessionEvent,
    SessionExpiredError,
    SessionId,
    SetData,
    Stat,
    Sync,
    Watched,
    ZooKeeperError,
    ask,
    create_ephemeral,
    ensure_path,
    side_by_side,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    COORDINATORS,
    GROUPS,
    SLOTS,
    CoordinatorRegistration,
    SlotOwner,
    coordinator_path,
    read_coordinator,
    read_slot_owner,
    slot_epoch_path,
    slot_owner_path,
)

SLOT_COUNT = 64
"""The same for all coordinators of a ZooKeeper, forever: `group_partition` computes a group's slot from it."""

NO_SESSION = 0

GROUP_STORE = "/muster/store"
"""Where the brokers of a cluster keep groups: `zookeeper` or `log`. Its parent exists in a cluster of brokers."""


def preferred(slot: int, coordinators: Collection[int]) -> int | None:
    """The live coordinator that should have a slot."""
    return max(coordinators, key=lambda each: (_weight(slot, each), each), default=None)


def _weight(slot: int, coordinator_id: int) -> bytes:
    return hashlib.sha256(f"{slot}/{coordinator_id}".encode()).digest()


class Owned(NamedTuple):
    """Which coordinator has a slot, as last read."""

    coordinator_id: int
    epoch: int
    session_id: int


class SlotKeeper:
    """One coordinator's part. The owner of the session passes on its events (`on_event`), and runs `turn` after each
    that requires it, and again after a failed turn.

    Args:
        gained: called with a slot and the epoch under which this coordinator has it from now on.
        lost: called with a slot that it no longer has. Both are called in the order of events, and must not wait.
        is_busy: whether a group in a slot rebalances. Call `release_kept` from time to time while `kept` has slots.
    """

    def __init__(
        self,
        coordinator_id: int,
        gained: Callable[[int, int], None],
        lost: Callable[[int], None],
        slots: int = SLOT_COUNT,
        is_busy: Callable[[int], bool] = lambda slot: False,
    ) -> None:
        self.coordinator_id = coordinator_id
        self.live: dict[int, CoordinatorRegistration] = {}
        self.held: dict[int, int] = {}
        """The slots that this coordinator serves, with their epochs."""
        self.kept: set[int] = set()
        """The slots of another coordinator, which gets them when their groups have rebalanced."""
        self.is_registered = False
        self.unreadable: dict[str, Unreadable] = {}
        """Znodes that cannot be parsed, by path, for the log."""
        self._gained = gained
        self._lost = lost
        self._is_busy = is_busy
        self._slots = slots
        self._owners: dict[int, Owned] = {}
        self._used: dict[int, int] = {}
        """The newest epoch under which this coordinator ever had each slot: it and older ones are not used again."""
        self._preferred: dict[int, int | None] = {}
        self._is_made = self._is_doubted = False
        self._live_is_stale = True
        self._stale = set(range(slots))

    # --- state -------------------------------------------------------------------------------------------------------

    def owner(self, slot: int) -> int | None:
        """The coordinator that has a slot, as far as known, or None. It is this one only while it serves the
        slot."""
        found = self._owners.get(slot)
        if found is None or (found.coordinator_id == self.coordinator_id and slot not in self.held):
            return None
        return found.coordinator_id

    @property
    def is_settled(self) -> bool:
        """Whether all reported changes have been read."""
        return self.is_registered and not self._live_is_stale and not self._stale

    # --- events ------------------------------------------------------------------------------------------------------

    def on_event(self, event: Watched | SessionEvent) -> bool:
        """Handle an event of the session; returns whether a turn is due."""
        if isinstance(event, Watched):
            return self._watched(event.path)
        if event in (SessionEvent.DOUBTED, SessionEvent.EXPIRED):
            self._is_doubted = True
            self.drop_all()
        elif event is SessionEvent.CONNECTED:
            self._is_doubted = False
        if event is SessionEvent.EXPIRED:
            self.is_registered = False
            self._live_is_stale = True
            self._stale.update(range(self._slots))
        return event is SessionEvent.CONNECTED

    def _watched(self, path: str) -> bool:
        if path == COORDINATORS:
            self._live_is_stale = True
            return True
        parts = path.rsplit("/", 2)
        if len(parts) == 3 and parts[0] == SLOTS and parts[2] == "owner":
            self._stale.add(int(parts[1]))
            return True
        return False

    def drop_all(self) -> None:
        """Serve nothing from now on, until a turn takes slots under new epochs."""
        for slot in list(self.held):
            self._stale.add(slot)
            self._drop(slot)

    def release_kept(self) -> bool:
        """Release the slots that were kept until their groups had rebalanced; returns whether a turn is due."""
        at_rest = {slot for slot in self.kept if not self._is_busy(slot)}
        self._stale |= at_rest
        return bool(at_rest)

    def _drop(self, slot: int) -> None:
        if self.held.pop(slot, None) is not None:
            self._lost(slot)

    def fenced(self, slot: int, epoch: int) -> bool:
        """A write of the store under this epoch was refused; returns whether a turn is due."""
        if self.held.get(slot) != epoch:
            return False
        self._stale.add(slot)
        self._drop(slot)
        return True

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(self, address: CoordinatorRegistration) -> Plan[None]:
        """Do what is left to do: register, read the live coordinators and their slots, give up and take slots.

        Raises the error of an operation; the next turn begins where this one ended. An error about one slot is raised
        after all others are settled.
        """
        refused: dict[int, ZooKeeperError] = {}
        try:
            if not self._is_made:
                yield from make_slots(self._slots)
                self._is_made = True
            while self._live_is_stale or self._stale - refused.keys():
                if not self.is_registered:
                    yield from self._register(address)
                if self._live_is_stale:
                    yield from self._read_live()
                if not self._live_is_stale:
                    left = sorted(self._stale - refused.keys())
                    yield from side_by_side(self._settle_or_note(slot, refused) for slot in left)
        except NoNodeError:
            self._is_made = False
            raise
        for error in refused.values():
            raise error

    def _settle_or_note(self, slot: int, refused: dict[int, ZooKeeperError]) -> Plan[None]:
        try:
            yield from self._settle(slot)
        except (ConnectionLossError, SessionExpiredError):
            raise
        except ZooKeeperError as error:
            refused[slot] = error

    def _register(self, address: CoordinatorRegistration) -> Plan[None]:
        try:
            yield from create_ephemeral(coordinator_path(self.coordinator_id), address.encode())
        except NodeExistsError:
            return  # from this coordinator's former session: the watch on the list reports its deletion
        self.is_registered = True
        self._stale.update(range(self._slots))

    def _read_live(self) -> Plan[None]:
        self._live_is_stale = False
        try:
            names = yield from ask(GetChildren(COORDINATORS, watch=True))
            live: dict[int, CoordinatorRegistration] = {}
            for name in names:
                path = f"{COORDINATORS}/{name}"
                self.unreadable.pop(path, None)
                try:
                    data, stat = yield from ask(GetData(path))
                except NoNodeError:
                    continue
                found = _of_a_session(path, stat) or read_coordinator(name, data)
                if isinstance(found, Unreadable):
                    self.unreadable[path] = found
                else:
                    live[int(name)] = found
        except BaseException:
            self._live_is_stale = True
            raise
        if self.is_registered and str(self.coordinator_id) not in names:  # an operator has deleted it
            self.is_registered, self._live_is_stale = False, True
        self.live = live
        now = {slot: preferred(slot, live) for slot in range(self._slots)}
        self._stale.update(slot for slot in now if now[slot] != self._preferred.get(slot))
        self._preferred = now

    def _settle(self, slot: int) -> Plan[None]:
        """Read which coordinator has a slot, and take it or give it up as required."""
        # Only here, before anything is read: an event during a read marks the slot again.
        self._stale.discard(slot)
        try:
            yield from self._read_owner(slot)
            yield from self._act(slot)
        except (BadVersionError, NodeExistsError) as error:
            # Its data is stale. After a sync nothing older than now is read.
            self._stale.add(slot)
            yield from ask(Sync(error.path))
        except NoNodeError:
            # Stale too, or deleted. A read after a write, even a refused one, is not stale.
            self._stale.add(slot)
            yield from _make_slot(slot)
        except BaseException:
            self._stale.add(slot)
            raise

    def _read_owner(self, slot: int) -> Plan[None]:
        path = slot_owner_path(slot)
        while True:
            try:
                data, stat = yield from ask(GetData(path, watch=True))
                break
            except NoNodeError:
                if (yield from ask(Exists(path, watch=True))) is None:
                    self._owners.pop(slot, None)
                    self.unreadable.pop(path, None)
                    self._drop(slot)  # an operator has deleted it
                    return
        found = _of_a_session(path, stat) or read_slot_owner(slot, data)
        if isinstance(found, Unreadable):
            self.unreadable[path] = found
            found = SlotOwner(-1, -1)
        else:
            self.unreadable.pop(path, None)
        self._owners[slot] = Owned(*found, stat.ephemeral_owner)

    def _act(self, slot: int) -> Plan[None]:
        if not self.is_registered:
            return
        owned = self._owners.get(slot)
        should = self._preferred.get(slot) == self.coordinator_id
        self.kept.discard(slot)
        session_id = yield from ask(SessionId())
        if owned is None:
            if should:
                yield from self._take(slot, session_id)
        elif owned.session_id == NO_SESSION:
            if should:
                yield from self._clear(slot)
        elif owned.session_id != session_id:
            self._drop(slot)
        elif not should:
            if slot in self.held and self._is_busy(slot):
                self.kept.add(slot)
            else:
                yield from self._give_up(slot)
        elif self.held.get(slot) != owned.epoch:
            yield from self._reclaim(slot, owned)

    def _take(self, slot: int, session_id: int) -> Plan[None]:
        _, stat = yield from ask(GetData(slot_epoch_path(slot)))
        claim = SlotOwner(self.coordinator_id, stat.version + 1)
        creation = Create(slot_owner_path(slot), claim.encode(), ephemeral=True)
        self._stale.add(slot)  # must be read again, and watched, even if the answer is lost
        if claim.epoch <= self._used.get(slot, 0):
            yield from ask(self._raise_epoch(slot, stat.version))
            return
        yield from ask(Multi(creation, self._raise_epoch(slot, stat.version)))
        self._gain(slot, Owned(*claim, session_id))

    def _raise_epoch(self, slot: int, version: int) -> SetData:
        return SetData(slot_epoch_path(slot), b"%d" % self.coordinator_id, version)

    def _clear(self, slot: int) -> Plan[None]:
        """Delete an `owner` without a session, unless a coordinator has taken the slot meanwhile."""
        _, stat = yield from ask(GetData(slot_epoch_path(slot)))
        self._stale.add(slot)
        _, owner = yield from ask(GetData(slot_owner_path(slot)))
        if owner.ephemeral_owner == NO_SESSION:
            yield from ask(Multi(Check(slot_epoch_path(slot), stat.version), Delete(slot_owner_path(slot))))

    def _reclaim(self, slot: int, owned: Owned) -> Plan[None]:
        """`owner` is this session's, but the slot is not served: it was dropped in doubt, or the answer to the
        take-over was lost. An epoch under which it was served is not used again: writes under it may still arrive."""
        self._drop(slot)
        _, stat = yield from ask(GetData(slot_epoch_path(slot)))
        if owned.epoch <= self._used.get(slot, 0) or owned.epoch != stat.version:
            owned = owned._replace(epoch=stat.version + 1)
            data = SlotOwner(self.coordinator_id, owned.epoch).encode()
            self._stale.add(slot)
            yield from ask(Multi(self._raise_epoch(slot, stat.version), SetData(slot_owner_path(slot), data)))
        if owned.epoch > self._used.get(slot, 0):
            self._gain(slot, owned)

    def _gain(self, slot: int, owned: Owned) -> None:
        if self._is_doubted:  # the answer arrived just before, and is processed later
            self._stale.add(slot)
            return
        self._owners[slot] = owned
        self._used[slot] = self.held[slot] = owned.epoch
        self._gained(slot, owned.epoch)

    def _give_up(self, slot: int) -> Plan[None]:
        """Stop serving a slot, then let another coordinator take it."""
        self._drop(slot)
        _, stat = yield from ask(GetData(slot_epoch_path(slot)))
        yield from ask(Multi(Check(slot_epoch_path(slot), stat.version), Delete(slot_owner_path(slot))))
        self._owners.pop(slot, None)


def _of_a_session(path: str, stat: Stat) -> Unreadable | None:
    """An ephemeral znode ends with its session. A copy of it, made by another program, never does."""
    return Unreadable(path, "it belongs to no session") if stat.ephemeral_owner == NO_SESSION else None


def make_slots(slots: int) -> Plan[None]:
    """Create the persistent znodes that are missing."""
    for path in (COORDINATORS, SLOTS, GROUPS):
        yield from ensure_path(path)
    there = yield from ask(GetChildren(SLOTS))
    yield from side_by_side(_make_new_slot(slot) for slot in range(slots) if str(slot) not in there)


def _make_new_slot(slot: int) -> Plan[None]:
    with suppress(NodeExistsError):
        yield from ask(Multi(Create(f"{SLOTS}/{slot}"), Create(slot_epoch_path(slot)), Create(f"{GROUPS}/{slot}")))


def _make_slot(slot: int) -> Plan[None]:
    """Create the deleted znodes of a slot."""
    yield from ensure_path(slot_epoch_path(slot))
    yield from ensure_path(f"{GROUPS}/{slot}")


def agree_on_store(store: str) -> Plan[None]:
    """Make sure that all brokers keep groups in one place, which the first of them chooses. Otherwise two brokers could
    both coordinate a group, and each acknowledge commits that the other never learns of.

    Raises:
        ConfigError: the other brokers keep them elsewhere.
    """
    found = yield from agree_on(GROUP_STORE, store.encode())
    if found != store.encode():
        there = found.decode(errors="replace")
        raise ConfigError(
            f"{GROUP_STORE} in ZooKeeper says that this cluster keeps its groups in {there!r}: "
            f"group.coordinator.store={store} would not find them (to start without them: stop all brokers, delete it)"
        )


def agree_on(path: str, mine: bytes) -> Plan[bytes]:
    """The value that the first broker wrote to a znode for all brokers; `mine` if there was none."""
    while True:
        try:
            yield from ask(Create(path, mine))
            return mine
        except NodeExistsError:
            with suppress(NoNodeError):
                found, _ = yield from ask(GetData(path))
                return found or b""
            yield from ask(Sync(path))
