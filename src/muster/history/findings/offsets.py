"""The doctor's rules about a group's committed offsets and lag."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.history.findings.view import GroupView, RuleResult
from muster.history.model import CommitNote, Lag, Member, OpenTransaction, TopicPartition
from muster.history.rules.wording import count, duration, listed, named

_DAY_MS = 86_400_000
_EXPIRES_SOON_MS = 2 * _DAY_MS
_STUCK_MS = 10 * 60_000
_HANGING_MS = 2 * 60_000


def lost_records(view: GroupView) -> RuleResult | None:
    """Retention removed records before the group read them."""
    lost = [each for each in view.lag_now if each.lost_records]
    if not lost:
        return None
    worst = max(lost, key=lambda each: each.lost_records)
    what = (
        f"Retention has removed {sum(each.lost_records for each in lost)} records that the group had not read, most in "
        f"{worst.topic}-{worst.partition} ({worst.lost_records}): the committed offset is {worst.committed_offset}, "
        f"the log starts at {worst.log_start_offset}"
    )
    advice = (
        "Raise the topic's retention.ms or retention.bytes, or the group's throughput; the removed records cannot be "
        "recovered."
    )
    return RuleResult("lost_records", what, advice, since_ms=worst.committed_ms)


def beyond_the_end(view: GroupView) -> RuleResult | None:
    """Committed offsets beyond the end of the log: the topic was recreated, or its log truncated."""
    wrong = [each for each in view.lag_now if each.committed_offset > each.log_end_offset]
    if not wrong:
        return None
    worst = wrong[0]
    what = (
        f"The committed offset {worst.committed_offset} of {worst.topic}-{worst.partition} is beyond the log's end "
        f"{worst.log_end_offset} ({count(len(wrong), 'partition')}): the topic was recreated, or its log truncated"
    )
    advice = (
        "Reset the group's offsets to where it should continue (kafka-consumer-groups --reset-offsets); otherwise its "
        "members apply auto.offset.reset, or wait until the log has grown past that offset and skip what came before."
    )
    return RuleResult("committed_beyond_end", what, advice, since_ms=worst.committed_ms)


def stuck(view: GroupView) -> RuleResult | None:
    """Partitions that make no progress while others of the group do."""
    now, owners = view.lag_now, _owners(view)
    newest = max((each.committed_ms for each in now), default=0)
    waiting = [
        (waited_ms, each)
        for each in now
        if (waited_ms := _waited_ms(each, newest)) > _patience_ms(owners.get((each.topic, each.partition)))
    ]
    if not waiting:
        return None
    longest, worst = max(waiting, key=lambda found: found[0])
    owner = owners.get((worst.topic, worst.partition))
    what = (
        f"{len(waiting)} of {count(len(now), 'partition')} {'has' if len(waiting) == 1 else 'have'} unread records "
        f"but no new commits, while others are committed: {worst.topic}-{worst.partition}"
        f"{f' of {named(owner)}' if owner else ''} for {duration(longest)} (lag {worst.lag_records})"
    )
    return RuleResult(
        "stuck",
        what,
        _stuck_advice(worst, owner, has_members=bool(owners)),
        since_ms=newest - longest,
        stopped_partition_ms=sum(waited_ms for waited_ms, _ in waiting),
    )


def _owners(view: GroupView) -> dict[TopicPartition, Member]:
    """The current members by assigned partition."""
    latest = view.latest
    if latest is None or latest.ended_ms is not None:
        return {}
    return {place: member for member in latest.members for place in member.assignment}


def _waited_ms(row: Lag, newest_ms: int) -> int:
    """How long a partition's records have waited while other partitions were committed."""
    if row.lag_records <= 0:
        return 0
    silent_ms = newest_ms - row.committed_ms
    return silent_ms if row.lag_ms is None else min(silent_ms, row.lag_ms)


