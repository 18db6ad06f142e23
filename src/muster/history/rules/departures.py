"""Why a member is gone: it left, its session expired, or it exceeded its poll interval.

The log does not say. What it has is when the member last committed, and what the two time-outs are; what clients do
before they go leaves its trace there:

- A member that **closes** commits (with auto-commit, as its last act) and leaves: the rebalance begins at once.
- A member that **dies** goes on committing until then. Its session ends a session timeout after its last heartbeat;
in the
  classic protocol a commit counts as one. So a member that committed less than its session timeout before the rebalance
  began cannot have expired: that is proof.
- A member whose **handler takes too long** sends heartbeats meanwhile, from another thread, but commits nothing new.
After
  max.poll.interval.ms (its rebalance timeout, in the record) that thread leaves the group: the silence is as long as
  that, give or take its commit interval. Members with an instance id do not leave then (KIP-345): they stop their
  heartbeats, so it takes a session timeout more.
- A **static** member that closes does not leave either: it expires. If it goes earlier, an operator removed it.
- A KIP-848 member that exceeds its poll interval, or was fenced, comes back under the same id; a process started anew
has
  a new one.

Silence is measured to when the rebalance began, which the log does not have either: it has when all had joined (the
others may take long for that) and until when the others committed, which they do not do for long once they rejoin.
The earlier of the two is taken, unless the rebalance may have begun for another reason: another member went, or one
came, and the rebalance then waited for the one that was dead. A KIP-848 group waits for no member; its epoch's record
is when it began.

What makes silence say less:

- Members that commit rarely (by hand, after large batches): their longest gap between commits says how much.
- A topic at rest: the others fall silent as well. That looks like a rebalance that began then and waited for a slow
  member, up to a poll interval. Where no other member got on (it stands still too, or there is none), silence is
  no proof of death: whatever it fits is a guess.
- Partitions at rest while others are not: a client that commits only what it handled falls silent with them. Whether
  they had records shows afterwards, when their next owner gets on with what has come meanwhile (`unproven`): until it
  does, whatever the silence fits is a guess; where it does not for as long, the silence shows nothing.
- A member that commits nothing, as on a topic at rest, shows nothing at all once it has been there for a session: it is
  gone (`MEMBER_GONE`), and that is all that can be said.
- Commits within transactions do not renew a session, so a member may expire a heartbeat sooner after one. The records
  do not show which commits are such.
"""

from __future__ import annotations

from dataclasses import replace

from muster.history.model import Alternative, Cause, Member, fixed
from muster.history.rules.commit_times import NEVER, Signs
from muster.history.rules.wording import duration, named

DEFAULT_COMMIT_INTERVAL_MS = 5_000
"""auto.commit.interval.ms of all known clients, of members that have not shown theirs."""
DEFAULT_HEARTBEAT_MS = 3_000
GUESS = 0.6
"""A cause with less confidence than this is a guess."""
UNPROVEN = 0.55
"""A cause that rests on a silence of which it is not known whether there was anything to commit."""
GROUP_HEARTBEAT_MS = 5_000
"""group.consumer.heartbeat.interval.ms by default, of KIP-848's members."""

BROKER_LOG = (
    "the coordinator's log: 'Member … has failed, removing it' when its session expired, 'has left group … through "
    "explicit LeaveGroup' with a reason when it left"
)
AT_REST = "whether its topics were written to in that time: if not, the others had nothing to commit; " + BROKER_LOG
IN_TRANSACTIONS = "whether it commits within transactions, which do not renew a session; " + BROKER_LOG
CLIENT_LOG = "the client's log: 'consumer poll timeout has expired' when its handler took too long"
LATE_OR_DEAD = (
    "whether the process lived on: the client logs 'consumer poll timeout has expired' if it does; a commit interval "
    "shorter than the difference between max.poll.interval.ms and session.timeout.ms tells them apart in the records"
)


