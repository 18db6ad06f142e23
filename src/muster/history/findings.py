"""The doctor's sentences: what is wrong with a group, since when, what it costs, and which setting to change to what.

A rule looks at one group's rows and says nothing, or one sentence. Rules are ranked by what they cost: seconds in which
partitions stood still, a day. A figure in an advice comes from the evidence (the longest silence that was seen, the
timeout that a member asked for), never from a table of good values alone.

Costs are upper bounds: a partition counts as stopped from the last commit before a rebalance to the first after it, so
the time between two commits is in it. What was seen is scaled to a day by the time over which it was seen, at least an
hour, and at least a day for fewer than `_OFTEN` times: one event five minutes ago is no rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from muster.history.model import Cause, CommitNote, Finding, Generation, Lag, Limits, Member, Rebalance
from muster.history.wording import count, duration, listed, named, settings_value

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_OFTEN = 3
"""How many times make a habit."""
_ENDLESS = 10
_RESTLESS_MS = 120_000
_SHORT_SESSION_MS = 10_000
_USUAL_SESSION_MS = 45_000
"""Kafka's default session.timeout.ms since 3.0 (KIP-735)."""
_EAGER = frozenset({"range", "roundrobin", "sticky"})
_EXPIRES_SOON_MS = 2 * _DAY_MS
_STUCK_MS = 10 * 60_000
_SCALED_AT_ONCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class View:
    """One group's rows, each list in the order of time, and the time up to which the history reaches."""

    group: str
    generations: Sequence[Generation]
    rebalances: Sequence[Rebalance]
    notes: Sequence[CommitNote]
    lag: Sequence[Lag]
    now_ms: int
    limits: Limits = field(default_factory=Limits)

    def of(self, *causes: Cause) -> list[Rebalance]:
        """Its rebalances with one of these causes."""
        return [each for each in self.rebalances if each.cause in causes]

    @property
    def latest(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def lag_now(self) -> list[Lag]:
        """The latest look at each partition."""
        found = {(each.topic, each.partition): each for each in self.lag}
        return list(found.values())


Rule: TypeAlias = Callable[[View], Finding | None]

_HOW = frozenset({"stops_the_world", "needless_moves"})
"""Findings about how a group rebalances."""


def findings(views: Iterable[View]) -> list[Finding]:
    """What there is to say about these groups: the group with the most costly finding first. Of a group, first what
    makes it rebalance, then how it does: how makes each rebalance dearer, but does not answer why there is one."""
    found = [finding for view in views for rule in RULES if (finding := rule(view)) is not None]
    dearest: dict[str, float] = {}
    for each in found:
        dearest[each.group] = max(each.cost, dearest.get(each.group, 0.0))
    return sorted(
        found,
        key=lambda each: (-dearest[each.group], each.group, each.rule in _HOW, -each.cost, each.rule),
    )


# ------------------------------------------------------------------------------------------------- what is a cost


def stopped_ms(rebalances: Iterable[Rebalance]) -> int:
    """Milliseconds in which partitions stood still, summed over partitions."""
    return sum(gap for each in rebalances for _, _, gap in each.stopped_ms)


def _a_day(total_ms: int, times: int, since_ms: int, now_ms: int) -> float:
    span_ms = max(now_ms - since_ms, _HOUR_MS if times >= _OFTEN else _DAY_MS)
    return round(total_ms / 1_000 * _DAY_MS / span_ms, 1)


def _finding(view: View, rule: str, rebalances: Sequence[Rebalance], sentence: str, advice: str) -> Finding:
    since = rebalances[0].at_ms
    cost = _a_day(stopped_ms(rebalances), len(rebalances), since, view.now_ms)
    return Finding(view.group, rule, since, sentence, cost, advice)


def _times(view: View, rebalances: Sequence[Rebalance]) -> str:
    """`3 times in 2.0 h, which stopped partitions for 41 s in all`."""
    span = duration(max(view.now_ms - rebalances[0].at_ms, 1_000))
    stood = stopped_ms(rebalances)
    cost = f", which stopped partitions for {duration(stood)} in all" if stood else ""
    return f"{count(len(rebalances), 'time')} in the last {span}{cost}"


def _gone(rebalances: Iterable[Rebalance]) -> list[Member]:
    return [member for each in rebalances for member in each.left] + [
        change.before for each in rebalances for change in each.replaced if change.before is not None
    ]


def _longest_stop_ms(rebalances: Iterable[Rebalance]) -> int:
    return max((gap for each in rebalances for _, _, gap in each.stopped_ms), default=0)


# ------------------------------------------------------------------------------------------- rules: members that go


def never_at_rest(view: View) -> Finding | None:
    """A group that rebalances for ever."""
    seen = [each for each in view.rebalances if each.phase == 1]
    gaps = sorted(later.at_ms - earlier.at_ms for earlier, later in pairwise(seen))
    if len(seen) < _ENDLESS or gaps[len(gaps) // 2] > _RESTLESS_MS:
        return None
    causes = Counter(each.cause for each in seen)
    clients = Counter(
        f"{member.client_id!r}" for each in seen for member in (*(change.member for change in each.joined), *each.left)
    )
    by = f" Most come with {listed(name for name, _ in clients.most_common(2))}." if clients else ""
    sentence = (
        f"The group hardly comes to rest, every second rebalance follows within {duration(gaps[len(gaps) // 2])}: "
        f"{_times(view, seen)} ({', '.join(f'{cause} {times}' for cause, times in causes.most_common(3))}).{by}"
    )
    advice = (
        f"Begin with the most frequent cause, {causes.most_common(1)[0][0]}; the other rebalances are often its echo: "
        "a member that waits for a rebalance does not commit and does not poll."
    )
    return _finding(view, "never_at_rest", seen, sentence, advice)


def poll_interval_exceeded(view: View) -> Finding | None:
    """A handler is slower than the client allows, so members leave and come back."""
    seen = view.of(Cause.POLL_INTERVAL_EXCEEDED)
    if not seen:
        return None
    gone = _gone(seen)
    limit = max((member.rebalance_timeout_ms or 0 for member in gone), default=0)
    longest = max(_longest_stop_ms(seen), limit)
    allowed = f" ({duration(limit)})" if limit else ""
    sentence = (
        f"{listed(named(member) for member in gone)} did not poll within max.poll.interval.ms{allowed} and had to "
        f"leave: {_times(view, seen)}. The handler takes longer than the client allows."
    )
    advice = (
        f"Set max.poll.interval.ms to {settings_value(2 * longest)} (twice the longest silence seen, "
        f"{duration(longest)}), or lower max.poll.records so that one poll's records are handled in time; "
        "or pause the partitions and go on polling while the handler works."
    )
    return _finding(view, "poll_interval_exceeded", seen, sentence, advice)


def session_expired(view: View) -> Finding | None:
    """Members went without a word: killed, frozen, or cut off."""
    seen = view.of(Cause.SESSION_EXPIRED)
    if not seen:
        return None
    gone = _gone(seen)
    session = min((member.session_timeout_ms for member in gone if member.session_timeout_ms), default=0)
    hosts = Counter(member.host for member in gone).most_common(1)
    where = f", most on {hosts[0][0].lstrip('/')} ({hosts[0][1]})" if hosts and hosts[0][1] >= _OFTEN else ""
    sentence = (
        f"{listed(named(member) for member in gone)} stopped heartbeating and expired: {_times(view, seen)}{where}. "
        f"Their partitions waited for the session timeout{f' of {duration(session)}' if session else ''} each time."
    )
    if 0 < session < _SHORT_SESSION_MS:
        advice = (
            f"session.timeout.ms is {settings_value(session)}: a pause of the process (garbage collection, a throttled "
            f"container) is taken for death. Set it to {_USUAL_SESSION_MS}, the default since Kafka 3.0."
        )
    else:
        advice = (
            "See whether the processes were killed (out of memory, kill -9 by a deploy that does not wait) or paused. "
            "Close consumers on SIGTERM: a member that leaves hands its partitions over at once."
        )
    return _finding(view, "session_expired", seen, sentence, advice)


def rolling_restart(view: View) -> Finding | None:
    """Deploys that move every partition, though the members come back."""
    seen = view.of(Cause.ROLLING_RESTART)
    if not seen:
        return None
    members = [change.member for each in seen for change in (*each.joined, *each.replaced)]
    if all(member.instance_id for member in members) and members:
        back = "the session timeout was shorter than the restart took"
        advice = (
            f"The members are static already, but {back}: set session.timeout.ms above the time a restart takes "
            f"(silences of up to {duration(_longest_stop_ms(seen))} were seen), within group.max.session.timeout.ms."
        )
    else:
        restart_ms = max(_longest_stop_ms(seen), 30_000)
        advice = (
            "Give each member a group.instance.id that survives the restart (a StatefulSet's pod name) and set "
            f"session.timeout.ms above the time a restart takes, such as {settings_value(2 * restart_ms)}: "
            "then a deploy causes no rebalance at all."
        )
    sentence = f"The group was restarted member by member, and rebalanced each time: {_times(view, seen)}."
    return _finding(view, "rolling_restart", seen, sentence, advice)


_WHY_IT_GOES: dict[Cause | None, str] = {
    Cause.POLL_INTERVAL_EXCEEDED: (
        "its handler is slower than max.poll.interval.ms allows; lower max.poll.records, or raise it"
    ),
    Cause.SESSION_EXPIRED: "it dies or stands still without leaving (kill -9, out of memory), and is restarted",
    Cause.LEFT: "it leaves in good order and is started again (a supervisor, a crash that still closes the consumer)",
}


def flapping(view: View) -> Finding | None:
    """One member comes and goes for ever."""
    seen = view.of(Cause.FLAPPING)
    if not seen:
        return None
    moves = Counter(
        (member.client_id, member.host)
        for each in seen
        for member in (*each.left, *(change.member for change in (*each.joined, *each.replaced)))
    )
    (client_id, host), _ = moves.most_common(1)[0] if moves else (("a member", "an unknown host"), 0)
    sentence = (
        f"The client {client_id!r} at {host.lstrip('/')} joins and goes again and again, and each time the whole group "
        f"rebalances: {_times(view, seen)}."
    )
    goes = Counter(each.alternatives[0].cause for each in seen if each.left and each.alternatives).most_common(1)
    why = _WHY_IT_GOES.get(goes[0][0] if goes else None, "it crashes and is restarted, or its handler is too slow")
    advice = (
        f"Look at that process first: {why}. "
        f"Until it is mended, stop it: the others rebalance {count(len(seen), 'time')} for it."
    )
    return _finding(view, "flapping", seen, sentence, advice)


def departures(view: View) -> Finding | None:
    """Members leave and join by their own will so often that it hurts: an autoscaler, short-lived jobs."""
    seen = view.of(Cause.LEFT, Cause.JOINED)
    if len(seen) < 2 * _OFTEN or not _is_dense(seen):
        return None
    joined = sum(len(each.joined) for each in seen)
    left = sum(len(each.left) for each in seen)
    sentence = f"Members come and go by themselves, {joined} joined and {left} left: {_times(view, seen)}."
    at_once = _joins_at_once(seen)
    if at_once >= _OFTEN:
        advice = (
            f"{at_once} joins came within {duration(_SCALED_AT_ONCE_MS)} of the one before: start members together and "
            "raise group.initial.rebalance.delay.ms on the broker, so that one rebalance takes them all in."
        )
    else:
        advice = (
            "Let the autoscaler wait longer between steps (a cooldown above the time a rebalance costs), and use "
            "cooperative-sticky or group.protocol=consumer, with which the partitions that stay are not stopped."
        )
    return _finding(view, "members_come_and_go", seen, sentence, advice)


def _is_dense(rebalances: Sequence[Rebalance]) -> bool:
    """Whether they come within an hour of each other, on average."""
    span_ms = rebalances[-1].at_ms - rebalances[0].at_ms
    return span_ms <= _HOUR_MS * (len(rebalances) - 1)


def _joins_at_once(rebalances: Sequence[Rebalance]) -> int:
    joins = [each.at_ms for each in rebalances if each.cause is Cause.JOINED and each.phase == 1]
    return sum(later - earlier <= _SCALED_AT_ONCE_MS for earlier, later in pairwise(joins))


# --------------------------------------------------------------------------------------- rules: how it rebalances


def stops_the_world(view: View) -> Finding | None:
    """An eager assignor stops partitions that do not move."""
    latest = view.latest
    if latest is None or latest.protocol not in _EAGER or len(view.rebalances) < _OFTEN:
        return None
    stopped = kept = 0
    for each in view.rebalances:
        moved = {(move.topic, move.partition) for move in each.moved}
        stopped += len(each.stopped_ms)
        kept += sum((topic, partition) not in moved for topic, partition, _ in each.stopped_ms)
    if kept < _OFTEN or kept * 4 < stopped:
        return None
    sentence = (
        f"The assignor {latest.protocol!r} stops all partitions in every rebalance: of {stopped} stops, {kept} were of "
        f"partitions that stayed with their member ({_times(view, view.rebalances)})."
    )
    advice = (
        "Set partition.assignment.strategy to cooperative-sticky (first to both, deploy, then to it alone), or "
        "group.protocol=consumer on Kafka 4.0 and newer: partitions that stay are not stopped."
    )
    return _finding(view, "stops_the_world", view.rebalances, sentence, advice)


def _assignor(view: View) -> str | None:
    """The latest that is known: a generation without members has none."""
    return next((each.protocol for each in reversed(view.generations) if each.protocol), None)


def needless_moves(view: View) -> Finding | None:
    """Partitions move though their owner stays."""
    latest = view.latest
    moves = [move for each in view.rebalances for move in each.moved]
    needless = sum(move.needless for move in moves)
    if latest is None or needless < _OFTEN or needless * 4 < len(moves):
        return None
    seen = [each for each in view.rebalances if any(move.needless for move in each.moved)]
    sentence = (
        f"{needless} of {len(moves)} moves of partitions were needless: their member stayed, and an even assignment "
        f"was possible without ({_times(view, seen)}; assignor {_assignor(view)!r})."
    )
    advice = "Use cooperative-sticky, which keeps what it can with its member; caches and state then stay warm."
    return _finding(view, "needless_moves", seen, sentence, advice)


def leader_rejoins(view: View) -> Finding | None:
    """Rebalances for which no member came or went."""
    seen = view.of(Cause.LEADER_REJOINED, Cause.SUBSCRIPTION_CHANGED)
    if len(seen) < _OFTEN:
        return None
    sentence = f"Members joined anew though none came or went: {_times(view, seen)}."
    if any(each.cause is Cause.SUBSCRIPTION_CHANGED for each in seen):
        advice = (
            "Members change their subscriptions. If two versions of a program subscribe to different topics in one "
            "group, give each its own group.id."
        )
    else:
        advice = (
            "Look for calls of enforceRebalance(), for rack ids that change, and for clients whose list of topics "
            "flickers (a pattern that matches short-lived topics)."
        )
    return _finding(view, "rejoins", seen, sentence, advice)


def coordinator_moves(view: View) -> Finding | None:
    """The broker that coordinates the group changes often."""
    seen = view.of(Cause.COORDINATOR_MOVED)
    if not seen:
        return None
    sentence = f"The group's coordinator moved to another broker, and a rebalance followed: {_times(view, seen)}."
    advice = (
        "Members that find the new coordinator within session.timeout.ms keep their partitions. If brokers were "
        f"restarted in turn, set it above the time a restart takes; {_USUAL_SESSION_MS} is the default."
    )
    return _finding(view, "coordinator_moved", seen, sentence, advice)


def session_above_poll_interval(view: View) -> Finding | None:
    """A dead member is noticed later than a slow one."""
    latest = view.latest
    wrong = [
        member
        for member in (latest.members if latest else ())
        if (member.session_timeout_ms or 0) > (member.rebalance_timeout_ms or (member.session_timeout_ms or 0))
    ]
    if not wrong or latest is None:
        return None
    member = wrong[0]
    sentence = (
        f"{listed(named(each) for each in wrong)} asked for session.timeout.ms {member.session_timeout_ms}, above "
        f"max.poll.interval.ms {member.rebalance_timeout_ms}: a dead process is noticed later than a slow handler."
    )
    advice = f"Set session.timeout.ms below max.poll.interval.ms; the defaults are {_USUAL_SESSION_MS} and 300000."
    return Finding(view.group, "session_above_poll_interval", latest.started_ms, sentence, 0.0, advice)


# ------------------------------------------------------------------------------------------ rules: offsets and lag


def lost_records(view: View) -> Finding | None:
    """Retention was faster than the group."""
    lost = [each for each in view.lag_now if each.lost_records]
    if not lost:
        return None
    worst = max(lost, key=lambda each: each.lost_records)
    sentence = (
        f"Retention has removed {sum(each.lost_records for each in lost)} records that the group had not read, most in "
        f"{worst.topic}-{worst.partition} ({worst.lost_records}): it has committed {worst.committed_offset}, the log "
        f"begins at {worst.log_start_offset}."
    )
    advice = "Raise the topic's retention.ms or retention.bytes, or the group's throughput; what is gone stays gone."
    return Finding(view.group, "lost_records", worst.committed_ms, sentence, 0.0, advice)


def beyond_the_end(view: View) -> Finding | None:
    """Committed offsets that the log does not have: the topic was made anew, or its log was cut off."""
    wrong = [each for each in view.lag_now if each.committed_offset > each.log_end_offset]
    if not wrong:
        return None
    worst = wrong[0]
    sentence = (
        f"The committed offset {worst.committed_offset} of {worst.topic}-{worst.partition} lies beyond the log's end "
        f"{worst.log_end_offset} ({count(len(wrong), 'partition')}): the topic was created again, or its log cut off."
    )
    advice = (
        "Reset the group's offsets to where it should go on (kafka-consumer-groups --reset-offsets); else its members "
        "apply auto.offset.reset, or wait until the log has grown past it and skip what came before."
    )
    return Finding(view.group, "committed_beyond_end", worst.committed_ms, sentence, 0.0, advice)


def stuck(view: View) -> Finding | None:
    """Partitions that wait while others of the group go on."""
    now = view.lag_now
    newest = max((each.committed_ms for each in now), default=0)
    waiting = [each for each in now if each.lag_records and newest - each.committed_ms > _STUCK_MS]
    if not waiting:
        return None
    worst = min(waiting, key=lambda each: each.committed_ms)
    sentence = (
        f"{count(len(waiting), 'partition')} of {len(now)} have records and were not committed while others were, "
        f"{worst.topic}-{worst.partition} for {duration(newest - worst.committed_ms)} ({worst.lag_records} behind)."
    )
    advice = (
        "A record that cannot be handled, a paused partition, or one of which no member takes care: look at the record "
        f"at offset {worst.committed_offset}."
    )
    seconds = sum(newest - each.committed_ms for each in waiting) / 1_000
    span_ms = max(view.now_ms - worst.committed_ms, _HOUR_MS)
    return Finding(view.group, "stuck", worst.committed_ms, sentence, round(seconds * _DAY_MS / span_ms, 1), advice)


def offsets_expire(view: View) -> Finding | None:
    """Offsets that will be gone soon, and with them the place to go on from."""
    soon = [
        each
        for each in view.lag_now
        if each.expires_ms is not None and each.expires_ms - view.now_ms < _EXPIRES_SOON_MS
    ]
    if not soon:
        return None
    first = min(each.expires_ms or 0 for each in soon)
    left = duration(first - view.now_ms) if first > view.now_ms else "no time"
    sentence = (
        f"Committed offsets of {count(len(soon), 'partition')} expire, the first in {left}: no member of the "
        f"group reads {listed(sorted({each.topic for each in soon}))} now."
    )
    advice = (
        "Start a member, or commit again, before that; or raise offsets.retention.minutes on the brokers. A group "
        "whose offsets are gone begins by auto.offset.reset: all over, or with a gap."
    )
    return Finding(view.group, "offsets_expire", soon[0].committed_ms, sentence, 0.0, advice)


def rewinds(view: View) -> Finding | None:
    """Offsets that were set back."""
    seen = [note for note in view.notes if note.kind == "rewind"]
    if not seen:
        return None
    worst = max(seen, key=lambda note: note.previous_offset - note.offset)
    again = sum(note.previous_offset - note.offset for note in seen)
    sentence = (
        f"Committed offsets went back {count(len(seen), 'time')}, most in {worst.topic}-{worst.partition}, from "
        f"{worst.previous_offset} to {worst.offset}: {again} records are handled again."
    )
    advice = (
        "If no operator reset them, an owner that had lost its partition committed late, or a member began below its "
        "group's offset: commit in on_partitions_revoked, and only what was handled."
    )
    return Finding(view.group, "rewinds", seen[0].at_ms, sentence, 0.0, advice)


def commits_by_others(view: View) -> Finding | None:
    """Two programs with one group id, of which one assigns its partitions by hand."""
    seen = [note for note in view.notes if note.kind == "non_member"]
    if not seen or not any(each.members for each in view.generations):
        return None
    places = listed(sorted({f"{note.topic}-{note.partition}" for note in seen}))
    sentence = f"A client that is no member commits to the group, {count(len(seen), 'time')}: {places}."
    advice = "Give the program that assigns partitions by hand a group.id of its own: the two overwrite each other."
    return Finding(view.group, "commits_by_others", seen[0].at_ms, sentence, 0.0, advice)


RULES: tuple[Rule, ...] = (
    never_at_rest,
    poll_interval_exceeded,
    session_expired,
    rolling_restart,
    flapping,
    departures,
    stops_the_world,
    needless_moves,
    leader_rejoins,
    coordinator_moves,
    session_above_poll_interval,
    lost_records,
    beyond_the_end,
    stuck,
    offsets_expire,
    rewinds,
    commits_by_others,
)
