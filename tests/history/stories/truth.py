"""What the doctor should say about a story, derived only from the acts: what was done, to which members, when.

`deeds` has the causes, `patterns_of` and `expectation` the patterns and the findings. No rule of `muster.history` is
used or known here. Only two things are read from the coordinator's own log: how long a rebalance was held up, and which
members left and rejoined on their own when their topic was deleted. What Kafka's coordinator does for each act follows
from its protocol: a member that closes leaves, one that is killed or frozen expires after its session timeout, one that
does not poll for max.poll.interval.ms leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from tests.history.stories.witness import came_and_went, longest_rebalance_ms

Act: TypeAlias = Mapping[str, Any]
Kept: TypeAlias = Mapping[str, Any]

SLACK_MS = 100
MINUTE_MS = 60_000
PATTERN_MS = 10 * MINUTE_MS
"""As in docs/history.md: members leave or die three times, or one after another, within ten minutes."""

NOT_IN_THE_LOG = {
    "silent": (
        "A member that had not committed for a session timeout before it left or died. Commits are the only trace of a "
        "live member in the log: whether it left, died or did not poll, the log is the same."
    ),
    "deleted": (
        "A deleted topic. No cause stands for it, because the log has no topic metadata; members that no longer name "
        "the topic have changed their subscription."
    ),
}
"""What the log does not show, and why. A row about it is neither right nor wrong while its confidence is below
`UNSURE`; a row that claims more is judged like any other."""

UNSURE = 0.6

NOTHING = frozenset(("wait", "blink", "busy", "rest", "reset", "outsider", "stick", "refused", "dry_up"))
"""Acts that make no group rebalance."""

COORDINATOR_GOES = ("restart_broker", "lose_coordinator", "lead")
"""Acts after which the group's coordinator is another broker, or the same one restarted."""

_IN = {"start": "started", "join": "joined", "back": "joined", "thaw": "joined", "polls_again": "joined"}
_OUT = {"leave": "left", "kill": "session_expired", "freeze": "session_expired", "slow": "poll_interval_exceeded"}
_STILL = {"subscribe": "subscription_changed", "add_partitions": "partitions_added"}


@dataclass(frozen=True)
class Deed:
    """An act, and the causes of the rebalances that it leads to."""

    act: Act
    causes: frozenset[str]
    """One of these must be named."""
    also: frozenset[str] = frozenset()
    """Also right: what the client then does on its own."""
    direction: str = "still"
    """Whether members arrive (`in`), leave or die (`out`), or stay."""
    must: bool = True
    """Whether a rebalance must follow."""
    not_in_the_log: str = ""

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self.act["members"])

    @property
    def allowed(self) -> frozenset[str]:
        return self.causes | self.also


@dataclass(frozen=True)
class Window:
    """A period at whose end the group was at rest again, and what was done in it."""

    begin_ms: int
    until_ms: int
    deeds: tuple[Deed, ...]

    def has(self, at_ms: int) -> bool:
        return self.begin_ms - SLACK_MS <= at_ms <= self.until_ms + SLACK_MS


def windows(kept: Kept) -> list[Window]:
    """All periods in which something was done, in order."""
    found: list[Window] = []
    waiting: list[Deed] = []
    for deed in deeds(kept):
        waiting.append(deed)
        if deed.act["settled"]:
            found.append(Window(waiting[0].act["at_ms"], deed.act["until_ms"], tuple(waiting)))
            waiting = []
    if waiting:
        found.append(Window(waiting[0].act["at_ms"], waiting[-1].act["until_ms"], tuple(waiting)))
    return found


def deeds(kept: Kept) -> Iterator[Deed]:
    """Each act with what it must lead to, in order of time."""
    acts = kept["acts"]
    alive: set[str] = set()
    for at, act in enumerate(acts):
        kinds = {kept["cast"][label]["client"] for label in alive | set(act["members"]) if label in kept["cast"]}
        static = any(kept["cast"].get(label, {}).get("static") for label in act["members"])
        away = _away(acts, at, _session_ms(kept, act)) if static else ""
        yield _deed(act, kept, alive=bool(alive), kinds=kinds, static=away)
        if act["do"] in _IN:
            alive |= set(act["members"])
        elif act["do"] in _OUT:
            alive -= set(act["members"])