def _patience_ms(owner: Member | None) -> int:
    """How long records may wait before their partition counts as stuck. A client with a usual max.poll.interval.ms
    leaves the group when its handler hangs; one with a longer interval keeps sending heartbeats until that elapses."""
    return _HANGING_MS if owner is not None and _is_endless(owner) else _STUCK_MS


def _is_endless(owner: Member) -> bool:
    return (owner.rebalance_timeout_ms or 0) > _STUCK_MS


def _stuck_advice(worst: Lag, owner: Member | None, *, has_members: bool) -> str:
    where = f"check the record at offset {worst.committed_offset} of {worst.topic}-{worst.partition}"
    if owner is None and has_members:
        return "It is not assigned to any member: check the members' subscriptions."
    if owner is None or not _is_endless(owner):
        return f"Either a record cannot be handled, or the partition is paused: {where}."
    return (
        f"Unless one poll's records really take that long, {named(owner)} hangs: {where}, and restart the process. "
        f"Its max.poll.interval.ms is {duration(owner.rebalance_timeout_ms or 0)}: a member that sends heartbeats "
        "without polling keeps its partitions that long. Set it slightly above the longest handling time."
    )


def offsets_expire(view: GroupView) -> RuleResult | None:
    """Offsets that will soon expire, and with them the position to continue from."""
    soon = [
        each
        for each in view.lag_now
        if each.expires_ms is not None and each.expires_ms - view.now_ms < _EXPIRES_SOON_MS
    ]
    if not soon:
        return None
    first = min(each.expires_ms or 0 for each in soon)
    left = f"in {duration(first - view.now_ms)}" if first > view.now_ms else "now"
    what = (
        f"Committed offsets of {count(len(soon), 'partition')} are about to expire, the first {left}: no member of "
        f"the group currently subscribes to {listed(sorted({each.topic for each in soon}))}"
    )
    advice = (
        "Before then, start a member or commit again, or raise offsets.retention.minutes on the brokers. A group "
        "without offsets starts according to auto.offset.reset: it processes everything again, or skips records."
    )
    return RuleResult("offsets_expire", what, advice, since_ms=soon[0].committed_ms)


def rewinds(view: GroupView) -> RuleResult | None:
    """Offsets that were set back."""
    seen = [note for note in view.notes if note.kind == "rewind"]
    if not seen:
        return None
    worst = max(seen, key=lambda note: note.previous_offset - note.offset)
    again = sum(note.previous_offset - note.offset for note in seen)
    what = (
        f"Committed offsets went backwards {count(len(seen), 'time')}{_in_transactions(seen)}, furthest in "
        f"{worst.topic}-{worst.partition}, from {worst.previous_offset} to {worst.offset}: members that start there "
        f"process {again} records again"
    )
    advice = []
    if any(not note.is_transactional for note in seen):
        advice.append(
            "If no operator reset them, a former owner committed late, or a member started before the committed "
            "offset: commit in on_partitions_revoked, and commit only what was processed. When a coordinator moves, "
            "a client may also resend a commit after a later one; its next commit corrects that."
        )
    if any(note.is_transactional is not False for note in seen):
        advice.append(
            "A producer that commits offsets in transactions without the group's metadata (KIP-447) may commit for "
            "a member that was removed: pass the metadata if the client supports it."
        )
    return RuleResult("rewinds", what, " ".join(advice), since_ms=seen[0].at_ms)


def commits_by_others(view: GroupView) -> RuleResult | None:
    """Offsets of partitions that no member owned: Kafka accepts them from members, in transactions, and from any
    client while the group is empty."""
    seen = [note for note in view.notes if note.kind == "non_member"]
    if not seen or not any(each.members for each in view.generations):
        return None
    places = listed(sorted({f"{note.topic}-{note.partition}" for note in seen}))
    producer = "a transactional producer sends offsets without the group's metadata (KIP-447)"
    if all(note.is_transactional for note in seen):
        advice = (
            f"Probably {producer}: pass the metadata if the client supports it, so that brokers reject commits of "
            "removed members."
        )
    else:
        others = "" if all(note.is_transactional is False for note in seen) else f", or {producer}"
        advice = (
            "If a program that assigns its partitions manually shares this group.id, give that program another one: "
            "it and the group overwrite each other's offsets. Otherwise a member commits partitions that it does "
            f"not own{others}."
        )
    what = f"Offsets were committed for partitions that no member owned{_in_transactions(seen)}: {places}"
    return RuleResult("commits_by_others", what, advice, since_ms=seen[0].at_ms)


