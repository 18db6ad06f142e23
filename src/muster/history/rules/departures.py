"""Why a member is gone: it left, its session expired, or it exceeded its poll interval.

The log does not say. It has the time of the member's last commit and its two timeouts; what clients do before they
disappear leaves traces there:

- A member that **closes** commits (with auto-commit, as its last action) and leaves: the rebalance begins immediately.
- A member that **dies** commits until then. Its session expires a session timeout after its last heartbeat; in the
  classic protocol a commit counts as one. So a member that committed less than its session timeout before the rebalance
  began cannot have expired: that is proof.
- A member whose **handler takes too long** keeps sending heartbeats from another thread, but commits nothing new. After
  max.poll.interval.ms (its rebalance timeout in the record) that thread leaves the group: the silence lasts that long,
  give or take its commit interval. Static members do not leave then (KIP-345): they stop sending heartbeats, so it
  takes another session timeout.
- A **static** member that closes does not leave either: it expires. If it is gone earlier, an operator removed it.
- A KIP-848 member that exceeds its poll interval, or was fenced, returns under the same id; a restarted process has a
  new one.

Silence is measured up to the start of the rebalance, which is not in the log either. The log has the time when all
members had joined (which may take the others long) and the last commits of the others, which stop soon after they
rejoin. The earlier of the two is used, unless the rebalance may have begun for another reason: another member left or
joined, and the rebalance then waited for the dead one. A KIP-848 group does not wait for members; the record of its
epoch is the start.

Silence shows less if:

- Members commit rarely (manually, after large batches): their longest gap between commits is taken into account.
- A topic has no traffic: the others fall silent as well. That looks like a rebalance that began then and waited for a
  slow member, up to a poll interval. If no other member made progress (it stalls too, or there is none), silence does
  not prove death: any cause that it fits is a guess.
- Some partitions have no traffic while others do: a client that commits only what it processed falls silent with them.
  Whether they had records shows afterwards, when their next owner processes what has arrived since (`unproven`): until
  then, any cause that the silence fits is a guess; if that owner is silent for as long, the silence shows nothing.
- A member commits nothing, as on a topic without traffic. Once it has been a member for a session timeout, nothing can
  be inferred except that it is gone (`MEMBER_GONE`).
- The last commit was made in a transaction (TxnOffsetCommit). It comes from a producer, so it proves less about the
  member than an OffsetCommit does. It does not renew the member's session. It need not even name a member: producers
  that predate KIP-447, such as aiokafka's, send only the group's name, and the log does not show which process sent it.
  But the producer usually lives in the member's process, whose consumer sends heartbeats at the same time: the last one
  was at most a heartbeat interval older. So a session can expire that much sooner after such a commit, but not earlier.
  The interval is not in the log. It is assumed to be 3 s, the default; because it may be up to a third of the session
  timeout (Kafka's documentation advises against more), an expired session is listed as an alternative beyond that. An
  aborted transaction, such as one during which its member was killed, is not read: the silence then begins with the
  last transaction that was committed.
- It is not known how the last commit was made (an entry from an older file): within a heartbeat interval of its session
  timeout, it may have left or expired.
"""

from __future__ import annotations

from dataclasses import replace

from muster.history.model import Alternative, Cause, How, Member, fixed
from muster.history.rules.commit_times import NEVER, Signs
from muster.history.rules.wording import duration, named

DEFAULT_COMMIT_INTERVAL_MS = 5_000
"""auto.commit.interval.ms of all known clients, for members whose interval has not been seen."""
DEFAULT_HEARTBEAT_MS = 3_000
GUESS = 0.6
"""A cause with lower confidence than this is a guess."""
UNPROVEN = 0.55
"""The confidence of a cause inferred from silence while there may have been nothing to commit."""
GROUP_HEARTBEAT_MS = 5_000
"""The default of group.consumer.heartbeat.interval.ms (KIP-848)."""

BROKER_LOG = (
    "the coordinator's log: 'Member … has failed, removing it' if the session expired, 'has left group … through "
    "explicit LeaveGroup' with a reason if the member left"
)
AT_REST = "whether its topics were written to in that time (if not, the others had nothing to commit); " + BROKER_LOG
IN_TRANSACTIONS = "whether it commits within transactions, which do not renew a session; " + BROKER_LOG
RARE_HEARTBEATS = "the member's heartbeat.interval.ms, because its commits do not renew its session; " + BROKER_LOG
CLIENT_LOG = "the client's log: 'consumer poll timeout has expired' if the handler took too long"
LATE_OR_DEAD = (
    "whether the process survived: if so, the client logs 'consumer poll timeout has expired'; the records show it "
    "if the commit interval is shorter than the difference between max.poll.interval.ms and session.timeout.ms"
)


