"""The life of one or two groups, with faults, determined by a seed.

A `Scenario` is drawn first: topics, members, assignors, habits, what the network is like. Then faults strike at random
moments for `fault_ms` (`faults`). After that, in some lives, everything works except one member, and the others must
become stable anyway. Then everything is repaired, and the groups must become stable and balanced within a time limit,
without help, and commit all records.
"""

from __future__ import annotations

from random import Random
from typing import Any

from muster.coordinator.groups.effects import MemberFenced
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode, KafkaError
from muster.protocol.messages import DeleteGroupsRequest
from tests.simulator.checks import InvariantError
from tests.simulator.cluster import SimCluster
from tests.simulator.faults import SIMPLE, Faults
from tests.simulator.member import SimMember
from tests.simulator.network import BOTH_WAYS, TO_BROKER, TO_CLIENT
from tests.simulator.programs import CLOSE_MS
from tests.simulator.scenario import METADATA_MAX_AGE_MS, Scenario


class _Admin:
    """The connection of an operator."""

    is_closed = False
    identity = client_name = "admin"


class _Life(Faults):
    """The course of a life."""

    def run(self) -> None:
        """Live the whole life."""
        for place in range(self.scenario.members):
            self.later(1_000, self.start_again, place)
        for place in range(self.scenario.simple):
            self.later(1_000, self.start_simple, place)
        self.produce()
        self.later(4_000, self.strike)
        self.cluster.run(self.scenario.fault_ms)
        if self.scenario.calm:
            self._calm()
        self._mend()
        self._settle()
        if self.scenario.end:
            self._all_leave()
            self._settle()

    # --- one member misbehaves
    # -----------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """One member keeps misbehaving, the others are healthy: they must become stable in spite of it."""
        self.is_over = True
        self._mend_nodes()
        candidates = [member for member in self.cluster.alive if not member.is_closing]
        if not candidates:
            return
        victim = self.rng.choice(candidates)
        self.cluster.trace("life", f"everything is well but {victim.name}")
        for member in self.cluster.alive:
            if member is not victim:
                self._mend_member(member)
        self._misbehave(victim)
        others = [member for member in candidates if member is not victim]
        self.cluster.run(max(self.scenario.session_timeout_ms, METADATA_MAX_AGE_MS + 4_000))
        if not self.cluster.clock.run_until(lambda: self._are_stable(others), self.scenario.bound_ms):
            raise InvariantError(f"with {victim} misbehaving, the others are not stable: {others}")

    def _misbehave(self, victim: SimMember) -> None:
        match self.rng.choice(("freeze", "cut", "away", "no answers", "no questions")):
            case "freeze":
                victim.freeze()
            case "cut":
                self.cluster.cut(victim, None, BOTH_WAYS)
            case "no answers":
                self.cluster.cut(victim, None, (TO_CLIENT,))
            case "no questions":
                self.cluster.cut(victim, None, (TO_BROKER,))
            case _:
                victim.stay_away(10 * self.scenario.max_poll_interval_ms)

    def _are_stable(self, members: list[SimMember]) -> bool:
        staying = [m for m in members if m.is_alive and not m.is_closing and self._may_stay(m)]
        if any(not member.is_settled for member in staying):
            return False
        return all(
            len({member.generation_id for member in staying if member.group_id == group_id}) <= 1
            for group_id in self.cluster.groups
        )

    # --- everything works
    # -------------------------------------------------------------------------------------------------

    def _mend(self) -> None:
        cluster = self.cluster
        self.is_over = True
        cluster.trace("life", "everything is mended")
        self._mend_nodes()
        cluster.heal()
        for member in cluster.alive:
            self._mend_member(member)
        for group_id in cluster.groups:
            staying = [member for member in cluster.of_group(group_id) if not member.is_closing]
            for member in staying[self.scenario.group_max_size :]:
                member.close()

    def _mend_nodes(self) -> None:
        cluster = self.cluster
        brokers, coordinators = cluster.brokers, cluster.brokers.coordinators
        if any(log.failed is not None for log in coordinators.logs.values()):
            self._restart_node(brokers.coordinator)
        coordinators.fail_appends(False)
        coordinators.hold_syncs(False)
        for stale in coordinators.stale:
            coordinators.find_out(stale)
        for node in brokers.node_ids:
            brokers.thaw(node)
            brokers.start(node)
        brokers.take_over()
        coordinators.move_back()
        cluster.network.slow = 0
        for partition in brokers.dark:
            brokers.lighten(partition)
        for name, count in self.scenario.topics.items():
            if name not in brokers.topics.counts:
                self.make(name, count)

    def _mend_member(self, member: SimMember) -> None:
        member.thaw()
        member.come_back()
        member.habits.be_quick()
        self.cluster.heal(member)

    def _may_stay(self, member: SimMember) -> bool:
        """Whether only a rejoin of the whole group would let it in."""
        refused = (ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return not any(isinstance(error, KafkaError) and error.code in refused for error in member.errors)

    def _settle(self) -> None:
        cluster = self.cluster
        # A member that was silent for too long may expire only now; metadata may be this old, an answer this late.
        cluster.run(max(self.scenario.session_timeout_ms, METADATA_MAX_AGE_MS + 4_000))
        # For each partition share that is read by hand, one process is alive, or about to start when the previous one
        # has ended.
        cluster.run_until(lambda: not any(member.is_closing for member in cluster.of_group(SIMPLE)), 2 * CLOSE_MS)
        cluster.run(2_000)
        for number, group_id in enumerate(cluster.groups):
            if not any(not member.is_closing for member in cluster.of_group(group_id)):
                self.start_member(50 * len(cluster.groups) + number)
        has_settled = cluster.clock.run_until(cluster.has_settled, self.scenario.bound_ms)
        if self._has_too_small_a_share() if has_settled else self.needs_operator():
            cluster.operator_helped = True
            for member in cluster.alive:
                if member.core.subscription.group_managed:
                    member.core.enforce_rebalance("an operator asks for it")
                    member.wakeup()
        cluster.settle(self.scenario.bound_ms, quiet_ms=8_000)
        self._check_all_handled()

    def needs_operator(self) -> bool:
        """Whether there may be something that a group cannot discover on its own, in muster or in Kafka.

        A static member that comes back keeps its predecessor's assignment, without a rebalance (KIP-345). If it leads
        (KIP-814), it does not know that partitions were added before it came; and if its predecessor had just given up
        partitions under the cooperative protocol, no member asks for the second rebalance that gives them an owner.
        Besides, a restarted coordinator knows only the chosen assignor of each member: newcomers that share another
        assignor with all of them are refused until the members rejoin. And one that subscribes to more than its
        predecessor gets no more than that one had: see `_has_too_small_a_share` for when others have the rest. A
        coordinator that assigns handles all of this itself.
        """
        scenario = self.scenario
        if scenario.assigned:
            return False
        is_cooperative = scenario.assignors == (("cooperative-sticky",),)
        changes = self.has_grown or is_cooperative or scenario.restless > 0
        return (scenario.static and changes) or len(scenario.assignors) > 1

    def _has_too_small_a_share(self) -> bool:
        """Whether a group is stable, and out of balance because a static member has another one's assignment.

        A member subscribes to fewer topics, gets partitions of only these, and dies. The one that replaces it
        subscribes to all of them, and gets the same assignment without a rebalance, if the protocol stays the same: the
        coordinator does not compare subscriptions (KIP-345). Others have all the rest, so nothing is missing. The same
        can happen with a single process: while it was away, a topic was created that its pattern matches, and the
        assignment was computed from its former subscription.
        """
        replaced = {event.group_id for event in self.cluster.brokers.coordinators.events if type(event) is MemberFenced}
        differ = not self.scenario.assigned and (self.scenario.restless > 0 or self.has_grown)
        return differ and not all(map(self.cluster.is_balanced, replaced))

    def _check_all_handled(self) -> None:
        cluster = self.cluster
        cluster.brokers.records.gaps = None
        # A consumer commits again with the next record if its last commit failed. A consumer without a group sends no
        # heartbeats: it learns that the coordinator has moved only by its next commit, which fails if it has one try.
        # So one more record is needed.
        for _ in range(2 if self.scenario.simple else 1):
            for partition in sorted(cluster.partitions()):
                cluster.produce(*partition)
            cluster.run(2_000)
        shares = {group_id: sorted(cluster.partitions()) for group_id in cluster.groups}
        if self.scenario.simple:
            shares[SIMPLE] = self.simple_share()
        for group_id, share in shares.items():
            if not cluster.clock.run_until(lambda: cluster.lag(group_id, share) == 0, 20_000):  # noqa: B023
                behind = {str(p): (cluster.committed(p, group_id), cluster.end_offset(p)) for p in share}
                raise InvariantError(f"{group_id} has not committed all records (committed, end): {behind}")

    # --- the end -----------------------------------------------------------------------------------------------------

    def _all_leave(self) -> None:
        cluster = self.cluster
        cluster.trace("life", f"all leave: {self.scenario.end}")
        for member in cluster.alive:
            member.close()
        cluster.run_until(lambda: not cluster.alive, 30_000)
        cluster.run(self.scenario.session_timeout_ms + 2_000)  # static members are waited for
        if self.rng.randrange(2):
            self._restart_node(cluster.brokers.coordinator)
        if self.scenario.end == "expiry":
            cluster.run(self.rng.choice((30_000, 90_000)))
        elif self.scenario.end == "delete":
            for group_id in cluster.groups:
                self._delete(group_id)
        for place in range(min(self.scenario.members, self.scenario.group_max_size)):
            self.start_member(place)
        for place in range(self.scenario.simple):
            self.start_simple(place)
        self._mend()

    def _delete(self, group_id: str) -> None:
        brokers = self.cluster.brokers
        self.cluster.trace("admin", f"deletes {group_id}")
        self.cluster.invariants.durable.group_may_vanish(group_id)
        answers: list[Any] = []
        request = DeleteGroupsRequest(groups_names=[group_id])
        self.cluster.run_until(lambda: brokers.coordinators.is_well, 5_000)
        brokers.coordinators.submit(brokers.coordinator, request, Client("admin", "", 2), _Admin(), answers.append)
        if not self.cluster.clock.run_until(lambda: bool(answers), 3_000):
            raise InvariantError("nobody answers the operator")
        if answers[0].results[0].error_code:
            raise InvariantError(f"an empty group could not be deleted: {answers[0]!r}")


def simulate(seed: int, scenario: Scenario | None = None) -> SimCluster:
    """Lead groups through the life that follows from a seed; returns the cluster at the end.

    Raises:
        InvariantError: something happened that must never happen; the message ends with what led to it.
    """
    drawn = scenario or Scenario.draw(Random(f"scenario {seed}"))
    cluster = SimCluster(
        seed,
        topics=drawn.topics,
        groups=["group", "other"][: drawn.groups],
        simple_groups=[SIMPLE] if drawn.simple else [],
        nodes=drawn.nodes,
        wire=drawn.wire,
        versions=drawn.versions,
        lazy_log=drawn.lazy_log,
        slow=drawn.slow,
        skew_ms=drawn.skew_ms,
        limits=drawn.limits,
        group_config=drawn.group_config,
    )
    cluster.brokers.coordinators.load_ms = drawn.load_ms
    try:
        _Life(cluster, drawn, Random(f"life {seed}")).run()
    except Exception as error:
        raise InvariantError(f"seed {seed}: {error}\n{drawn}\n{cluster.story}\nseed {seed}: {error!r}") from error
    return cluster