def _session_ms(kept: Kept, act: Act) -> int:
    """The session timeout of the members. A classic member sets its own; for KIP-848 members the script has set the
    same one."""
    return int(kept["config"].get("session.timeout.ms", 30_000))


def _away(acts: Sequence[Act], at: int, session_ms: int) -> str:
    """How long a static member is absent after this act, or was before it, compared with its session timeout: `short`,
    `long`, or `about` equal.

    A static member that closes does not leave the group: it expires like one that is killed.
    """
    act = acts[at]
    if act["do"] in ("leave", "kill"):
        back = next(
            (each for each in acts[at:] if each["do"] in _IN and set(each["members"]) & set(act["members"])), None
        )
        if back is None:
            return "long"
        away_ms, most_ms = back["at_ms"] - act["until_ms"], back["until_ms"] - act["at_ms"]
    elif act["do"] in ("back", "start"):
        left = next(
            (each for each in reversed(acts[:at]) if each["do"] in _OUT and set(each["members"]) & set(act["members"])),
            None,
        )
        if left is None:
            return "long"
        away_ms, most_ms = act["at_ms"] - left["until_ms"], act["until_ms"] - left["at_ms"]
    else:
        return "long"
    return "short" if most_ms < session_ms else "long" if away_ms > session_ms else "about"


def _deed(act: Act, kept: Kept, *, alive: bool, kinds: set[str], static: str) -> Deed:
    """`static`: how long a static member is absent; empty for others."""
    do = act["do"]
    if kept["theme"] == "sink":
        return _of_sink(act)
    # kafka-python forgets a JoinGroup that is answered between two polls and joins again (docs/reference/history.md).
    # Connect's workers join again to hand over what they had to give up.
    by_itself = frozenset(["leader_rejoined"] if kinds & {"kafka-python", "connect"} else [])
    if do == "twin":
        return Deed(act, frozenset(["static_member_replaced"]), by_itself, "in", must=False)
    if do in _IN:
        if static in ("short", "about"):
            perhaps = frozenset(["joined"] if static == "about" else [])
            return Deed(act, frozenset(["static_member_replaced"]), by_itself | perhaps, "in", must=False)
        cause = "started" if not alive else "joined"
        more = {"joined"} if len(act["members"]) > 1 else set()
        return Deed(act, frozenset([cause]), by_itself | more, "in")
    if do in _OUT:
        if static in ("short", "about"):
            perhaps = frozenset(["session_expired"] if static == "about" else [])
            return Deed(act, frozenset(["static_member_replaced"]), perhaps, "out", must=False)
        stays = do == "leave" and (static or act.get("how") == "stay")
        cause = "session_expired" if stays else _OUT[do]
        return Deed(act, frozenset([cause]), by_itself, "out")
    return _still(act, kept, kinds, by_itself)


def _of_sink(act: Act) -> Deed:
    """What happens to a sink's consumers when the Connect workers that run them start and stop: tasks are stopped
    cleanly and started on another worker, and a worker that dies takes its tasks with it."""
    moves = frozenset(["joined", "left"])
    match act["do"]:
        case "kill" | "freeze":
            return Deed(act, frozenset(["session_expired"]), moves, "out", must=False, not_in_the_log="silent")
        case "start" | "connector":
            return Deed(act, frozenset(["started"]), moves, "in", must=False)
        case "wait":
            return Deed(act, frozenset(), must=False)
        case _:
            return Deed(act, moves, frozenset(["started"]), "in", must=False)