@fixed
class Circumstances:
    """What is known about a member that is gone; times are by the group's clock."""

    member: Member
    signs: Signs
    joined_ms: int
    """When it was last known to be alive apart from its commits: when the previous generation began."""
    began_by_ms: int
    """When all members had joined the new generation; when the epoch was bumped (KIP-848)."""
    session_ms: int | None
    poll_ms: int | None
    others_until_ms: int = NEVER
    """Until when the remaining members committed; -1 if that shows nothing."""
    others_gap_ms: int = NEVER
    """The interval of their commits."""
    others_moved_on_ms: int = NEVER
    """When any remaining member last committed a new offset, whatever triggered the rebalance."""
    before_it_ms: int = NEVER
    """When any of its partitions was last committed, including by former owners."""
    commits_renew_session: bool = True
    """Classic protocol, for commits that are not made in a transaction."""
    took_leave: bool = False
    """A static KIP-848 member that announced a temporary leave."""
    is_replaced: bool = False
    """Another with its name joined in the same rebalance, in which a classic group waits for dead members."""


@fixed
class Departure:
    """A member that is gone, and why."""

    member: Member
    cause: Cause
    confidence: float
    evidence: str
    alternatives: tuple[Alternative, ...]
    triggered_ms: int
    """About when that triggered the rebalance."""
    silent_ms: int
    """How long it was silent before."""

    @property
    def is_guess(self) -> bool:
        """Whether the cause is only a guess, or not known."""
        return self.confidence < GUESS or self.cause is Cause.MEMBER_GONE

    @property
    def rests_on_silence(self) -> bool:
        """Whether the cause is inferred from long silence alone. Static members never leave."""
        silent = self.cause in (Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED)
        return silent and self.confidence >= GUESS and self.member.instance_id is None

    def unproven(self, *, is_over: bool) -> Departure:
        """The departure with less confidence: no other member has progressed on its partitions, which perhaps had no
        records. `is_over`: this has lasted as long as the member's silence, which therefore shows nothing."""
        if is_over:
            doubt = "No other member progressed on its partitions for as long afterwards: they may have had no records."
            cause, confidence, alternatives = _UNKNOWN
        else:
            doubt = "It is too early to see whether its partitions had records."
            also = () if _LEFT.cause in {each.cause for each in self.alternatives} else (_LEFT,)
            cause, confidence, alternatives = self.cause, UNPROVEN, (*self.alternatives, *also)
        evidence = f"{self.evidence} {doubt}"
        return replace(self, cause=cause, confidence=confidence, evidence=evidence, alternatives=alternatives)


@fixed
class _Silence:
    """How long a member was silent before it was gone, compared with its timeouts."""

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
    """It is proof, with one doubt left: whether the last commit was made in a transaction, if that is not known; if it
    was, whether the member sends heartbeats as often as by default."""
    in_transaction: bool
    """It began with a commit in a transaction, which did not renew the session."""
    at_rest: bool
    """Nothing shows that there were records then: no remaining member progressed much longer than this one."""
    is_new: bool
    """It has not committed since it was assigned partitions that others had committed until then."""

    @property
    def is_short(self) -> bool:
        """It fits a member that committed when it left."""
        return self.ms <= self.gap_ms + self.slack_ms

    @property
    def shows_little(self) -> bool:
        """The member's commits are further apart than the two timeouts."""
        return not self.is_regular and self.gap_ms >= abs(self.poll_ms - self.session_ms)

    @property
    def fits_session(self) -> bool:
        return not self.is_proof and self.ms <= self.session_ms + self.gap_ms + self.slack_ms

    @property
    def fits_poll(self) -> bool:
        within = self.gap_ms + 500
        return self.poll_ms - within <= self.ms <= self.poll_ms + within + self.slack_ms


