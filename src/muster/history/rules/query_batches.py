"""What a group's commits tell of Spark queries: which query reads a partition, and when its batches were done.

The metadata of a query's commits is `spark:QUERY/BATCH`, with the number of the last batch that is done. So the first
commit with a number says that the batch was done by then. It took at most as long as the time since the batch before,
part of which the query may have waited for records. Of what a commit does not say nothing is guessed: whether a query
that went on as another member was started again, or had been removed from the group meanwhile, is not in the log.
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
"""How a sentence about a query begins: it holds whatever the cause is."""
SLOW_MS = 5_000
"""A batch that took longer may have held up others."""
MOST = 64
"""So many queries of a group are remembered: those without a checkpoint have another name at each start."""
_NOTE = re.compile(r"spark:(.+)/(\d{1,18})")


def read_note(metadata: str) -> tuple[str, int] | None:
    """The query that made a commit, and its last batch; None where another client did."""
    found = _NOTE.fullmatch(metadata)
    return None if found is None else (found[1], int(found[2]))


@dataclass(slots=True)
class Query:
    """Times are of the group's clock."""

    batch: int
    done_ms: int
    """When the last batch was first seen to be done."""
    before_ms: int
    """When the one before was; -1 where that is not known."""


@dataclass(slots=True)
class QueryBatches:
    """The queries of a group, as far as their commits tell."""

    readers: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    """Which query has committed a partition last, and when: another client may have since."""
    queries: dict[str, Query] = field(default_factory=dict)

    def take(self, commits: Commits, times: Int64s, span: range, open_cases: Iterable[tuple[Case, int]]) -> None:
        """Take in some commits of a chunk. `open_cases` are rebalances whose rows wait, each until a time."""
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
        """The query that a member is: it made the latest commit of each of its partitions that has one."""
        found = set()
        for place, last_ms in zip(member.assignment, times.lasts(member.assignment), strict=True):
            if last_ms != NEVER:
                name, at_ms = self.readers.get(place, ("", NEVER))
                found.add(name if at_ms == last_ms else "")
        return found.pop() if len(found) == 1 else ""

    def look(self, case: Case, times: CommitTimes) -> None:
        """Note what is known of queries as a group rebalances."""
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
    """What became of the queries that went, as far as commits tell that came soon after."""
    on = "it went on as another member: it was started again, or had been removed from the group meanwhile"
    return tuple(
        f"{ABOUT} {name}, with batch {batch} done, was a member that went; "
        f"{on if name in case.queries_back else 'no commit of it followed soon'}."
        for name, batch in case.queries_gone.items()
    )


def _slow(name: str, query: Query, all_joined_ms: int) -> tuple[str, ...]:
    """What to say of a batch that was done right before all had joined."""
    took_ms = query.done_ms - query.before_ms
    if query.before_ms == NEVER or took_ms < SLOW_MS or not 0 <= all_joined_ms - query.done_ms <= AT_ONCE_MS:
        return ()
    return (
        f"{ABOUT} {name} had batch {query.batch} done right before all had joined, {duration(took_ms)} after "
        "the one before: a query joins when its batch is done.",
    )
