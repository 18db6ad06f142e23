"""The doctor's rules about a group's rebalances: first why they happen, then how the group rebalances.

Why: each rebalance is classified by the pattern that it is part of, or else by its cause, so no two of these rules
report the same rebalance. How: these rules cover all rebalances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from muster.history.findings.view import Absence, GroupView, RuleResult, absences, distinct, gone, returns, rounds, went
from muster.history.model import Cause, Generation, Member, Pattern, Rebalance
from muster.history.rules.departures import BROKER_LOG
from muster.history.rules.wording import count, duration, listed, settings_value

_HOUR_MS = 3_600_000
_OFTEN = 3
"""How many times count as recurring."""
_ENDLESS = 10
_SURE = 0.6
"""A cause with less confidence is reported as the most likely one."""
_RESTLESS_MS = 120_000
_RESTLESS_FOR_MS = 180_000
_REST_MS = 600_000
"""A group that has not rebalanced for this long is at rest."""
_SHORT_SESSION_MS = 10_000
_USUAL_SESSION_MS = 45_000
"""Kafka's default session.timeout.ms since 3.0 (KIP-735)."""
_MOST_OF_A_GROUP_MS = 60_000
"""The default of group.consumer.max.session.timeout.ms (KIP-848); in the classic protocol it is 30 min."""
_EAGER = frozenset({"range", "roundrobin", "sticky"})
_STICKY = frozenset({"sticky", "cooperative-sticky", "uniform"})
"""These keep partitions with their members where possible."""
_QUERY = "muster-spark"
"""The client.id of queries of muster's Spark source, unless they set another."""
_AWAY_MS = 1_000
"""A member that returns sooner was not waiting for its handler."""
_SCALED_AT_ONCE_MS = 60_000
_APART_MS = 60_000
"""Members without a topic in common count as two applications once they have shared the group for this long."""


# ---------------------------------------------------------------------------------------------- why: two groups in one


def shared_group_id(view: GroupView) -> RuleResult | None:
    """Several applications use one group id: each rebalances because of the others, for topics that it does not
    read."""
    found: list[_Application] = []
    shared: set[int] = set()
    apart_ms = whole_ms = 0
    for each in view.generations:
        if each.members:
            long_ms = max(0, (view.now_ms if each.ended_ms is None else each.ended_ms) - each.started_ms)
            whole_ms += long_ms
            if len(applications := _applications(each)) > 1:
                found, apart_ms = applications, apart_ms + long_ms
                shared.add(each.generation)
    if not found or apart_ms < _APART_MS or 2 * apart_ms < whole_ms:
        return None  # as when one program replaces another
    who = "; ".join(f"{distinct(members)}: {listed(sorted(topics))}" for members, topics in found[:_OFTEN])
    return RuleResult(
        "shared_group_id",
        f"{count(len(found), 'application')} with no topic in common share this group id ({who}), so each rebalances "
        "whenever a member of another one joins or leaves",
        "Give each application its own group.id. Copy its committed offsets to the new group first "
        "(muster groups reset-offsets, kafka-consumer-groups --reset-offsets --from-file).",
        [row for row in view.real if row.generation in shared and row.members_before],
        since_ms=view.generations[0].started_ms,
    )


_Application: TypeAlias = tuple[list[Member], set[str]]


def _applications(each: Generation) -> list[_Application]:
    """The members of a generation, grouped by the topics that they share; empty if a member's topics are not known."""
    found: list[_Application] = []
    for member in each.members:
        if each.protocol_type != "consumer" or member.topic_regex or not member.topics:
            return []
        near = [one for one in found if not one[1].isdisjoint(member.topics)]
        found = [one for one in found if one not in near]
        members = [*(other for one in near for other in one[0]), member]
        found.append((members, {*member.topics, *(topic for one in near for topic in one[1])}))
    return found


# ------------------------------------------------------------------------------------------- why: members that leave


def poll_interval_exceeded(view: GroupView) -> RuleResult | None:
    """Handlers take longer than max.poll.interval.ms, so members leave and come back."""
    seen = view.of(Cause.POLL_INTERVAL_EXCEEDED)
    if not seen:
        return None
    away = absences(view, seen)
    limit = max((each.member.rebalance_timeout_ms or 0 for each in away), default=0)
    allowed = f" ({duration(limit)})" if limit else ""
    return RuleResult(
        "poll_interval_exceeded",
        f"{_likely(seen)}{distinct(each.member for each in away)} did not poll within max.poll.interval.ms{allowed} "
        "and had to leave",
        _poll_advice(away, limit),
        seen,
        f"{_handling(away)}{_or_else(seen)}",
        returns(view, away),
    )