@fixed
class Circumstances:
    """What is known of a member that is gone; times are of the group's clock."""

    member: Member
    signs: Signs
    joined_ms: int
    """When it was last known to be alive but for its commits: the generation before was there."""
    began_by_ms: int
    """When all had joined the new generation; when the epoch was bumped (KIP-848)."""
    session_ms: int | None
    poll_ms: int | None
    others_until_ms: int = NEVER
    """Until when those that stayed went on committing; -1 if that says nothing."""
    others_gap_ms: int = NEVER
    """How far apart their commits are."""
    others_moved_on_ms: int = NEVER
    """When any of those that stayed last committed another offset, whatever made the rebalance begin."""
    before_it_ms: int = NEVER
    """When any of its partitions was last committed, by former owners too."""
    commits_renew_session: bool = True
    """Classic protocol."""
    took_leave: bool = False
    """A static KIP-848 member that said it would be back."""
    is_replaced: bool = False
    """Another of its name came in the same rebalance, in which a classic group waits for one that is dead."""


@fixed
class Departure:
    """A member that is gone, and why."""

    member: Member
    cause: Cause
    confidence: float
    evidence: str
    alternatives: tuple[Alternative, ...]
    triggered_ms: int
    """About when that made the group rebalance."""
    silent_ms: int
    """How long nothing was heard of it before."""

    @property
    def is_guess(self) -> bool:
        """Why it is gone is little more than guessed, if it is said at all."""
        return self.confidence < GUESS or self.cause is Cause.MEMBER_GONE

    @property
    def rests_on_silence(self) -> bool:
        """It is taken for gone without a word, as it had been silent for long enough. Static members never leave."""
        silent = self.cause in (Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED)
        return silent and self.confidence >= GUESS and self.member.instance_id is None

    def unproven(self, *, is_over: bool) -> Departure:
        """The same, where no other member got on with its partitions: they had no records, perhaps. `is_over`: not for
        as long as this one had been silent, so that its silence shows nothing."""
        if is_over:
            told = "No other member got on with its partitions for as long afterwards: they may have had no records."
            cause, confidence, alternatives = _UNKNOWN
        else:
            told = "It is too soon to see whether its partitions had records."
            also = () if _LEFT.cause in {each.cause for each in self.alternatives} else (_LEFT,)
            cause, confidence, alternatives = self.cause, UNPROVEN, (*self.alternatives, *also)
        evidence = f"{self.evidence} {told}"
        return replace(self, cause=cause, confidence=confidence, evidence=evidence, alternatives=alternatives)


@fixed
class _Silence:
    """How long a member was silent before it was gone, beside its time-outs."""

    ms: int
    gap_ms: int
    slack_ms: int
    heartbeat_ms: int
    session_ms: int
    poll_ms: int
    has_commits: bool
    is_regular: bool
    is_proof: bool
    """It was too short for an expired session."""
    is_close: bool
    """Proof, unless the commits were of transactions."""
    at_rest: bool
    """Nothing shows that there were records then: no member that stayed got on much longer than this one."""
    is_new: bool
    """It has not committed since it got partitions that others had committed until then."""

    @property
    def is_short(self) -> bool:
        """As of a member that committed as it left."""
        return self.ms <= self.gap_ms + self.slack_ms

    @property
    def tells_little(self) -> bool:
        """Of a member whose commits are farther apart than what the two time-outs differ by."""
        return not self.is_regular and self.gap_ms >= abs(self.poll_ms - self.session_ms)

    @property
    def fits_session(self) -> bool:
        return not self.is_proof and self.ms <= self.session_ms + self.gap_ms + self.slack_ms

    @property
    def fits_poll(self) -> bool:
        within = self.gap_ms + 500
        return self.poll_ms - within <= self.ms <= self.poll_ms + within + self.slack_ms