def _still(act: Act, kept: Kept, kinds: set[str], by_itself: frozenset[str]) -> Deed:
    """The deed of an act in which no member arrives or leaves."""
    do = act["do"]
    if do in _STILL:
        # librdkafka's leader may look at the topic later than a follower, and then asks for another rebalance.
        more = {"leader_rejoined"} if do == "add_partitions" and "confluent" in kinds else set()
        return Deed(act, frozenset([_STILL[do]]), by_itself | more)
    if do == "create" and act["matching"]:
        # A classic member sends the names that its expression matches, not the expression: its list has grown.
        by_broker = all(about["protocol"] == "consumer" for about in kept["cast"].values())
        causes = {"partitions_added"} if by_broker else {"partitions_added", "subscription_changed"}
        return Deed(act, frozenset(causes), by_itself)
    if do == "delete_topic" and act["members"]:
        fits = frozenset(["subscription_changed", "leader_rejoined", "not_known", "topic_deleted"])
        return Deed(act, fits, came_and_went(kept, act), not_in_the_log="deleted")
    if do == "rejoin":
        # A follower that joins again with unchanged metadata is simply answered.
        return Deed(act, frozenset(["leader_rejoined"]), by_itself, must=False)
    if do == "connector":
        # Each worker that reads the change joins again, and once more to hand over what it has to give up.
        return Deed(act, frozenset(["leader_rejoined"]))
    if do in COORDINATOR_GOES:
        # Members that find it again within their session stay; librdkafka's classic ones give up, and rejoin.
        also = frozenset(("session_expired", "joined", "started", "leader_rejoined"))
        return Deed(act, frozenset(["coordinator_moved"]), also, must=False)
    assert do in NOTHING or do == "create" or do == "delete_topic", do
    return Deed(act, frozenset(), by_itself, must=False)


# ------------------------------------------------------------------------------------------------------- patterns


def flapping_members(kept: Kept, *, planned: bool = False) -> set[str]:
    """Members that left or died three times within ten minutes; `planned`: departures in a deploy, or when the whole
    group was stopped, count too."""
    times: dict[str, list[int]] = {}
    for act in kept["acts"]:
        if act["do"] in _OUT and (planned or not _is_planned(act)):
            for label in act["members"]:
                times.setdefault(label, []).append(act["at_ms"])
    return {
        label
        for label, found in times.items()
        if any(later - earlier <= PATTERN_MS for earlier, later in zip(found, found[2:], strict=False))
    }


def _is_planned(act: Act) -> bool:
    return bool(act.get("all")) or act.get("of", {}).get("what") == "deploy"


def patterns_of(window: Window, kept: Kept) -> tuple[set[str], set[str]]:
    """The patterns that rebalances in this window are part of, and others that may also be reported."""
    true: set[str] = set()
    may: set[str] = set()
    if kept["theme"] == "sink":
        return true, set(_TASKS_MAY)
    moves = [deed for deed in window.deeds if deed.direction != "still"]
    labels = {label for deed in moves for label in deed.members}
    if any(deed.act.get("of", {}).get("how") in ("rolling", "static") for deed in moves):
        true.add("rolling_restart")
    unplanned = {
        label for deed in moves if not _is_planned(deed.act) and deed.act["do"] not in _FIRST for label in deed.members
    }
    if unplanned & flapping_members(kept):
        true.add("flapping")
    if labels & flapping_members(kept, planned=True):
        may.add("flapping")
    if {(label, deed.act["at_ms"]) for deed in moves for label in deed.members} & _turns(kept):
        may.add("rolling_restart")
    return true, may


_TASKS_MAY = ("flapping", "rolling_restart")
"""What may be reported about a sink's consumers: each time their workers rebalance, some are stopped and started
again."""

_FIRST = ("start", "join")
"""A member's first appearance is not part of its flapping, though it may be reported as such."""