def _handled_ms(away: Iterable[Absence]) -> int | None:
    """How long the slowest handler took among those that were seen to finish. It ran from the member's last poll until
    the member rejoined; the poll interval had elapsed when the member had to leave. A member that was back immediately
    left late, on its next poll: how long it had been handling records by then is not known."""
    ended = [each for each in away if (each.away_ms or 0) >= _AWAY_MS and each.member.rebalance_timeout_ms]
    return max(((each.member.rebalance_timeout_ms or 0) + (each.away_ms or 0) for each in ended), default=None)


def _handling(away: Sequence[Absence]) -> str:
    handled_ms = _handled_ms(away)
    if handled_ms is None:
        return "Its handler takes longer than that; how much longer is not known."
    longest = max(each.away_ms or 0 for each in away)
    return (
        f"The slowest rejoined {duration(longest)} after it had to leave, so its handler took about "
        f"{duration(handled_ms)}."
    )


def _poll_advice(away: Sequence[Absence], limit_ms: int) -> str:
    handled_ms = _handled_ms(away)
    within = f" within {duration(limit_ms)}" if limit_ms else " in time"
    others = (
        f"lower max.poll.records so that one poll's records are handled{within}; or pause the partitions and keep "
        "polling while the handler works."
    )
    if handled_ms is None:
        least = f" (more than {duration(limit_ms)})" if limit_ms else ""
        return f"Measure how long one poll's records take{least} and set max.poll.interval.ms above that; or {others}"
    value = settings_value(handled_ms + handled_ms // 4)
    return f"Set max.poll.interval.ms above the longest handling time, for example to {value}; or {others}"


def session_expired(view: GroupView) -> RuleResult | None:
    """Members disappeared without leaving the group: killed, paused, or disconnected."""
    seen = [row for row in view.of(Cause.SESSION_EXPIRED) if not _is_static_stop(row)]
    if not seen:
        return None
    members = gone(seen)
    session = _session_ms(view, members)
    hosts = Counter(member.host for member in members).most_common(1)
    where = f", most on {hosts[0][0].lstrip('/')} ({hosts[0][1]})" if hosts and hosts[0][1] >= _OFTEN else ""
    if all(member.instance_id for member in members):
        advice = (
            "Static members (group.instance.id) do not leave the group when they are closed: their partitions wait for "
            "the session timeout. If these were stopped for good, remove them (muster groups remove-members). If not, "
            "check whether the processes were killed, paused, or restarted too slowly."
        )
    elif 0 < session < _SHORT_SESSION_MS:
        advice = (
            f"{_session_setting(view)} is {session}: a short pause (garbage collection, a throttled container) is "
            f"enough to expire a member. Set it to {_USUAL_SESSION_MS}, the default."
        )
    else:
        advice = (
            "Check whether the processes were killed (out of memory, kill -9 by a deploy that does not wait) or "
            "paused. Close consumers on SIGTERM: a member that leaves hands over its partitions immediately."
        )
    return RuleResult(
        "session_expired",
        f"{_likely(seen)}{distinct(members)} stopped heartbeating and expired{where}",
        advice,
        seen,
        f"The partitions waited for the session timeout{f' of {duration(session)}' if session else ''} each time."
        f"{_or_else(seen)}",
        returns(view, absences(view, seen)),
    )


def members_vanish(view: GroupView) -> RuleResult | None:
    """Members disappear for no visible reason and come back, perhaps a crash loop in a group with no traffic. Those
    that do not return may have been scaled in."""
    away = [each for each in absences(view, view.of(Cause.MEMBER_GONE)) if each.back is not None]
    seen = list({id(each.went): each.went for each in away}.values())
    if len(seen) < _OFTEN:
        return None
    return RuleResult(
        "members_vanish",
        f"Members disappear and come back, and the records do not show why ({distinct(each.member for each in away)})",
        f"Check {BROKER_LOG}. If members expire, their processes die or hang: look for kills (out of memory, kill "
        "-9), and close consumers on SIGTERM, so that a stopped member leaves the group. If members leave, a "
        "supervisor or a deploy restarts them: give each a group.instance.id.",
        seen,
        back=returns(view, away),
    )


def _likely(seen: Iterable[Rebalance]) -> str:
    """The start of a sentence whose cause is not certain in any of these rebalances."""
    return "" if any(row.confidence >= _SURE for row in seen) else "Most likely "


def _or_else(seen: Sequence[Rebalance]) -> str:
    """If the cause is not certain: what else it may have been, and how to find out."""
    surest = max(seen, key=lambda row: row.confidence)
    if surest.confidence >= _SURE or not surest.alternatives:
        return ""
    other = surest.alternatives[0]
    return f" The cause may also be {other.cause}; to find out, check {other.told_apart_by}."


def _is_static_stop(row: Rebalance) -> bool:
    """The group was stopped and its members are static: these do not leave when they are closed, so they expire even
    after a clean shutdown."""
    members = went(row)
    return (row.is_stop or not row.members_after) and bool(members) and all(each.instance_id for each in members)


def _session_ms(view: GroupView, members: Iterable[Member]) -> int:
    """The shortest session timeout of these members; 0 if not known. KIP-848 members have that of their group."""
    known = [member.session_timeout_ms for member in members if member.session_timeout_ms]
    if not known and view.is_modern:
        limits = view.limits
        return limits.session_timeouts_ms.get(view.group, limits.consumer_session_timeout_ms)
    return min(known, default=0)


def _session_setting(view: GroupView) -> str:
    """The setting that holds the members' session timeout."""
    return "consumer.session.timeout.ms of the group" if view.is_modern else "session.timeout.ms"


def rolling_restart(view: GroupView) -> RuleResult | None:
    """Deploys that move every partition although the members come back."""
    seen = view.part_of(Pattern.ROLLING_RESTART)
    if len(rounds(seen)) < 2:
        return None  # a single one: the others are part of another pattern
    longest_ms = max((_restarted_ms(view, each) for each in absences(view, seen)), default=0)
    longest = f" (the slowest restart took about {duration(longest_ms)})" if longest_ms else ""
    value = settings_value(max(2 * longest_ms, _USUAL_SESSION_MS))
    above = f"set {_session_setting(view)} above the time a restart takes{longest}, for example to {value}"
    if view.is_modern and int(value) > _MOST_OF_A_GROUP_MS:
        above += f" (brokers allow {_MOST_OF_A_GROUP_MS} unless group.consumer.max.session.timeout.ms is raised)"
    members = gone(seen)
    if members and all(member.instance_id for member in members):
        advice = f"The members are static already, but a restart takes longer than their session: {above}."
    else:
        advice = (
            "Give each member a group.instance.id that survives the restart (a StatefulSet's pod name) and "
            f"{above}: a deploy then causes no rebalance."
        )
    return RuleResult(
        "rolling_restart", "The group was restarted member by member and rebalanced each time", advice, seen
    )


def _restarted_ms(view: GroupView, found: Absence) -> int:
    """From when a member stopped until it was back: one that did not leave stayed a member until its session
    expired."""
    if found.back is None or found.back is found.went:
        return 0
    expired = found.went.cause is Cause.SESSION_EXPIRED
    return found.back.at_ms - found.went.at_ms + (_session_ms(view, [found.member]) if expired else 0)


_WHY_IT_LEAVES: dict[Cause, str] = {
    Cause.POLL_INTERVAL_EXCEEDED: (
        "its handler takes longer than max.poll.interval.ms; lower max.poll.records or raise the interval"
    ),
    Cause.SESSION_EXPIRED: "it dies or hangs without leaving the group (kill -9, out of memory), and is restarted",
    Cause.LEFT: (
        "it leaves cleanly and is started again (by a supervisor or an autoscaler, as a short-lived job, or after a "
        "crash that still closes the consumer)"
    ),
}


def flapping(view: GroupView) -> RuleResult | None:
    """One member keeps joining and leaving."""
    seen = view.part_of(Pattern.FLAPPING)
    if not seen:
        return None
    patterns = [each.pattern for each in seen if each.pattern is not None]
    found = Counter(member for each in patterns for member in each.members)
    most = max(found.values())
    often = [member for member, number in found.items() if 2 * number >= most]
    who = (
        f"The client {often[0]} joins and leaves" if len(often) == 1 else f"The clients {listed(often)} join and leave"
    )
    them = "that process" if len(often) == 1 else "each of these processes"
    it = "it" if len(often) == 1 else "them"
    if all(row.is_stop for row in seen if went(row)):
        what = "and each time the group is empty afterwards"
        then = "If an autoscaler stops the whole group, make it wait longer before that."
    else:
        what = "and each time the whole group rebalances"
        then = f"Stop {it} until that is fixed: every member rebalances because of {it}."
    advice = f"Check {them} first: {_why_it_leaves(seen)}. {then}"
    return RuleResult("flapping", f"{who} again and again, {what}", advice, seen)


def _why_it_leaves(seen: Sequence[Rebalance]) -> str:
    """Judged by the causes in the pattern, which include members that were back immediately; if these are inconclusive,
    by the causes of the rebalances."""
    causes = Counter(cause for each in seen if each.pattern is not None for cause in each.pattern.went)
    certain, number = max(((each, causes[each]) for each in _WHY_IT_LEAVES), key=lambda found: found[1])
    if 2 * number >= causes.total():
        return _WHY_IT_LEAVES[certain]
    of_rows = Counter(each.cause for each in seen if went(each))
    likely, number = max(((each, of_rows[each]) for each in _WHY_IT_LEAVES), key=lambda found: found[1])
    if number and 2 * number >= of_rows.total():
        return f"most likely {_WHY_IT_LEAVES[likely]}"
    return "it crashes and is restarted, or its handler is too slow"


def instance_id_contested(view: GroupView) -> RuleResult | None:
    """Processes with the same instance id fence one another: nothing rebalances, and no records get processed."""
    taken: dict[str, list[int]] = {}
    for row in view.rebalances:
        for change in row.replaced if row.is_takeover else ():
            taken.setdefault(change.member.instance_id or "", []).append(row.at_ms)
    window_ms = view.limits.pattern_ms
    often = {
        instance_id: times_ms
        for instance_id, times_ms in taken.items()
        if any(later - earlier <= window_ms for earlier, later in zip(times_ms, times_ms[_OFTEN:], strict=False))
    }
    if not often:
        return None
    worst = max(often, key=lambda each: len(often[each]))
    span = duration(often[worst][-1] - often[worst][0])
    return RuleResult(
        "instance_id_contested",
        "A static member was replaced repeatedly by a process with the same group.instance.id "
        f"({listed(sorted(often))}): {worst} {count(len(often[worst]), 'time')} within {span}",
        "If two processes have that group.instance.id, each fences the other (FencedInstanceIdException in their "
        "logs): give each process its own. If there is only one, it keeps restarting: find out why.",
        since_ms=often[worst][0],
    )


def departures(view: GroupView) -> RuleResult | None:
    """Members leave and join so often that it is costly: an autoscaler, short-lived jobs."""
    seen = [row for row in view.within if row.cause in (Cause.LEFT, Cause.JOINED) and row.pattern is None]
    number = len(rounds(seen))
    if number < 2 * _OFTEN or not _is_dense(seen):
        return None
    # KIP-848 members do not wait for one another: each join bumps the epoch, even if all are started together.
    at_once = 0 if view.is_modern else _joins_at_once(seen)
    turns = sum(one.cause is not other.cause for one, other in pairwise(rounds(seen)))
    if turns < _OFTEN + 1 and at_once < 2 * _OFTEN - 1:
        return None  # a group that is scaled out or in
    joined = [change.member for each in seen for change in each.joined]
    left = [member for each in seen for member in each.left]
    if at_once >= _OFTEN:
        advice = (
            f"{at_once} joins came within {duration(_SCALED_AT_ONCE_MS)} of the previous one: start members together "
            "and raise group.initial.rebalance.delay.ms on the broker, so that one rebalance admits them all."
        )
    else:
        advice = (
            "If a deploy or a supervisor restarts them, find out why; if an autoscaler does, make it wait longer "
            f"between steps than a rebalance takes.{_gentler(view)}"
        )
    return RuleResult(
        "members_come_and_go",
        f"Members come and go: {len(joined)} joined and {len(left)} left ({distinct([*joined, *left])})",
        advice,
        seen,
    )


def _gentler(view: GroupView) -> str:
    """A protocol that stops fewer partitions in a rebalance than the group's current one; "" if there is none."""
    if view.is_modern:
        return ""
    stay = "partitions that stay with their member are not stopped"
    if view.assignor in _EAGER:
        return f" With cooperative-sticky, or group.protocol=consumer on Kafka 4.0 and newer, {stay}."
    return " With group.protocol=consumer (Kafka 4.0 and newer), no member waits for another to join."


def _is_dense(rebalances: Sequence[Rebalance]) -> bool:
    """Whether they come within an hour of each other, on average."""
    span_ms = rebalances[-1].at_ms - rebalances[0].at_ms
    return span_ms <= _HOUR_MS * (len(rebalances) - 1)


def _joins_at_once(rebalances: Sequence[Rebalance]) -> int:
    """How many members joined shortly after another one, with no departure in between."""
    return sum(
        earlier.cause is later.cause is Cause.JOINED and later.at_ms - earlier.at_ms <= _SCALED_AT_ONCE_MS
        for earlier, later in pairwise(rounds(rebalances))
    )


def leader_rejoins(view: GroupView) -> RuleResult | None:
    """Rebalances in which no member joined or left."""
    seen = view.of(Cause.LEADER_REJOINED, Cause.SUBSCRIPTION_CHANGED)
    if len(rounds(seen)) < _OFTEN or _are_workers(view):
        return None
    if not any(each.cause is Cause.SUBSCRIPTION_CHANGED for each in seen):
        advice = (
            "Look for calls to enforceRebalance(), for rack ids that change, and for clients whose list of topics "
            "keeps changing (a pattern that matches short-lived topics)."
        )
    elif _agree(view):
        advice = (
            "All members now subscribe to the same topics, as when topics that match their pattern are created and "
            "deleted: create such topics together, or use a pattern that does not match short-lived topics."
        )
    else:
        advice = (
            "Members change their subscriptions. If two versions of a program subscribe to different topics in one "
            "group, give each its own group.id."
        )
    return RuleResult("rejoins", "Members rejoined although none joined or left the group", advice, seen)


def _are_workers(view: GroupView) -> bool:
    """Members that are not consumers, such as Kafka Connect's workers: these rejoin for each change of a connector, and
    to hand over its tasks."""
    return any(each.members and each.protocol_type != "consumer" for each in view.generations)


def _agree(view: GroupView) -> bool:
    """Whether the latest members all subscribe to the same topics."""
    latest = next((each for each in reversed(view.generations) if each.members), None)
    return latest is not None and len({frozenset(member.topics) for member in latest.members}) == 1


def coordinator_moves(view: GroupView) -> RuleResult | None:
    """The broker that coordinates the group changes often."""
    seen = view.of(Cause.COORDINATOR_MOVED)
    if not seen:
        return None
    advice = (
        f"Members that find the new coordinator within {_session_setting(view)} keep their partitions. If brokers were "
        f"restarted one by one, set it above the time a restart takes; {_USUAL_SESSION_MS} is the default."
    )
    return RuleResult(
        "coordinator_moved", "The group's coordinator moved to another broker, and a rebalance followed", advice, seen
    )


# ------------------------------------------------------------------------------------------------ how it rebalances


def never_at_rest(view: GroupView) -> RuleResult | None:
    """A group that keeps rebalancing up to now."""
    seen = _restless(rounds(view.real), view.now_ms)
    gaps = sorted(later.at_ms - earlier.at_ms for earlier, later in pairwise(seen))
    if len(seen) < _ENDLESS or gaps[len(gaps) // 2] > _RESTLESS_MS or view.latest is None or not view.latest.members:
        return None
    if seen[-1].at_ms - seen[0].at_ms < _RESTLESS_FOR_MS:
        return None
    causes = Counter(each.cause for each in seen)
    clients = Counter(
        f"{member.client_id!r}" for each in seen for member in (*(change.member for change in each.joined), *each.left)
    )
    by = f"Most involve {listed(name for name, _ in clients.most_common(2))}." if clients else ""
    what = (
        "The group keeps rebalancing, half of the time within "
        f"{duration(gaps[len(gaps) // 2])} of the previous rebalance "
        f"({', '.join(f'{cause} {number}' for cause, number in causes.most_common(3))})"
    )
    advice = (
        f"Start with the most frequent cause, {causes.most_common(1)[0][0]}; the other rebalances often follow from "
        "it: a member that waits for a rebalance neither commits nor polls."
    )
    return RuleResult("never_at_rest", what, advice, seen, by, is_last_resort=True)


def _restless(rebalances: Sequence[Rebalance], now_ms: int) -> list[Rebalance]:
    """The latest rebalances up to now without a pause between them."""
    found: list[Rebalance] = []
    for each in reversed(rebalances):
        if now_ms - each.at_ms > _REST_MS:
            break
        found.append(each)
        now_ms = each.at_ms
    return found[::-1]


def held_up(view: GroupView) -> RuleResult | None:
    """Rebalances in which all members waited until a busy one polled."""
    seen = [row for row in view.real if row.waited_for]
    if not seen:
        return None
    members = [member for row in seen for member in row.waited_for]
    longest = max(seen, key=lambda row: row.waited_ms or 0)
    queries = [member for member in members if member.client_id == _QUERY]
    parts = []
    if len(queries) < len(members):
        parts.append(
            "A member rejoins when it next polls, and all others wait for it: lower its max.poll.records, so that one "
            "poll's records are handled in a few seconds."
        )
    if queries:
        parts.append(
            "A Spark query rejoins when its batch is finished: lower its maxOffsetsPerTrigger, so that a batch takes a "
            "few seconds; its drain.timeout bounds the wait."
        )
    advice = f"{' '.join(parts)}{_gentler(view)}"
    what = (
        f"Members waited in a rebalance for {distinct(members)}, busy handling records, for up to "
        f"{duration(longest.waited_ms or 0)}"
    )
    return RuleResult("held_up", what, advice, seen)


def stops_the_world(view: GroupView) -> RuleResult | None:
    """An eager assignor stops partitions that do not move."""
    latest = view.latest
    seen = view.within
    if latest is None or latest.protocol not in _EAGER or len(rounds(seen)) < 2 * _OFTEN or not _is_unrest(view):
        return None
    stopped = kept = 0
    for each in seen:
        moved = {(move.topic, move.partition) for move in each.moved_partitions}
        stopped += len(each.stopped)
        kept += sum((topic, partition) not in moved for topic, partition, _ in each.stopped)
    if kept < _OFTEN or kept * 4 < stopped:
        return None
    what = f"The assignor {latest.protocol!r} stops all partitions in every rebalance"
    then = f"{kept} of {stopped} stops affected partitions that stayed with their member."
    advice = (
        "Set partition.assignment.strategy to cooperative-sticky (deploy first with both assignors, then with "
        "cooperative-sticky alone), or group.protocol=consumer on Kafka 4.0 and newer: partitions that stay are not "
        "stopped."
    )
    return RuleResult("stops_the_world", what, advice, seen, then)


def _is_unrest(view: GroupView) -> bool:
    """Whether a complete group keeps rebalancing: while a group grows, how it rebalances costs little."""
    rebalances = [row for row in rounds(view.within) if not _is_growth(row)]
    return len(rebalances) >= _OFTEN


def _is_growth(row: Rebalance) -> bool:
    return row.cause is Cause.JOINED and row.pattern is None and not went(row)


def needless_moves(view: GroupView) -> RuleResult | None:
    """Partitions move although their owner stays."""
    moves = sum(each.moved for each in view.real)
    needless = sum(each.moved_needlessly for each in view.real)
    too_few = needless < _OFTEN or needless * 4 < moves
    if view.latest is None or view.assignor in _STICKY or too_few or not _is_unrest(view):
        return None
    seen = [each for each in view.real if each.moved_needlessly]
    then = (
        f"{needless} of {moves} partition moves were needless: the owner stayed, and an even assignment was possible "
        "without them."
    )
    better = "Set group.remote.assignor to uniform" if view.is_modern else "Use cooperative-sticky"
    advice = f"{better}, which keeps partitions with their members where possible; caches and state then stay warm."
    return RuleResult(
        "needless_moves", f"The assignor {view.assignor!r} moves partitions needlessly", advice, seen, then
    )


def session_above_poll_interval(view: GroupView) -> RuleResult | None:
    """A dead member is detected later than a slow one."""
    latest = view.latest
    wrong = [
        member
        for member in (latest.members if latest else ())
        if (member.session_timeout_ms or 0) > (member.rebalance_timeout_ms or (member.session_timeout_ms or 0))
    ]
    if not wrong or latest is None:
        return None
    member = wrong[0]
    what = (
        f"{distinct(wrong)} requested session.timeout.ms {member.session_timeout_ms}, above "
        f"max.poll.interval.ms {member.rebalance_timeout_ms}: a dead process is detected later than a slow handler"
    )
    advice = f"Set session.timeout.ms below max.poll.interval.ms; the defaults are {_USUAL_SESSION_MS} and 300000."
    return RuleResult("session_above_poll_interval", what, advice, since_ms=latest.started_ms)


RULES: tuple[Callable[[GroupView], RuleResult | None], ...] = (
    shared_group_id,
    poll_interval_exceeded,
    session_expired,
    members_vanish,
    rolling_restart,
    flapping,
    instance_id_contested,
    departures,
    leader_rejoins,
    coordinator_moves,
    held_up,
    never_at_rest,
    stops_the_world,
    needless_moves,
    session_above_poll_interval,
)