def departure(found: Circumstances) -> Departure:
    """Why a member is gone, by its last signs of life."""
    silence = _silence(found)
    cause, confidence, alternatives = _judge(found, silence)
    last = found.began_by_ms - silence.ms
    waits = {Cause.SESSION_EXPIRED: silence.session_ms, Cause.POLL_INTERVAL_EXCEEDED: silence.poll_ms}
    triggered = min(found.began_by_ms, last + waits.get(cause, min(silence.gap_ms, 1_000)))
    evidence = _sentence(found, silence, cause)
    return Departure(found.member, cause, confidence, evidence, alternatives, triggered, silence.ms)


def _silence(found: Circumstances) -> _Silence:
    signs, session, poll = found.signs, found.session_ms or 45_000, found.poll_ms or 300_000
    static = found.member.instance_id is not None
    heartbeat = min(DEFAULT_HEARTBEAT_MS, session // 3)
    last = max(signs.last_ms, found.joined_ms)
    gap = signs.longest_gap_ms if signs.longest_gap_ms >= 0 else DEFAULT_COMMIT_INTERVAL_MS
    began = found.began_by_ms
    shows = found.others_until_ms >= last and 0 <= found.others_gap_ms <= session // 2
    shows &= began - found.others_until_ms <= poll + heartbeat + 1_000
    if shows:
        began = min(began, found.others_until_ms + found.others_gap_ms + heartbeat)
    ms = max(0, began - last)
    is_regular = signs.commits >= 3 and gap <= session // 2
    renewed = 0 if found.commits_renew_session else heartbeat + 2_000
    return _Silence(
        ms=ms,
        gap_ms=min(gap, max(session, poll)),
        slack_ms=heartbeat + 1_000,
        heartbeat_ms=heartbeat,
        session_ms=session,
        poll_ms=poll + (session if static and found.commits_renew_session else 0),
        has_commits=signs.commits > 0,
        is_regular=is_regular,
        is_proof=ms < session - renewed,
        is_close=found.commits_renew_session and session - heartbeat <= ms < session,
        at_rest=found.others_moved_on_ms <= last + session // 2,
        is_new=not signs.commits and bool(found.member.assignment) and found.before_it_ms >= found.joined_ms - session,
    )


_Judged = tuple[Cause, float, tuple[Alternative, ...]]
_LEFT = Alternative(Cause.LEFT, BROKER_LOG)
_EXPIRED = Alternative(Cause.SESSION_EXPIRED, BROKER_LOG)
_LATE = Alternative(Cause.POLL_INTERVAL_EXCEEDED, CLIENT_LOG)
_UNKNOWN: _Judged = (Cause.MEMBER_GONE, 0.95, (_LEFT, _EXPIRED, _LATE))
"""That it is gone is certain; why is not even likely."""


def _judge(found: Circumstances, silence: _Silence) -> _Judged:
    if found.took_leave:
        return _took_leave(found.began_by_ms - found.joined_ms, silence.session_ms)
    if silence.is_proof:
        return _did_not_expire(found, silence)
    if not silence.has_commits:
        return _without_commits(found, silence)
    if silence.fits_session and silence.fits_poll:
        nearer_poll = abs(silence.ms - silence.poll_ms) < abs(silence.ms - silence.session_ms)
        first, second = (Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED)
        if nearer_poll and not (silence.tells_little and abs(silence.ms - silence.poll_ms) > 1_000):
            first, second = second, first
        return first, 0.55 if silence.is_regular else 0.5, (Alternative(second, LATE_OR_DEAD), _LEFT)
    sure = silence.is_regular and not silence.at_rest
    if silence.fits_session:
        return Cause.SESSION_EXPIRED, 0.9 if sure else 0.8 if found.is_replaced else 0.55, (_LEFT,)
    if silence.fits_poll:
        return Cause.POLL_INTERVAL_EXCEEDED, 0.9 if sure else 0.5, (_EXPIRED,) if sure else (_LEFT, _EXPIRED)
    return _beyond(silence, sure)


def _took_leave(away_ms: int, session_ms: int) -> _Judged:
    """Of a static member of KIP-848, whose session goes on as of its last heartbeat, not as of its leave."""
    if away_ms >= session_ms:
        return Cause.SESSION_EXPIRED, 0.95, ()
    if away_ms >= session_ms - min(GROUP_HEARTBEAT_MS, session_ms // 2):
        return Cause.SESSION_EXPIRED, 0.7, (_LEFT,)
    return Cause.LEFT, 0.9, ()


def _beyond(silence: _Silence, sure: bool) -> _Judged:
    """Silence that fits none of the two time-outs."""
    if sure and silence.ms > silence.poll_ms:
        return Cause.POLL_INTERVAL_EXCEEDED, 0.45, (_EXPIRED, _LEFT)
    if sure:
        return Cause.SESSION_EXPIRED, 0.5, (_LEFT, _LATE)
    return _UNKNOWN


def _did_not_expire(found: Circumstances, silence: _Silence) -> _Judged:
    others_waited = found.began_by_ms - found.others_until_ms
    if silence.at_rest and found.others_until_ms >= 0 and others_waited >= silence.session_ms:
        return Cause.LEFT, 0.55, (replace(_EXPIRED, told_apart_by=AT_REST),)
    still = found.began_by_ms - found.signs.moved_on_ms
    late = silence.poll_ms - silence.gap_ms - 500 <= still
    if silence.fits_poll and not silence.is_short:
        return Cause.POLL_INTERVAL_EXCEEDED, 0.75 if silence.is_regular else 0.5, (_LEFT,)
    if silence.has_commits and late and found.signs.moved_on_ms >= 0:
        return Cause.LEFT, 0.7 if found.commits_renew_session else 0.55, (_LATE,)
    if silence.is_short:
        return Cause.LEFT, 0.95 if silence.has_commits else 0.85, ()
    if silence.is_close and found.is_replaced:
        return Cause.SESSION_EXPIRED, 0.55, (_LEFT,)
    if silence.is_close:
        return Cause.LEFT, 0.55, (replace(_EXPIRED, told_apart_by=IN_TRANSACTIONS), _LATE)
    return Cause.LEFT, 0.8, (_LATE,) if silence.ms >= silence.poll_ms // 2 else ()


def _without_commits(found: Circumstances, silence: _Silence) -> _Judged:
    if found.member.instance_id is not None:
        return Cause.SESSION_EXPIRED, 0.7, (_LEFT,)
    if silence.is_new and silence.fits_session:
        sure = not silence.at_rest and silence.ms >= silence.session_ms
        return Cause.SESSION_EXPIRED, 0.6 if sure else 0.55, (_LEFT, _LATE)
    return _UNKNOWN


def _sentence(found: Circumstances, silence: _Silence, cause: Cause) -> str:
    name, silent = named(found.member), duration(silence.ms)
    session, poll = duration(silence.session_ms), duration(found.poll_ms or silence.poll_ms)
    if found.took_leave and cause is Cause.SESSION_EXPIRED:
        return f"{name} took leave as a static member, and was not back within its session timeout of {session}."
    if found.took_leave:
        away = duration(found.began_by_ms - found.joined_ms)
        return f"{name} took leave as a static member, and was removed {away} later; its session timeout is {session}."
    heard = f"last committed {silent} before" if silence.has_commits else f"never committed in the {silent} before"
    if cause is Cause.SESSION_EXPIRED:
        return f"{name} {heard} the rebalance began; its session timeout is {session} (poll interval {poll})."
    if cause is Cause.POLL_INTERVAL_EXCEEDED:
        return f"{name} {heard} the rebalance began; its poll interval is {poll} (session timeout {session})."
    if silence.is_proof:
        unless = "unless it commits within transactions, " if silence.is_close and not silence.is_short else ""
        told = f"less than its session timeout of {session}: {unless}it did not expire."
        return f"{name} {heard} the rebalance began, {told}"
    rest = " The other members got no further either." if silence.at_rest and found.others_moved_on_ms >= 0 else ""
    return f"{name} {heard} the rebalance began, longer than its session timeout of {session}.{rest}"
