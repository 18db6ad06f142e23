"""What a group's commits show about Spark queries: which query reads a partition, and when its batches finished.

The metadata of a query's commits is `spark:QUERY/BATCH@CLUSTER:TOPIC`, with the number of the last finished batch; the
topic's ID is missing from commits of older versions, and if brokers send none. So the first commit with a number shows
that the batch had finished by then. It took at most the time since the previous batch, part of which the query may have
waited for records. Nothing beyond that is guessed: whether a query that continued as another member was restarted, or
had been removed from the group in between, is not in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.history.model import Commits, Member, TopicPartition
from muster.history.rules.causes import AT_ONCE_MS, Case
from muster.history.rules.commit_times import NEVER, CommitTimes
from muster.history.rules.wording import duration

if TYPE_CHECKING:
    from muster.history.model import Int64s

ABOUT = "Spark query"
"""The start of a sentence about a query, which holds whatever the cause is."""
SLOW_MS = 5_000
"""A batch that took longer may have delayed other members."""
MOST = 64
"""How many queries of a group are remembered: those without a checkpoint get a new name at each start."""
_NOTE = re.compile(r"spark:(.+)/(\d{1,18})(?:@.*:\w+)?")


def read_note(metadata: str) -> tuple[str, int] | None:
    """The query that made a commit, and its last batch; None if another client did."""
    found = _NOTE.fullmatch(metadata)
    return None if found is None else (found[1], int(found[2]))


@dataclass(slots=True)
class Query:
    """Times are by the group's clock."""

    batch: int
    done_ms: int
    """When the last batch was first seen to have finished."""
    before_ms: int
    """When the previous one was; -1 if not known."""


@dataclass(slots=True)
class QueryBatches:
    """The queries of a group, as far as their commits show."""

    readers: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    """The query that last committed a partition, and when: another client may have committed since."""
    queries: dict[str, Query] = field(default_factory=dict)

    def take(self, commits: Commits, times: Int64s, span: range, open_cases: Iterable[tuple[Case, int]]) -> None:
        """Take some commits of a chunk. `open_cases` are rebalances whose rows are pending, each until a time."""
        waiting = [(case, until_ms) for case, until_ms in open_cases if case.queries_gone]
        for row, metadata in commits.notes:
            note = read_note(metadata) if row in span else None
            if note is None:
                continue
            place, at_ms = commits.names[int(commits.partition[row])], int(times[row])
            self.readers[place] = (note[0], at_ms)
            self._done(*note, at_ms)
            for case, until_ms in waiting:
                if note[0] in case.queries_gone and case.at_ms <= at_ms <= until_ms:
                    case.queries_back.add(note[0])

    def _done(self, name: str, batch: int, at_ms: int) -> None:
        known = self.queries.pop(name, None)
        if known is None:
            known = Query(batch, at_ms, NEVER)
        elif batch != known.batch:
            known = Query(batch, at_ms, known.done_ms if batch == known.batch + 1 else NEVER)
        self.queries[name] = known
        if len(self.queries) > MOST:
            del self.queries[next(iter(self.queries))]

    def _of(self, member: Member, times: CommitTimes) -> str:
        """The query behind a member: it made the latest commit of each of the member's committed partitions."""
        found = set()
        for place, last_ms in zip(member.assignment, times.lasts(member.assignment), strict=True):
            if last_ms != NEVER:
                name, at_ms = self.readers.get(place, ("", NEVER))
                found.add(name if at_ms == last_ms else "")
        return found.pop() if len(found) == 1 else ""

    def look(self, case: Case, times: CommitTimes) -> None:
        """Note what is known about queries when a group rebalances."""
        if not self.queries or case.before is None:
            return
        gone = {member.member_id for member in case.differs.gone}
        for member in case.before.members:
            name = self._of(member, times)
            query = self.queries.get(name)
            if query is None:
                continue
            if member.member_id in gone:
                case.queries_gone[name] = query.batch
            elif not case.is_modern:
                case.batches += _slow(name, query, case.began_by_ms)


def departures(case: Case) -> tuple[str, ...]:
    """What happened to the queries that left, as far as the commits shortly afterwards show."""
    on = "it continued as another member: it was restarted, or had been removed from the group in between"
    return tuple(
        f"{ABOUT} {name} left as a member after finishing batch {batch}; "
        f"{on if name in case.queries_back else 'it did not commit again soon'}."
        for name, batch in case.queries_gone.items()
    )


def _slow(name: str, query: Query, all_joined_ms: int) -> tuple[str, ...]:
    """The sentence about a batch that finished right before all members had joined."""
    took_ms = query.done_ms - query.before_ms
    if query.before_ms == NEVER or took_ms < SLOW_MS or not 0 <= all_joined_ms - query.done_ms <= AT_ONCE_MS:
        return ()
    return (
        f"{ABOUT} {name} finished batch {query.batch} right before all members had joined, {duration(took_ms)} after "
        "the previous batch: a query joins when its batch is finished.",
    )
