"""The simulated cluster's group coordinator: the broker's own `CoordinatorRuntime`, over logs that can misbehave.

One node coordinates all groups. All nodes share its logs, as replicas would, so that another can take over. What can
happen to it: it dies, with everything in its logs that was not durable; it hands over properly; it takes a while to
load its logs; it is suspended; it is deposed without noticing it, and keeps answering from its memory, at the same time
as its successor. What can happen to its logs: appends fail, syncs hang or fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import GroupEvent
from muster.coordinator.groups.error_responses import error_response
from muster.coordinator.runtime import Client, CoordinatorRuntime, group_partition
from muster.coordinator.shards.log_store import ShardLogStore
from muster.coordinator.shards.shards import ShardHost
from muster.errors import ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.simulator.checks import Invariants
from tests.simulator.checks.base import Connection
from tests.simulator.checks.durability import Committed
from tests.simulator.clock import Timer, VirtualClock
from tests.simulator.log import LogAppend, LogRead, SimLog
from tests.simulator.records import SimTopics

LOOK_MS = 1_000
"""How often the checks examine the groups."""


class _Checker:
    """The connection of the checks."""

    is_closed = False
    identity = client_name = "checker"


class LogView:
    """One coordinator's access to a log. Once it is deposed, its appends are dropped."""

    def __init__(self, log: SimLog) -> None:
        self._log = log
        self._deposed_at: tuple[int, int] | None = None
        self._lost = 0
        self._refuses = False

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset if self._deposed_at is None else self._deposed_at[1] + self._lost

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark if self._deposed_at is None else self._deposed_at[0]

    @property
    def failed(self) -> Exception | None:
        return self._log.failed

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "") -> LogAppend:
        """See `SimLog.append`. A deposed coordinator gets an error, or no response at all."""
        if self._deposed_at is None:
            return self._log.append(batches, now=now, leader_epoch=leader_epoch)
        if self._refuses:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "another node leads this log")
        self._lost += 1
        return LogAppend(self.log_end_offset - 1)

    def read(self, offset: int, max_bytes: int) -> LogRead:
        """See `SimLog.read`."""
        return self._log.read(offset, max_bytes)

    def depose(self, *, refuses: bool) -> None:
        """From now on another node leads the log."""
        self._deposed_at = self._log.high_watermark, self._log.log_end_offset
        self._refuses = refuses


class Coordinator:
    """One node that coordinates, or believes that it does."""

    def __init__(self, node_id: int, epoch: int, skew_ms: int) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.skew_ms = skew_ms
        self.is_loading = True
        self.is_frozen = False
        self.is_over = False
        self.views: list[LogView] = []
        self.runtime: CoordinatorRuntime
        self.alarm: Timer | None = None
        self._deferred: list[Callable[[], None]] = []

    def when_it_runs(self, callback: Callable[[], None]) -> None:
        """Call back now, or once it is no longer suspended; never after its end."""
        if self.is_frozen:
            self._deferred.append(callback)
        elif not self.is_over:
            callback()

    def thaw(self) -> None:
        """It resumes."""
        self.is_frozen = False
        deferred, self._deferred = self._deferred, []
        for callback in deferred:
            self.when_it_runs(callback)