def departure(found: Circumstances) -> Departure:
    """Why a member is gone, inferred from its last signs of life."""
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
    slack = heartbeat + 1_000
    how = signs.last_how if signs.last_ms >= found.joined_ms else How.UNKNOWN
    how = how if found.commits_renew_session else How.PLAIN
    renewed = slack if how is How.TRANSACTIONAL else 0 if found.commits_renew_session else heartbeat + 2_000
    doubtful = {How.UNKNOWN: heartbeat, How.TRANSACTIONAL: session // 3, How.PLAIN: 0}[how]
    is_proof = ms < session - renewed
    return _Silence(
        ms=ms,
        gap_ms=min(gap, max(session, poll)),
        slack_ms=slack,
        heartbeat_ms=heartbeat,
        session_ms=session,
        poll_ms=poll + (session if static and found.commits_renew_session else 0),
        has_commits=signs.commits > 0,
        is_regular=is_regular,
        is_proof=is_proof,
        is_close=is_proof and ms >= session - doubtful,
        in_transaction=how is How.TRANSACTIONAL,
        at_rest=found.others_moved_on_ms <= last + session // 2,
        is_new=not signs.commits and bool(found.member.assignment) and found.before_it_ms >= found.joined_ms - session,
    )


_Judged = tuple[Cause, float, tuple[Alternative, ...]]
_LEFT = Alternative(Cause.LEFT, BROKER_LOG)
_EXPIRED = Alternative(Cause.SESSION_EXPIRED, BROKER_LOG)
_LATE = Alternative(Cause.POLL_INTERVAL_EXCEEDED, CLIENT_LOG)
_UNKNOWN: _Judged = (Cause.MEMBER_GONE, 0.95, (_LEFT, _EXPIRED, _LATE))
"""It is certain that it is gone; no reason is likelier than another."""


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
        if nearer_poll and not (silence.shows_little and abs(silence.ms - silence.poll_ms) > 1_000):
            first, second = second, first
        return first, 0.55 if silence.is_regular else 0.5, (Alternative(second, LATE_OR_DEAD), _LEFT)
    sure = silence.is_regular and not silence.at_rest
    if silence.fits_session:
        return Cause.SESSION_EXPIRED, 0.9 if sure else 0.8 if found.is_replaced else 0.55, (_LEFT,)
    if silence.fits_poll:
        return Cause.POLL_INTERVAL_EXCEEDED, 0.9 if sure else 0.5, (_EXPIRED,) if sure else (_LEFT, _EXPIRED)
    return _beyond(silence, sure)


def _took_leave(away_ms: int, session_ms: int) -> _Judged:
    """For a static KIP-848 member, whose session runs from its last heartbeat, not from its leave."""
    if away_ms >= session_ms:
        return Cause.SESSION_EXPIRED, 0.95, ()
    if away_ms >= session_ms - min(GROUP_HEARTBEAT_MS, session_ms // 2):
        return Cause.SESSION_EXPIRED, 0.7, (_LEFT,)
    return Cause.LEFT, 0.9, ()


def _beyond(silence: _Silence, sure: bool) -> _Judged:
    """Silence that fits neither of the two timeouts."""
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
        apart = RARE_HEARTBEATS if silence.in_transaction else IN_TRANSACTIONS
        return Cause.LEFT, 0.55, (replace(_EXPIRED, told_apart_by=apart), _LATE)
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
        return f"{name} left temporarily as a static member and did not return within its session timeout of {session}."
    if found.took_leave:
        away = duration(found.began_by_ms - found.joined_ms)
        return (
            f"{name} left temporarily as a static member and was removed {away} later; "
            f"its session timeout is {session}."
        )
    last = f"last committed {silent} before" if silence.has_commits else f"did not commit in the {silent} before"
    if silence.in_transaction:
        last = f"last committed, in a transaction, {silent} before"
    if cause is Cause.SESSION_EXPIRED:
        renewed = ", which such commits do not renew" if silence.in_transaction else ""
        return f"{name} {last} the rebalance began; its session timeout is {session}{renewed} (poll interval {poll})."
    if cause is Cause.POLL_INTERVAL_EXCEEDED:
        return f"{name} {last} the rebalance began; its poll interval is {poll} (session timeout {session})."
    if silence.is_proof:
        doubt = "sends heartbeats rarely" if silence.in_transaction else "commits within transactions"
        unless = f"unless it {doubt}, " if silence.is_close and not silence.is_short else ""
        return (
            f"{name} {last} the rebalance began, less than its session timeout of {session}: {unless}it did not expire."
        )
    rest = " The other members made no progress either." if silence.at_rest and found.others_moved_on_ms >= 0 else ""
    return f"{name} {last} the rebalance began, longer than its session timeout of {session}.{rest}"