def _turns(kept: Kept) -> set[tuple[str, int]]:
    """Which members closed or came back, and when, if they did so one after another: as in a rolling restart, though it
    may not have been intended as one."""
    turns: list[tuple[str, int, int]] = []
    acts = kept["acts"]
    for at, act in enumerate(acts):
        if act["do"] != "leave" or act.get("all"):
            continue
        for label in act["members"]:
            back = next((each for each in acts[at:] if each["do"] in _IN and label in each["members"]), None)
            if back is not None and back["do"] != "start" and back["at_ms"] - act["at_ms"] <= PATTERN_MS:
                turns.append((label, act["at_ms"], back["at_ms"]))
    turns.sort(key=lambda turn: turn[1])
    found: set[tuple[str, int]] = set()
    for earlier, later in pairwise(turns):
        if earlier[0] != later[0] and earlier[2] <= later[1]:
            found |= {(label, at_ms) for label, left_ms, back_ms in (earlier, later) for at_ms in (left_ms, back_ms)}
    return found


# ------------------------------------------------------------------------------------------------------- findings


@dataclass
class Expectation:
    """Which findings a group deserves. One of each set in `must` has to be found; those in `may` are not mistakes."""

    must: list[frozenset[str]] = field(default_factory=list)
    may: set[str] = field(default_factory=set)
    is_healthy: bool = False


HEALTHY = frozenset(("start", "join", "wait", "blink", "busy", "rest", "create", "refused", "dry_up"))
"""A group to which nothing else was done should have no findings; it may also have been stopped at the end."""
_HELD_LONG_MS = 10_000
_APART_LONG_MS = 30_000
_STUCK_LONG_MS = 10 * MINUTE_MS
_MANY = 6
_CHANGES = 3
_RESTLESS = 8
"""A story lasts about three minutes: a group that changes this many times in it is hardly ever at rest."""
_TELLS_OF = {
    "session_expired": frozenset(("session_expired", "flapping")),
    "poll_interval_exceeded": frozenset(("poll_interval_exceeded", "flapping")),
}
_EAGER = ("range", "roundrobin")


def expectation(kept: Kept, tellable: Sequence[Deed]) -> Expectation:
    """The findings to expect. `tellable`: the deeds that the log shows."""
    expected = Expectation(is_healthy=_is_healthy(kept))
    if expected.is_healthy:
        return expected
    _of_departures(kept, tellable, expected)
    _of_patterns(kept, tellable, expected)
    _of_shape(kept, expected)
    _of_sharing(kept, expected)
    _of_offsets(kept, expected)
    if kept["theme"] == "sink":
        expected.may |= {*_TASKS_MAY, "needless_moves", "stops_the_world"}
    return expected


def _is_healthy(kept: Kept) -> bool:
    *acts, last = kept["acts"]
    return (
        not _apart_ms(kept)
        and not any(act.get("held_by") for act in kept["acts"])
        and all(act["do"] in HEALTHY for act in acts)
        and (last["do"] in HEALTHY or bool(last.get("all")))
    )


def _of_departures(kept: Kept, tellable: Sequence[Deed], expected: Expectation) -> None:
    for cause, rules in _TELLS_OF.items():
        if any(cause in deed.causes for deed in tellable):
            expected.must.append(rules)
        if any(cause in deed.causes for deed in deeds(kept)):
            expected.may |= rules - {"flapping"}
    if any(deed.direction == "out" and deed not in tellable for deed in deeds(kept)):
        expected.may |= {
            "session_expired",
            "poll_interval_exceeded",
            "members_vanish",
        }  # said with little confidence, if at all


def _of_patterns(kept: Kept, tellable: Sequence[Deed], expected: Expectation) -> None:
    flapping = flapping_members(kept)
    if flapping_members(kept, planned=True):
        expected.may.add("flapping")
    if sum(bool(deed.members & flapping) and deed.direction == "out" for deed in tellable) >= _CHANGES:
        expected.must.append(frozenset(["flapping"]))
    rolled = {label for deed in deeds(kept) if deed.act.get("of", {}).get("how") == "rolling" for label in deed.members}
    if len(rolled) >= 2:
        expected.must.append(frozenset(["rolling_restart"]))
    if _turns(kept):
        expected.may.add("rolling_restart")