def _in_transactions(seen: Sequence[CommitNote]) -> str:
    """How many of these commits were made in transactions, as far as that is known."""
    certain = sum(note.is_transactional is True for note in seen)
    if not certain:
        return ""
    if certain < len(seen):
        return f", {certain} of them in {'a transaction' if certain == 1 else 'transactions'}"
    return ", in a transaction" if certain == 1 else ", all of them in transactions"


def hanging_transaction(view: GroupView) -> RuleResult | None:
    """Transactions that hold up read_committed consumers and that no coordinator will end."""
    found = [(row, each) for row, each in _with_open_transactions(view) if each.hangs]
    if not found:
        return None
    row, worst = max(found, key=lambda one: one[0].log_end_offset - one[1].last_stable_offset)
    more = f" (one of {len(found)} partitions)" if len(found) > 1 else ""
    ago = duration(max(view.now_ms - worst.last_timestamp_ms, 0))
    what = (
        f"A transaction hangs in {row.topic}-{row.partition}{more}: {_whose(worst)} opened it at offset "
        f"{worst.start_offset}, its last batch was {ago} ago, and no coordinator knows about it. Consumers with "
        f"isolation.level=read_committed get nothing from offset {worst.last_stable_offset} on "
        f"({count(row.log_end_offset - worst.last_stable_offset, 'offset')})"
    )
    advice = (
        f"Abort it: muster transactions abort --topic {row.topic} --partition {row.partition} --start-offset "
        f"{worst.start_offset} (docs/admin.md). kafka-transactions.sh has the same options."
    )
    return RuleResult("hanging_transaction", what, advice, since_ms=worst.last_timestamp_ms)


def open_transaction(view: GroupView) -> RuleResult | None:
    """The group has read everything that a read_committed consumer can: the rest waits for a transaction to end."""
    found = [
        (row, each)
        for row, each in _with_open_transactions(view)
        if not each.hangs and row.committed_offset >= each.last_stable_offset and row.lag_records > 0
    ]
    if not found:
        return None
    row, worst = max(found, key=lambda one: one[0].lag_records)
    what = (
        f"The lag of {count(len(found), 'partition')} may not be the group's fault: it has committed everything up "
        f"to the last stable offset. In {row.topic}-{row.partition}, where the lag is largest, "
        f"{count(row.lag_records, 'offset')} from {worst.last_stable_offset} on are held back by a transaction of "
        f"{_whose(worst)}"
    )
    advice = (
        "With isolation.level=read_committed this lag lasts until the producer ends the transaction or "
        "transaction.timeout.ms has passed: let the producer commit more often, or find out why it is slow (muster "
        "transactions describe). With read_uncommitted the group itself is behind."
    )
    return RuleResult("open_transaction", what, advice, since_ms=worst.last_timestamp_ms)


def _with_open_transactions(view: GroupView) -> list[tuple[Lag, OpenTransaction]]:
    known = view.limits.open_transactions
    rows = ((row, known.get((row.topic, row.partition))) for row in view.lag_now)
    return [(row, each) for row, each in rows if each is not None]


def _whose(each: OpenTransaction) -> str:
    producer = f"producer {each.producer_id}, epoch {each.producer_epoch}"
    return producer if each.transactional_id is None else f"{each.transactional_id} ({producer})"


RULES: tuple[Callable[[GroupView], RuleResult | None], ...] = (
    lost_records,
    beyond_the_end,
    stuck,
    offsets_expire,
    rewinds,
    commits_by_others,
    hanging_transaction,
    open_transaction,
)
