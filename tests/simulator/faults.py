"""What can happen in a simulated life: to members, to nodes, to the network, to logs and topics."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from tests.simulator.cluster import SimCluster
from tests.simulator.member import Habits, SimMember
from tests.simulator.network import BOTH_WAYS, TO_BROKER, TO_CLIENT
from tests.simulator.scenario import Scenario

SIMPLE = "simple"
"""The group to which consumers only commit."""


class Faults:
    """Causes one fault after the other, at random moments, until `is_over`."""

    def __init__(self, cluster: SimCluster, scenario: Scenario, rng: Random) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self.rng = rng
        self.is_over = False
        self.has_grown = False
        self._started = 0
        faults: list[tuple[int, Callable[[], None]]] = [
            (6, self._crash),
            (5, self._close),
            (6, self._start),
            (4, self._cut),
            (4, self._reset),
            (3, self._freeze),
            (4, self._stay_away),
            (4, self._kill_node),
            (2, self._move),
            (2, self._depose),
            (2, self._freeze_node),
            (1, self._fail_log),
            (1, self._set_clock),
            (2, self._grow),
            (2, self._rejoin),
        ]
        if scenario.moves_slots:
            faults.append((4, self._move_slot))
        if scenario.assigned:
            faults.append((5, self._darken))
        if scenario.lazy_log:
            faults += [(3, self._hold_syncs), (1, self._fail_syncs)]
        if scenario.records:
            faults.append(
                (5, {"retention": self._retain, "truncation": self._truncate}.get(scenario.records, self._remake))
            )
        self._faults = [fault for _, fault in faults]
        self._weights = [weight for weight, _ in faults]
        records = cluster.brokers.records
        records.gaps = Random(rng.getrandbits(32)) if scenario.gaps else None
        records.compression = Compression.GZIP if scenario.compression else Compression.NONE

    def strike(self) -> None:
        """Cause a fault now, and the next one in a while."""
        if not self.is_over:
            self.rng.choices(self._faults, self._weights)[0]()
            self.later(self.rng.choice((5, 300, 2_000, 6_000)), self.strike)

    def later(self, about_ms: int, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back after about this time."""
        self.cluster.clock.call_later(self.rng.randint(0, 2 * about_ms), callback, *arguments)

    # --- members -----------------------------------------------------------------------------------------------------

    def start_member(self, place: int) -> SimMember:
        """Start a consumer. Its place determines its group and, if it is static, which member it is."""
        self._started += 1
        scenario, rng = self.scenario, self.rng
        habits = Habits(
            commit=rng.choice(scenario.commits) if scenario.fetch else "sync",
            handle_ms=rng.choice((0, 20, 300) if scenario.fetch else (20, 300, 3_000, 12_000)),
            listener_ms=rng.choice((0, 2, 2, 200, 200, 200, 5_000, 12_000)),
            poll_ms=1_500,
            restless=scenario.restless,
        )
        if self.is_over:
            habits.be_quick()
        groups = self.cluster.groups
        return self.cluster.add_member(
            f"m{place}.{self._started}",
            fetch=scenario.fetch,
            habits=habits,
            topics=sorted({*scenario.topics, *self.cluster.brokers.topics.counts}),
            pattern="t.*" if scenario.pattern else None,
            group_id=groups[place % len(groups)],
            partition_assignment_strategy=rng.choice(scenario.assignors),
            group_instance_id=f"i{place}" if scenario.static else None,
            **scenario.member_settings,
        )

    def start_simple(self, place: int) -> None:
        """Start the consumer that assigns itself some of the partitions, once the previous one is gone.

        If a closing consumer crashes, two starts wait for its end: the first one replaces it.
        """
        there = [m for m in self.cluster.alive if m.by_hand is not None and self._place_of(m) == place]
        if there:
            if all(member.is_closing for member in there):
                self.later(1_000, self.start_simple, place)
            return
        self._started += 1
        scenario, rng = self.scenario, self.rng
        habits = Habits(
            commit=rng.choice(scenario.commits),
            handle_ms=rng.choice((0, 20, 300)),
            poll_ms=1_500,
            restless=scenario.restless,
        )
        if self.is_over:
            habits.be_quick()
        self.cluster.add_member(
            f"s{place}.{self._started}",
            habits=habits,
            by_hand=self.simple_share()[place :: scenario.simple],
            group_id=SIMPLE,
            **scenario.member_settings,
        )

    def simple_share(self) -> list[TopicPartition]:
        """The partitions that consumers assign themselves: those that existed first."""
        return [
            TopicPartition(t, number) for t, count in sorted(self.scenario.topics.items()) for number in range(count)
        ]

    def start_again(self, place: int) -> None:
        """Start a consumer, unless the faults are over."""
        if not self.is_over:
            self.start_member(place)

    def _pick(self) -> SimMember | None:
        alive = self.cluster.alive
        return self.rng.choice(alive) if alive else None

    def _place_of(self, member: SimMember) -> int:
        return int(member.name[1:].partition(".")[0])

    def _crash(self) -> None:
        member = self._pick()
        if member is not None:
            member.crash()
            if member.by_hand is not None:
                self.later(2_000, self.start_simple, self._place_of(member))
            elif self.rng.randrange(3):
                self.later(2_000, self.start_again, self._place_of(member))

    def _close(self) -> None:
        member = self._pick()
        if member is not None:
            member.close()
            if member.by_hand is not None:
                self.later(2_000, self.start_simple, self._place_of(member))

    def _start(self) -> None:
        subscribed = [member for member in self.cluster.alive if member.by_hand is None]
        if len(subscribed) < 6:
            taken = {self._place_of(member) for member in subscribed}
            self.start_member(next(place for place in range(100) if place not in taken))

    def _freeze(self) -> None:
        member = self._pick()
        if member is not None:
            member.freeze()
            self.later(7_000, member.thaw)

    def _stay_away(self) -> None:
        member = self._pick()
        if member is not None:
            member.stay_away(self.rng.randint(1_000, 2 * self.scenario.max_poll_interval_ms))

    def _rejoin(self) -> None:
        member = self._pick()
        if member is None or member.is_closing or not member.state.has_joined:
            return
        if member.core.subscription.group_managed:
            member.core.enforce_rebalance("why not")
            member.wakeup()

    # --- the network -------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        member = self._pick()
        if member is not None:
            nodes = self.cluster.brokers.node_ids
            chosen = nodes if self.rng.randrange(2) else [self.cluster.brokers.coordinator]
            self.cluster.cut(member, chosen, self.rng.choice((BOTH_WAYS, BOTH_WAYS, (TO_BROKER,), (TO_CLIENT,))))
            self.later(6_000, self.cluster.heal, member)

    def _reset(self) -> None:
        links = [link for link in self.cluster.network.links if link.is_open]
        if links:
            link = self.rng.choice(links)
            self.cluster.trace("network", f"resets {link!r}")
            self.cluster.network.reset(link)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _kill_node(self) -> None:
        brokers = self.cluster.brokers
        up = [node for node in brokers.node_ids if brokers.is_up(node)]
        if not up:
            return
        node = brokers.coordinator if brokers.coordinator in up and self.rng.randrange(3) else self.rng.choice(up)
        brokers.kill(node)
        if len(brokers.node_ids) > 1 and self.rng.randrange(2):
            self.later(1_000, brokers.take_over)
        self.later(3_000, brokers.start, node)

    def _move(self) -> None:
        self.cluster.brokers.move_coordinator(self.rng.choice(self.cluster.brokers.node_ids))

    def _move_slot(self) -> None:
        self.cluster.brokers.coordinators.move_slot(self.rng.choice((1, 500, 3_000)))

    def _depose(self) -> None:
        self.cluster.brokers.depose_coordinator(self.rng.choice((500, 3_000, 9_000)))

    def _freeze_node(self) -> None:
        brokers = self.cluster.brokers
        node = brokers.coordinator if self.rng.randrange(3) else self.rng.choice(brokers.node_ids)
        if brokers.is_up(node):
            brokers.freeze(node)
            self.later(self.rng.choice((1_000, 6_000)), brokers.thaw, node)

    def _set_clock(self) -> None:
        """The time of day jumps, forward or back; not in lives in which it determines when offsets expire."""
        if self.scenario.end != "expiry":
            coordinators = self.cluster.brokers.coordinators
            coordinators.wall_ms = self.rng.choice((-1, 1)) * self.rng.choice((1_000, 60_000, 3_600_000))
            self.cluster.trace("admin", f"sets the clock {coordinators.wall_ms} ms off")

    # --- the coordinators' logs --------------------------------------------------------------------------------------

    def _fail_log(self) -> None:
        coordinators = self.cluster.brokers.coordinators
        coordinators.fail_appends(True)
        self.later(1_000, coordinators.fail_appends, False)

    def _hold_syncs(self) -> None:
        coordinators = self.cluster.brokers.coordinators
        coordinators.hold_syncs(True)
        self.later(self.rng.choice((200, 2_000)), coordinators.hold_syncs, False)
        if not self.rng.randrange(3):
            self.later(500, self._fail_log)

    def _fail_syncs(self) -> None:
        """After that only a restart of the node helps."""
        brokers = self.cluster.brokers
        brokers.coordinators.fail_syncs()
        self.later(1_000, self._restart_node, brokers.coordinator)

    def _restart_node(self, node: int) -> None:
        if self.cluster.brokers.is_up(node):
            self.cluster.brokers.kill(node)
        self.cluster.brokers.start(node)

    # --- topics and records ------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        topics = self.cluster.brokers.topics
        if not topics.counts or max(topics.counts.values()) > 6:
            return
        self.has_grown = True
        name = self.rng.choice(sorted(topics.counts))
        if self.scenario.pattern and self.rng.randrange(2):
            name = f"t{len(topics.counts)}"
        self.cluster.brokers.grow(name, topics.counts.get(name, 0) + self.rng.randint(1, 2))
        self.cluster.trace("admin", f"{name} has {topics.counts[name]} partitions")

    def _darken(self) -> None:
        partition = self._some_partition()
        if partition is not None:
            self.cluster.brokers.darken(partition)
            self.later(6_000, self.cluster.brokers.lighten, partition)

    def _some_partition(self) -> TopicPartition | None:
        partitions = sorted(self.cluster.partitions())
        return self.rng.choice(partitions) if partitions else None

    def _retain(self) -> None:
        partition = self._some_partition()
        if partition is not None:
            log = self.cluster.brokers.topics.logs[partition]
            log.delete_before(self.rng.randint(log.log_start_offset, log.log_end_offset))
            self.cluster.trace("admin", f"{partition} begins at {log.log_start_offset}")

    def _truncate(self) -> None:
        partition = self._some_partition()
        if partition is not None:
            log = self.cluster.brokers.topics.logs[partition]
            self.cluster.brokers.truncate(
                partition, self.rng.randint(max(0, log.log_end_offset - 20), log.log_end_offset)
            )
            self.cluster.trace("admin", f"{partition} ends at {log.log_end_offset}")

    def _remake(self) -> None:
        topics = self.cluster.brokers.topics
        if topics.counts:
            name = self.rng.choice(sorted(topics.counts))
            count = topics.counts[name]
            self.cluster.trace("admin", f"{name} is deleted")
            self.cluster.brokers.delete_topic(name)
            self.later(2_000, self.make, name, count)

    def make(self, name: str, count: int) -> None:
        """Create a topic."""
        self.has_grown = True
        self.cluster.brokers.grow(name, count)
        self.cluster.trace("admin", f"{name} is made anew with {count} partitions")

    def produce(self) -> None:
        """Write some records, and schedule more."""
        if not self.is_over:
            partitions = sorted(self.cluster.partitions())
            for partition in self.rng.sample(partitions, min(3, len(partitions))):
                self.cluster.produce(*partition, self.rng.randint(1, 20))
            self.later(1_000, self.produce)