class SimCoordinators:
    """The groups' coordinator, and deposed coordinators that do not know it yet."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        topics: SimTopics,
        config: GroupConfig,
        groups: list[str],
        *,
        lazy_log: bool,
        skew_ms: int,
        trace: Callable[[str, str], None],
    ) -> None:
        self.logs: dict[int, SimLog] = {}
        self.current: Coordinator | None = None
        self.events: list[GroupEvent] = []
        self.on_event: Callable[[GroupEvent], None] = lambda _event: None
        """Called with each event."""
        self.invariants: Invariants
        self.load_ms = 0
        """How long a coordinator that takes over needs at most before it loads its logs, and for each piece."""
        self.wall_ms = 0
        """How much the time of day is off."""
        self._clock = clock
        self._rng = rng
        self._topics = topics
        self._config = config
        self._groups = groups
        self._lazy_log = lazy_log
        self._skew_ms = skew_ms
        self._trace = trace
        self._stale: list[Coordinator] = []
        self._epoch = 0
        """How often a slot, or all of them, changed hands."""
        self._moved: set[int] = set()
        """Slots that the coordinator has lost, and will get again."""
        self._member_ids = 0

    # --- the coordinating node
    # --------------------------------------------------------------------------------------------

    def at(self, node_id: int) -> Coordinator | None:
        """The coordinator on a node, if the node believes that it is one."""
        if self.current is not None and self.current.node_id == node_id:
            return self.current
        return next((stale for stale in self._stale if stale.node_id == node_id), None)

    def begin(self, node_id: int) -> None:
        """A node loads the logs, and coordinates from now on."""
        skew = self._rng.choice((0, self._skew_ms, -self._skew_ms)) if self._skew_ms else 0
        coordinator = self.current = Coordinator(node_id, self._next_epoch(), skew)
        self._moved.clear()
        coordinator.runtime = CoordinatorRuntime(
            self._config,
            ShardLogStore(lambda partition: self._open_log(coordinator, partition)),
            ShardHost(
                clock=lambda: self._clock.now + skew,
                on_event=lambda event: self._on_event(coordinator, event),
                schedule_flush=lambda: self._schedule_flush(coordinator),
                later=partial(self._later, coordinator) if self.load_ms else None,
                wall_clock=lambda: self._clock.now + skew + self.wall_ms,
            ),
            topics=self._topics,
            new_member_id=self._new_member_id,
        )
        for log in self.logs.values():
            if log.failed is not None:
                log.reopen(self._rng)
        self._trace(f"node {node_id}", "coordinates")
        if self.load_ms and self._rng.randrange(2):
            self._clock.call_later(self._rng.randrange(self.load_ms), self._load, coordinator)
        else:
            self._load(coordinator)

    def _load(self, coordinator: Coordinator) -> None:
        if coordinator is not self.current or coordinator.is_over:
            return
        for log in self.logs.values():
            log.sync()
        coordinator.is_loading = False
        self.invariants.coordinator = coordinator
        coordinator.runtime.load_all(sorted(self.logs), coordinator.epoch)
        self._when_loaded(coordinator)

    def _later(self, coordinator: Coordinator, callback: Callable[[], None]) -> None:
        def load_and_arm() -> None:
            # As the broker does. When a log is loaded again after a failure, its members may all be dead: then there is
            # no request that would set the alarm by which they expire.
            callback()
            self._arm(coordinator)

        self._clock.call_later(self._rng.randrange(self.load_ms // 4), coordinator.when_it_runs, load_and_arm)

    def _when_loaded(self, coordinator: Coordinator) -> None:
        if coordinator.runtime.is_loading:
            self._clock.call_later(1, coordinator.when_it_runs, lambda: self._when_loaded(coordinator))
        elif coordinator is self.current:
            for group_id in self._groups:
                self._check_loaded(coordinator, group_id)
            self.is_well_again()
            self._arm(coordinator)

    def _check_loaded(self, coordinator: Coordinator, group_id: str) -> None:
        """Ask the new coordinator what it knows about a group, and compare with what was acknowledged."""

        def compare(answer: Any) -> None:
            [group] = answer.groups
            if coordinator is self.current and not group.error_code:
                reported = {
                    TopicPartition(topic.name, each.partition_index): Committed(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
                    for topic in group.topics
                    for each in topic.partitions
                }
                self.invariants.loaded(group_id, reported)

        groups = [m.OffsetFetchRequestGroup(group_id, topics=None)]
        coordinator.runtime.submit(m.OffsetFetchRequest(groups=groups), Client("checker", "", 9), compare)

    def die(self) -> None:
        """It dies, with everything in its logs that was not durable."""
        coordinator, self.current = self.current, None
        if coordinator is not None:
            self._end(coordinator)
            for log in self.logs.values():
                log.crash(self._rng)
                log.failed = None

    def resign(self) -> None:
        """It hands over properly, as when leadership is rebalanced."""
        coordinator = self.current
        if coordinator is not None:
            self._trace(f"node {coordinator.node_id}", "resigns")
            self.current = None
            coordinator.runtime.close()
            self._end(coordinator)
            for log in self.logs.values():
                log.held = False
                log.sync()

    def _end(self, coordinator: Coordinator) -> None:
        coordinator.is_over = True
        if coordinator.alarm is not None:
            coordinator.alarm.cancel()
        self.invariants.died()

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def move_slot(self, for_ms: int) -> None:
        """One slot moves away from the coordinator, and returns a while later."""
        coordinator = self.current
        slots = sorted(self.logs.keys() - self._moved)
        if coordinator is None or coordinator.is_loading or coordinator.is_frozen or not slots:
            return
        slot = self._rng.choice(slots)
        self._trace(f"node {coordinator.node_id}", f"loses slot {slot}")
        self._moved.add(slot)
        self._is_held_up()
        coordinator.runtime.unload(slot, self._next_epoch())
        self._arm(coordinator)
        self._clock.call_later(for_ms, coordinator.when_it_runs, lambda: self._move_back(coordinator, slot))

    def move_back(self) -> None:
        """The coordinator gets all slots back."""
        if self.current is not None:
            for slot in sorted(self._moved):
                self._move_back(self.current, slot)

    def _move_back(self, coordinator: Coordinator, slot: int) -> None:
        if coordinator is self.current and slot in self._moved:
            self._trace(f"node {coordinator.node_id}", f"has slot {slot} again")
            self._moved.discard(slot)
            coordinator.runtime.load(slot, self._next_epoch())
            self._when_loaded(coordinator)

    def depose(self, for_ms: int, *, refuses: bool | None = None) -> None:
        """Another coordinator takes over; this one does not notice it for a while, and keeps answering. Its logs refuse
        its writes, or accept them without ever making them durable: at random, if `refuses` is not given."""
        coordinator, self.current = self.current, None
        if coordinator is None:
            return
        self._trace(f"node {coordinator.node_id}", "is deposed, and does not know")
        refuses = bool(self._rng.randrange(2)) if refuses is None else refuses
        for view in coordinator.views:
            view.depose(refuses=refuses)
        self.invariants.died()
        self._stale.append(coordinator)
        for log in self.logs.values():
            log.crash(self._rng)
        self._clock.call_later(for_ms, self.find_out, coordinator)

    def find_out(self, coordinator: Coordinator) -> None:
        """A deposed coordinator learns that it is deposed."""
        if coordinator in self._stale:
            self._trace(f"node {coordinator.node_id}", "learns that it was deposed")
            self._stale.remove(coordinator)
            coordinator.is_frozen = False
            coordinator.runtime.close()
            coordinator.is_over = True

    def forget(self, node_id: int) -> None:
        """A node died, and with it a deposed coordinator on it."""
        for stale in [stale for stale in self._stale if stale.node_id == node_id]:
            stale.is_over = True
            self._stale.remove(stale)

    @property
    def stale(self) -> list[Coordinator]:
        """The deposed coordinators that do not know it."""
        return list(self._stale)

    # --- logs and time -----------------------------------------------------------------------------------------------

    def _open_log(self, coordinator: Coordinator, partition: int) -> LogView:
        if coordinator is self.current:
            count = self._config.offsets_topic_num_partitions
            self.invariants.reloaded(group for group in self._groups if group_partition(group, count) == partition)
        view = LogView(self.logs.setdefault(partition, SimLog(lazy=self._lazy_log)))
        if coordinator is not self.current:
            view.depose(refuses=True)
        coordinator.views.append(view)
        return view

    def is_well_again(self) -> None:
        """Nothing delays the coordinator from now on, except perhaps its log."""
        self.invariants.well_since = self._clock.now
        is_held = bool(self._moved) or any(log.fails or log.held for log in self.logs.values())
        self.invariants.well_until = self._clock.now if is_held else None

    def _is_held_up(self) -> None:
        if self.invariants.well_until is None:
            self.invariants.well_until = self._clock.now

    @property
    def is_well(self) -> bool:
        """Whether nothing delays the coordinator."""
        current = self.current
        if current is None or current.is_loading or current.is_frozen or current.runtime.is_loading or self._moved:
            return False
        return not any(log.fails or log.held or log.failed is not None for log in self.logs.values())

    def fail_appends(self, failing: bool) -> None:
        """Make every append to the logs fail, or work again."""
        self._trace("log", "fails" if failing else "works again")
        for log in self.logs.values():
            log.fails = failing
        (self._is_held_up if failing else self.is_well_again)()

    def hold_syncs(self, held: bool) -> None:
        """Make every sync hang, or complete."""
        self._trace("log", "syncs hang" if held else "syncs go on")
        for log in self.logs.values():
            log.held = held
        (self._is_held_up if held else self.is_well_again)()
        if not held and self.current is not None:
            self._make_durable(self.current)

    def fail_syncs(self) -> None:
        """A sync fails: the logs accept nothing until the node is restarted."""
        self._trace("log", "a sync fails")
        for log in self.logs.values():
            log.fail_sync()
        current = self.current
        if current is not None:
            current.when_it_runs(current.runtime.release_durable)

    def _new_member_id(self, prefix: str) -> str:
        self._member_ids += 1
        return f"{prefix}-{self._member_ids}"

    def _on_event(self, coordinator: Coordinator, event: GroupEvent) -> None:
        if coordinator is self.current:
            self.events.append(event)
            self.on_event(event)
        self._trace("group" if coordinator is self.current else f"node {coordinator.node_id}", repr(event))
        self.invariants.on_event(coordinator, event)

    def _schedule_flush(self, coordinator: Coordinator) -> None:
        flush = coordinator.when_it_runs
        self._clock.call_later(self._rng.randrange(3), flush, lambda: self._flush(coordinator))

    def _flush(self, coordinator: Coordinator) -> None:
        coordinator.runtime.flush()
        if self._lazy_log:
            sync = coordinator.when_it_runs
            self._clock.call_later(self._rng.randrange(1, 40), sync, lambda: self._make_durable(coordinator))
        self._arm(coordinator)

    def _make_durable(self, coordinator: Coordinator) -> None:
        if coordinator is self.current:
            for log in self.logs.values():
                log.sync()
            coordinator.runtime.release_durable()

    def _arm(self, coordinator: Coordinator) -> None:
        due = coordinator.runtime.next_deadline()
        due = None if due is None else due - coordinator.skew_ms
        alarm = coordinator.alarm
        if alarm is not None:
            if due is not None and not alarm.cancelled and alarm.when == due:
                return
            alarm.cancel()
        ring = coordinator.when_it_runs
        coordinator.alarm = None
        if due is not None:
            due = max(due, self._clock.now + 1)
            coordinator.alarm = self._clock.call_at(due, ring, lambda: self._on_deadline(coordinator))

    def _on_deadline(self, coordinator: Coordinator) -> None:
        coordinator.alarm = None
        coordinator.runtime.on_deadlines(self._clock.now + coordinator.skew_ms)
        self._arm(coordinator)

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(
        self, node_id: int, request: Any, client: Client, connection: Connection, reply: Callable[[Any], None]
    ) -> None:
        """Pass a request to the coordinator of a node, if it believes that it is one."""
        coordinator = self.at(node_id)
        if coordinator is None:
            reply(_not_coordinator(request))
            return
        if isinstance(request, m.OffsetCommitRequest):
            self._trace(f"node {node_id}", f"is asked by {connection.client_name} to {_commit_text(request)}")
        is_loading = coordinator.runtime.is_loading
        ticket = self.invariants.ticket(
            request, client.api_version, connection, coordinator, reply, is_loading=is_loading
        )
        coordinator.runtime.submit(request, client, ticket)
        if not coordinator.is_over:
            self._arm(coordinator)

    def describe(self) -> list[m.DescribedGroup]:
        """The groups as the coordinator describes them, none if there is no coordinator, or it is not healthy."""
        coordinator = self.current
        if coordinator is None or coordinator.is_loading or coordinator.is_frozen:
            return []
        answers: list[Any] = []
        ticket = self.invariants.ticket(
            m.DescribeGroupsRequest(groups=list(self._groups)), 5, _Checker(), coordinator, answers.append
        )
        coordinator.runtime.submit(m.DescribeGroupsRequest(groups=list(self._groups)), Client("checker", "", 5), ticket)
        return answers[0].groups if answers else []

    def look(self) -> None:
        """Let the checks examine the groups."""
        if self.is_well:
            self.invariants.look_at(self.describe())

    def topics_changed(self, names: Iterable[str]) -> None:
        """Topics have other partitions or leaders; a suspended coordinator learns of it later."""
        coordinator = self.current
        if coordinator is not None and not coordinator.is_loading:
            coordinator.when_it_runs(lambda: self._tell(coordinator, list(names)))

    def _tell(self, coordinator: Coordinator, names: list[str]) -> None:
        coordinator.runtime.topics_changed(names)
        self._arm(coordinator)

    def topic_deleted(self, topic: str) -> None:
        """A topic was deleted."""
        if self.current is not None and not self.current.is_loading:
            for _ in self.current.runtime.topics_deleted([topic]):
                pass
            self._arm(self.current)


def _commit_text(request: m.OffsetCommitRequest) -> str:
    offsets = [
        f"{topic.name}-{each.partition_index}: {each.committed_offset}"
        for topic in request.topics
        for each in topic.partitions
    ]
    return f"commit {', '.join(offsets)} in generation {request.generation_id_or_member_epoch}"


def _not_coordinator(request: Any) -> Any:
    if isinstance(request, m.OffsetFetchRequest):
        error = ErrorCode.NOT_COORDINATOR
        if request.groups:
            return m.OffsetFetchResponse(
                groups=[m.OffsetFetchResponseGroup(g.group_id, [], error) for g in request.groups]
            )
        return m.OffsetFetchResponse(error_code=error)
    return error_response(request, ErrorCode.NOT_COORDINATOR)