def _of_shape(kept: Kept, expected: Expectation) -> None:
    """Findings about how the group rebalances, and which members hold it up."""
    acts = kept["acts"]
    if any(act.get("held_by") for act in acts):
        expected.may.add("held_up")
        if any(act.get("held_by") and longest_rebalance_ms(kept, act) >= _HELD_LONG_MS for act in acts):
            expected.must.append(frozenset(["held_up"]))
    changes = [deed for deed in deeds(kept) if deed.must]
    if len(changes) >= _CHANGES:
        expected.may |= {"needless_moves"}
        if any(about["protocol"] in _EAGER for about in kept["cast"].values()):
            expected.may.add("stops_the_world")
    turns = [deed for deed in changes if deed.direction != "still" and not deed.act.get("all")]
    if sum(len(deed.members) for deed in turns if deed.act["do"] != "start") >= _MANY:
        expected.may |= {"members_come_and_go"}
    if "kafka-python" in _clients(kept):
        expected.may |= {"rejoins"}  # it rejoins on its own (docs/reference/history.md)
    if len(changes) >= _RESTLESS:
        expected.may |= {"never_at_rest"}
    if sum(act["do"] in ("subscribe", "delete_topic") or bool(act.get("matching")) for act in acts) >= 2:
        expected.may.add("rejoins")
    for do, least, rule in (("twin", _CHANGES + 1, "instance_id_contested"), ("rejoin", _CHANGES, "rejoins")):
        expected.must += [frozenset([rule])] * (sum(act["do"] == do for act in acts) >= least)


def _clients(kept: Kept) -> set[str]:
    return {about["client"] for about in kept["cast"].values()}


def _of_sharing(kept: Kept, expected: Expectation) -> None:
    """Whether programs with nothing in common have one group id, and whether its broker was restarted."""
    if any(act["do"] in COORDINATOR_GOES for act in kept["acts"]):
        expected.may |= {"coordinator_moved", "session_expired"}
        # librdkafka's commits that waited for the coordinator arrive after later ones.
        expected.may |= {"rewinds"} if _clients(kept) & {"confluent"} else set()
    apart_ms = _apart_ms(kept)
    if apart_ms:
        expected.may.add("shared_group_id")
        if apart_ms >= _APART_LONG_MS:
            expected.must.append(frozenset(["shared_group_id"]))


def _apart_ms(kept: Kept) -> int:
    """How long programs with disjoint topics were in the group together."""
    reads: dict[str, frozenset[str]] = {}
    apart_ms = 0
    acts = kept["acts"]
    ends = [act["at_ms"] for act in acts[1:]] + [acts[-1]["until_ms"]]
    for act, end_ms in zip(acts, ends, strict=True):
        if act["do"] in _OUT:
            for label in act["members"]:
                reads.pop(label, None)
        elif "topics" in act:
            topics = frozenset(str(topic).rpartition(".")[2] for topic in act["topics"])
            reads.update(dict.fromkeys(act["members"], topics))
        if _applications(reads.values()) > 1:
            apart_ms += end_ms - act["at_ms"]
    return apart_ms


def _applications(reads: Iterable[frozenset[str]]) -> int:
    kinds: list[frozenset[str]] = []
    for topics in set(reads):
        joint = [kind for kind in kinds if kind & topics]
        kinds = [kind for kind in kinds if not kind & topics] + [topics.union(*joint)]
    return len(kinds)


def _of_offsets(kept: Kept, expected: Expectation) -> None:
    acts = kept["acts"]
    for act in acts:
        if act["do"] == "reset" or (act["do"] == "outsider" and kept["traffic"] != "never"):
            expected.may |= {"rewinds", "commits_by_others"}
        elif act["do"] == "stick":
            expected.may.add("stuck")
            if acts[-1]["until_ms"] - act["at_ms"] >= _STUCK_LONG_MS:
                expected.must.append(frozenset(["stuck"]))
