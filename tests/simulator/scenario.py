"""The parameters of a simulated life: drawn from a seed, printed with a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from muster.coordinator.groups.config import INT32_MAX, GroupConfig
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.simulator.checks import Limits

METADATA_MAX_AGE_MS = 8_000
_EITHER = ("range", "cooperative-sticky")
_ASSIGNORS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("range",),),
    (("roundrobin",),),
    (("sticky",),),
    (("cooperative-sticky",),),
    (("cooperative-sticky",),),
    (_EITHER,),
    # The two steps of a live migration to the cooperative protocol (KIP-429).
    (("range",), _EITHER),
    (_EITHER, ("cooperative-sticky",)),
)
_OLDEST_VERSIONS: dict[type[Request[Any]], int] = {
    m.HeartbeatRequest: 3,
    m.JoinGroupRequest: 5,
    m.LeaveGroupRequest: 1,
    m.OffsetCommitRequest: 7,
    m.OffsetFetchRequest: 2,
    m.SyncGroupRequest: 3,
}
_COMMITS = ("auto", "sync", "async", "middle", "overlap")


@dataclass(slots=True)
class Scenario:
    """The parameters of a life. Times in milliseconds; each member has one of the lists of `assignors`.

    `records` is what happens to the logs besides growing: "" (nothing), "retention", "truncation", "deletion" (of a
    topic, which is then created again). `end` is what happens when everything works at last: "" (nothing), "expiry"
    (all members leave for longer than offsets are kept), "delete" (they leave, and the group is deleted), "restart"
    (they leave, and come back); then new members come, and have to settle as well. `simple` is how many consumers
    assign the partitions by hand, and only commit to a group (with generation -1). `assigned`: by the coordinator, in
    all groups.
    """

    topics: dict[str, int]
    groups: int
    members: int
    nodes: int
    shards: int
    assignors: tuple[tuple[str, ...], ...]
    static: bool
    pattern: bool
    fetch: bool
    commits: tuple[str, ...]
    restless: int
    auto_offset_reset: str
    wire: bool
    lazy_log: bool
    slow: int
    load_ms: int
    skew_ms: int
    initial_delay_ms: int
    session_timeout_ms: int
    max_poll_interval_ms: int
    fault_ms: int
    calm: bool
    group_max_size: int
    offsets_retention_minutes: int
    records: str
    gaps: bool
    compression: bool
    end: str
    simple: int = 0
    assigned: bool = False
    versions: dict[type[Request[Any]], int] = field(default_factory=dict)
    moves_slots: bool = False

    @classmethod
    def draw(cls, rng: Random) -> Scenario:
        """Any scenario."""

        def one_in(count: int) -> bool:
            return rng.randrange(count) == 0

        wire = one_in(8)
        versions = {}
        if wire and one_in(2):
            versions = {kind: rng.randint(oldest, kind.MAX_VERSION) for kind, oldest in _OLDEST_VERSIONS.items()}
        members = rng.randint(1, 5)
        fetch = not one_in(3)
        end = rng.choice(("expiry", "delete", "restart")) if one_in(6) else ""
        return cls(
            topics={f"t{number}": rng.randint(1, 4) for number in range(rng.randint(1, 3))},
            groups=2 if one_in(6) else 1,
            members=members,
            nodes=rng.randint(1, 3),
            shards=rng.choice((1, 1, 3)),
            assignors=rng.choice(_ASSIGNORS),
            static=one_in(3),
            pattern=one_in(4),
            fetch=fetch,
            commits=rng.choice((_COMMITS, ("auto",), ("overlap", "async"))),
            restless=rng.choice((0, 0, 8, 30)) if fetch else 0,
            auto_offset_reset="latest" if fetch and one_in(6) else "earliest",
            wire=wire,
            lazy_log=one_in(3),
            slow=rng.choice((0, 5, 20)),
            load_ms=rng.choice((0, 0, 2_000)),
            skew_ms=rng.choice((0, 0, 3_000)),
            initial_delay_ms=rng.choice((0, 500, 3_000)),
            session_timeout_ms=rng.choice((6_000, 10_000)),
            max_poll_interval_ms=rng.choice((8_000, 15_000)),
            fault_ms=rng.randrange(15_000, 45_000),
            calm=one_in(4),
            group_max_size=max(1, members - 1) if one_in(8) else INT32_MAX,
            offsets_retention_minutes=1 if end == "expiry" else 10_080,
            records=rng.choice(("retention", "retention", "truncation", "deletion")) if one_in(3) else "",
            gaps=one_in(4),
            compression=one_in(6),
            end=end,
            # Offsets of a group without members expire even while they are used: then nothing could be guaranteed.
            simple=rng.randint(1, 2) if one_in(5) and end != "expiry" else 0,
            versions=versions,
            moves_slots=one_in(4),
        )

    @classmethod
    def draw_assigned(cls, rng: Random) -> Scenario:
        """Any scenario in which the coordinator assigns."""
        scenario = cls.draw(rng)
        scenario.assigned = True
        scenario.assignors = rng.choice(((("range",),), (("roundrobin",),), (_EITHER,)))
        return scenario

    @property
    def bound_ms(self) -> int:
        """How long the group may take to settle once everything works.

        The longest case: a member's join hangs on a dead connection until its own timeout; then the rebalance that its
        return starts waits its full time for another member that has just died.
        """
        return 2 * (self.max_poll_interval_ms + 5_000) + self.session_timeout_ms + 10_000

    @property
    def group_config(self) -> GroupConfig:
        """The coordinator's settings."""
        return GroupConfig(
            group_initial_rebalance_delay_ms=self.initial_delay_ms,
            group_max_size=self.group_max_size,
            server_assigned_groups=".*" if self.assigned else None,
            offsets_topic_num_partitions=self.shards,
            offsets_retention_minutes=self.offsets_retention_minutes,
            offsets_retention_check_interval_ms=5_000,
        )

    @property
    def limits(self) -> Limits:
        """The same settings for the checks."""
        return Limits(
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            offsets_retention_ms=self.offsets_retention_minutes * 60_000,
            group_max_size=self.group_max_size,
            latest=self.auto_offset_reset == "latest",
        )

    @property
    def member_settings(self) -> dict[str, Any]:
        """The settings that all members have."""
        return {
            "session_timeout_ms": self.session_timeout_ms,
            "heartbeat_interval_ms": 2_000,
            "max_poll_interval_ms": self.max_poll_interval_ms,
            "request_timeout_ms": 7_000,
            "fetch_max_wait_ms": 2_000,
            "auto_commit_interval_ms": 2_000,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "auto_offset_reset": self.auto_offset_reset,
        }
