"""The rules of a streaming query in a group: which partitions it owns, what a batch reads, and when it is committed.

There are two sources of truth. The group's committed offset says where a newly gained partition starts. The
query's checkpoint says what the current batch and the last one read. This module reconciles them; it does no I/O, and
time is passed in as `now` (milliseconds).

Ownership. Each time a partition is gained it gets a new epoch, so that a partition lost and regained is not mistaken
for one that was kept. An owned partition whose committed offset is known has a position.

At most one batch is in progress:

    NONE --latest() claims--> CLAIMED --planned()--> PLANNED --latest(start == its end), or finished()--> NONE
    NONE --planned() comes first, after a restart--> PLANNED (a replay)

1.  The query joins the group when it first reads (`member.py`).
2.  `latest(start)`: the batch that ends at `start` is done. Without partitions, while draining, or with nothing new,
    the answer is `start` itself. Otherwise the query claims `[position, end)`, up to its share of the limit.
3.  Positions advance only when a batch is done. A claim that was never planned is made again.
4.  Draining: before partitions are given up, the batch that reads them is finished and committed; no new batch starts.
5.  When the drain's deadline passes, or partitions are lost, ownership ends immediately. The batch continues, since
    Spark cannot be stopped in the middle of it: for those partitions it is an orphan and is not committed. The new
    owner reads its records again; none is lost.
6.  A claim made under an earlier epoch is not committed: its partition's position is resolved again.
7.  Commits never move backwards within an epoch.
8.  `resume_position`, a table, says where to start in a partition that the query has read before. It must distinguish a
    commit of this query from another member's, so a gained partition is not read until its start is committed under
    this query's name. A commit's metadata also has the number of the last batch that was done then. A commit made
    before a range was done shows that a later one was lost. A later commit is deliberate: an operator's reset, or
    another member's offset, which the query has adopted and committed under its own name. It also has the topic's ID: a
    commit about a former topic of that name does not count, no matter which query made it, or when.
9.  A replay after a restart reads the whole claims (`strict`), or only what is owned and uncommitted (`trim`).
10. Executors read fixed ranges and never talk to the group.
11. At the end, a batch known to be done is committed before the member leaves (`member.py`).
12. The additional rules of a query with state are in `state.py`.
13. Records deleted before they were read, and positions that are no longer valid, are losses. `bounds.judge` is
    the table for a position; a topic's ID shows that it was recreated. After a loss, what is remembered of the
    partition is dropped, the loss is reported once (`take_losses`), and reading continues from the start of the log:
    records are read twice rather than not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from muster.errors import ConfigError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.offsets import ALL, INITIAL, Claim, Claims, QueryOffset, Share, TopicState, from_json, to_json
from muster.spark.source.shares import share_rows
from muster.spark.source.state import QueryState
from muster.spark.source.topics import QueryTopics


class ResumeMode(Enum):
    """Which offset counts for a partition that this query has read before (rule 8)."""

    MAX = "max"
    """The checkpoint for what it has done, unless the group's offset was set back before that or is beyond it."""
    GROUP = "group"
    """Always the group's committed offset."""
    CHECKPOINT = "checkpoint"
    """Always the checkpoint."""


class ReplayMode(Enum):
    """What is read when a batch is planned again after a restart (rule 9)."""

    STRICT = "strict"
    TRIM = "trim"


class BatchState(Enum):
    """The state of the current batch."""

    NONE = "none"
    CLAIMED = "claimed"
    PLANNED = "planned"


def resume_position(
    committed: int | None, done: Claim | None, resume: ResumeMode = ResumeMode.MAX, earlier: bool = True
) -> int | None:
    """Where a gained partition starts; None leaves it to the reset policy (`startingOffsets`).

    `earlier` means that this query made the commit, before it had done the range. If such a commit lies within the
    range, a later one was lost. Any other commit there comes from an operator's reset, or from
    another member that has read up to there; this query may have committed it under its own name since.

    | committed                   | done by this query | max       | group     | checkpoint |
    |-----------------------------|--------------------|-----------|-----------|------------|
    | none                        | nothing            | reset     | reset     | reset      |
    | c                           | nothing            | c         | c         | c          |
    | none                        | [from, to)         | to        | to        | to         |
    | c < from: set back          | [from, to)         | c         | c         | to         |
    | from <= c <= to, earlier    | [from, to)         | to        | c         | to         |
    | from <= c <= to, any other  | [from, to)         | c         | c         | to         |
    | c > to: others read         | [from, to)         | c         | c         | to         |
    """
    if done is None:
        return committed
    if committed is None or resume is ResumeMode.CHECKPOINT:
        return done.end
    if resume is ResumeMode.MAX and earlier and done.start <= committed <= done.end:
        return done.end
    return committed


_NOTE = re.compile(r"(spark(?::.*)?)/(\d+)(?:@(.*):(\w+))?")


class _CommitMetadata(NamedTuple):
    """The metadata of a query's commit, `spark:<query>/<batch>@<cluster>:<topic ID>` (rule 8); for other metadata all
    fields are empty. Older versions wrote no query, or no ID, which brokers before Kafka 2.8 do not have either."""

    query: str
    batch: int
    """The last batch that was done."""
    cluster: str
    topic_id: str
    """An ID says nothing in another cluster, to which a group's offsets may have been mirrored."""

    @classmethod
    def read(cls, metadata: str) -> _CommitMetadata:
        found = _NOTE.fullmatch(metadata)
        query, batch, cluster, topic_id = found.groups("") if found else ("", "-1", "", "")
        return cls(query, int(batch), cluster, topic_id)

    def __str__(self) -> str:
        note = f"{self.query}/{self.batch}"
        return f"{note}@{self.cluster}:{self.topic_id}" if self.topic_id else note


def _differ(one_id: str, other_id: str) -> bool:
    """Whether these are IDs of different topics; an ID that is not known is empty."""
    return "" not in (one_id, other_id) and one_id != other_id


@dataclass(slots=True)
class _Owned:
    """A partition of this member. `committed` is the group's offset as this member knows it. All of it is valid for one
    topic ID: the one that the topic was known to have when the epoch began."""

    epoch: int
    topic_id: str
    known: bool = False
    committed: int | None = None
    position: int | None = None
    note: str = ""
    """The metadata of the group's commit, which names the query that made it (rule 8)."""
    anew: bool = False
    """Whether the group's commit was about a former topic: the new topic is read from its start."""


@dataclass(slots=True)
class _Batch:
    """The current batch, with the epoch under which each partition was claimed. A replayed batch has no epochs: its
    claims were made by an earlier run of the query."""

    offset: QueryOffset
    state: BatchState
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    replayed: bool = False


@dataclass(slots=True)
class _Drain:
    partitions: set[TopicPartition]
    deadline: int


class QueryClaims:
    """One query's ownership and batches. It commits under its `name`, which the checkpoint keeps.

    `fails_on_loss`: a loss ends the query, so nothing more is read from or committed for such a partition.
    `notes_first`: a partition is read only once its start is committed under that name. `records_first`: the first
    batch, with or without records, writes down which partitions existed.

    Without a group to commit to (`keeps_all`), the query's own offsets hold what it has done in every partition, and
    also where the reset policy started each: otherwise a restart before the first record would look up the latest
    offset again.
    """

    def __init__(
        self,
        resume: ResumeMode = ResumeMode.MAX,
        replay: ReplayMode = ReplayMode.STRICT,
        name: str = "",
        *,
        keeps_all: bool = False,
        notes_first: bool = True,
        records_first: bool = False,
        fails_on_loss: bool = False,
        share: Share = ALL,
    ) -> None:
        self._resume = resume
        self._replay = replay
        self.name = name  # commits are made under it; the checkpoint's, once known
        self._older_names = False
        self._keeps_all = keeps_all
        self._notes_first = notes_first and not keeps_all
        self._records_first = records_first
        self._fails_on_loss = fails_on_loss
        self._share = share
        self._topics = QueryTopics()
        self._cluster = ""
        self.state = QueryState()
        self._losses: list[str] = []
        self._unrecorded = False
        self._owned: dict[TopicPartition, _Owned] = {}
        self._epoch = 0
        self._seq = 0
        self._batch: _Batch | None = None
        self._drain: _Drain | None = None
        self._done: Claims = {}
        """Finished claims that the group has not acknowledged."""
        self._done_by: dict[TopicPartition, int] = {}
        """The number of the batch that completed each of them."""
        self._started = False
        self._restarted = False
        self._trimmed: dict[int, Claims] = {}

    # --- for the member ----------------------------------------------------------------------------------------------

    @property
    def batch_state(self) -> BatchState:
        """The state of the current batch."""
        return self._batch.state if self._batch else BatchState.NONE

    @property
    def all_acknowledged(self) -> bool:
        """Whether the group has acknowledged everything that the query has done."""
        known = {partition: owned.committed for partition, owned in self._owned.items()}
        return self._started and all(known.get(partition) == done.end for partition, done in self._done.items())

    @property
    def batch_in_flight(self) -> dict[str, Any] | None:
        """The end offset of the current batch, as Spark has it."""
        return to_json(self._batch.offset) if self._batch else None

    @property
    def draining(self) -> bool:
        """Whether partitions are about to be given up."""
        return self._drain is not None

    @property
    def drain_deadline(self) -> int | None:
        """The latest time at which partitions are given up."""
        return self._drain.deadline if self._drain else None

    def batch_reads(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the current batch reads any of these as their owner."""
        batch = self._batch
        return batch is not None and any(self._is_under(p, batch.epochs.get(p)) for p in partitions)

    def owned(self) -> list[TopicPartition]:
        """This member's partitions."""
        return sorted(self._owned)

    def positions(self) -> dict[TopicPartition, int]:
        """The known positions of partitions."""
        return {p: owned.position for p, owned in self._owned.items() if owned.position is not None}

    def unresolved(self) -> list[TopicPartition]:
        """Partitions whose committed offset is not known yet."""
        return sorted(partition for partition, owned in self._owned.items() if not owned.known)

    def without_own_commit(self) -> list[TopicPartition]:
        """Partitions whose start is not committed under this query's name yet."""
        return sorted(p for p, owned in self._owned.items() if not self._may_read(owned) and owned.position is not None)

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition was added after the query first started, or its topic was recreated after the group's
        commit: it is read from its beginning."""
        owned = self._owned.get(partition)
        return self._topics.is_new(partition) or (owned is not None and owned.anew)

    @property
    def started(self) -> bool:
        """Whether Spark has passed the query's offset."""
        return self._started

    @property
    def restarted(self) -> bool:
        """Whether the query read something before this run."""
        return self._restarted

    def without_start(self) -> list[TopicPartition]:
        """Partitions with no committed offset and nothing done: the reset policy decides, then `reset`. Empty until it
        is known what the query has done and which partitions are new."""
        if not self._topics.decided:
            return []
        waiting = self._batch.offset.claims if self._batch is not None else {}
        return sorted(
            p for p, owned in self._owned.items() if owned.known and owned.position is None and p not in waiting
        )

    # --- ownership ---------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Own more partitions. The caller looks up their committed offsets, and passes them to `committed`."""
        self._epoch += 1
        for partition in partitions:
            self._owned[partition] = _Owned(self._epoch, self._topics.topic_id(partition.topic))

    def committed(self, partition: TopicPartition, offset: int | None, note: str = "") -> None:
        """The group's committed offset of a gained partition, or None; `note` is the commit's metadata.

        The race that leaves a commit about a former topic: the topic is deleted with the group's offsets and recreated;
        a query that has not noticed commits its position in the former topic, which a broker that takes commits by
        topic name (OffsetCommit before version 10) accepts; then the partition is lost, or the query is killed. The
        member that gains the partition next finds that commit, and would skip the new topic's records up to it.
        """
        owned = self._owned.get(partition)
        if owned is None or owned.known:
            return
        if _differ(owned.topic_id, self._committed_for(note)):
            offset, note, owned.anew = None, "", True
        owned.known, owned.committed, owned.note = True, offset, note
        if offset is not None:
            self.state.committed(partition, self._is_own(note))
        elif partition not in self._done and not self._is_claimed(partition):
            self.state.uncommitted(partition)
        self._resolve(partition, owned)

    def seen(self, topics: Mapping[str, TopicState], cluster: str = "") -> None:
        """The topics that the query reads, as they are in the cluster now: IDs and partition counts."""
        self._cluster = cluster
        recreated = self._topics.seen(topics)
        ids = {partition: self._topics.topic_id(partition.topic) for partition in self._owned}
        valid_for = {p: owned.topic_id or self._committed_for(owned.note) for p, owned in self._owned.items()}
        self.assigned([partition for partition in ids if _differ(ids[partition], valid_for[partition])])
        for partition, owned in self._owned.items():
            owned.topic_id = ids[partition]  # which may have become known now
        self._recreated(recreated)

    def lost(self, partition: TopicPartition, start: int, what: str) -> None:
        """Records are gone, or the position is invalid: continue from the log's start (rule 13)."""
        owned = self._owned.get(partition)
        if owned is None:
            return
        self._losses.append(what)
        if self._fails_on_loss:
            del self._owned[partition]
            return
        self._epoch += 1
        self._owned[partition] = _Owned(self._epoch, owned.topic_id, True, owned.committed, start)
        self._done.pop(partition, None)
        if self._keeps_all:
            self._done[partition] = Claim(start, start)
            self._unrecorded = True

    def take_losses(self) -> list[str]:
        """The losses since the last call, as sentences without a full stop."""
        found, self._losses = self._losses, []
        return found

    def _recreated(self, topics: Iterable[str]) -> None:
        """Topics were deleted and recreated: forget what was done in them."""
        for topic in topics:
            self._losses.append(f"topic {topic} was deleted and recreated, and its earlier records are gone")
            for remembered in (self._done, self._owned) if self._fails_on_loss else (self._done,):
                for partition in [partition for partition in remembered if partition.topic == topic]:
                    del remembered[partition]

    def reset(self, partition: TopicPartition, offset: int) -> None:
        """Where a partition starts by the reset policy."""
        owned = self._owned.get(partition)
        if owned is not None and owned.known and owned.position is None:
            owned.position = offset
            if self._keeps_all:
                self._done[partition] = Claim(offset, offset)
                self._unrecorded = True

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """No longer own these: given up after a drain, or lost. A batch that still reads them is an orphan for them."""
        for partition in partitions:
            self._owned.pop(partition, None)
        self._drain = None

    def _resolve(self, partition: TopicPartition, owned: _Owned) -> None:
        """Find the position of a partition whose committed offset is known (rule 8)."""
        if self._is_claimed(partition):
            return  # rules 6 and 9: after the batch
        done = self._done.get(partition)
        earlier = self._is_own(owned.note) and self._number(owned.note) < self._done_by.get(partition, 0)
        owned.position = resume_position(owned.committed, done, self._resume, earlier)
        if done is not None and owned.position != done.end:
            # The group's offset was set back, or others read further: what was done before no longer counts. If it were
            # kept, an operator's reset into that range would be mistaken for a lost commit.
            del self._done[partition]

    def _is_claimed(self, partition: TopicPartition) -> bool:
        return self._batch is not None and partition in self._batch.offset.claims

    def _note(self, owned: _Owned) -> str:
        """The metadata of this query's commits: its name, the last finished batch, and the topic's ID."""
        return str(
            _CommitMetadata(f"spark:{self.name}", self._seq - (self._batch is not None), self._cluster, owned.topic_id)
        )

    def _is_own(self, note: str) -> bool:
        """Whether a commit's metadata is this query's. Older versions, whose offsets lack the name, wrote no name."""
        return _CommitMetadata.read(note).query in (f"spark:{self.name}", *(["spark"] if self._older_names else []))

    def _number(self, note: str) -> int:
        """The last batch that was done when this query made a commit; -1 if the metadata does not say: older versions
        had the number of the current batch."""
        query, batch, *_ = _CommitMetadata.read(note)
        return -1 if query == "spark" else batch

    def _committed_for(self, note: str) -> str:
        """The ID of the topic that a commit is about; empty if it does not say, or was made in another cluster."""
        _, _, cluster, topic_id = _CommitMetadata.read(note)
        return topic_id if cluster == self._cluster else ""

    def _may_read(self, owned: _Owned) -> bool:
        return not self._notes_first or owned.committed is None or self._is_own(owned.note)

    # --- draining (rules 4 and 5) ------------------------------------------------------------------------------------

    def drain(self, partitions: Iterable[TopicPartition], deadline: int) -> None:
        """Start giving partitions up. Once `may_give_up` is true, call `revoked`."""
        self._drain = _Drain(set(partitions), deadline)

    def may_give_up(self, now: int, hopeless: Set[TopicPartition] = frozenset()) -> bool:
        """Whether the draining partitions can be given up: no batch reads them, and none waits for a commit.

        `hopeless` are partitions whose commits are not waited for."""
        drain = self._drain
        if drain is None or now >= drain.deadline:
            return True
        if self.batch_reads(drain.partitions):
            return False
        return not (drain.partitions - hopeless) & self.to_commit().keys()

    def _is_under(self, partition: TopicPartition, epoch: int | None) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.epoch == epoch

    # --- batches -----------------------------------------------------------------------------------------------------

    def latest(
        self, start: dict[str, Any], ends: Mapping[TopicPartition, int], limit: int | None = None, generation: int = -1
    ) -> dict[str, Any]:
        """The end of the next batch: new claims up to `ends`, or `start` itself if there is nothing to read."""
        self.begin_from(start)
        if self._batch is not None:
            self._unclaim()
        if self.draining or self._batch is not None:
            return start
        shares = share_rows(self._available(ends), limit, self._seq)
        if not shares and not self._unrecorded:
            return start
        self._unrecorded = False
        claims = {p: Claim(self._position(p), self._position(p) + rows) for p, rows in shares.items()}
        self._seq += 1
        offset = QueryOffset(
            self._seq,
            claims,
            generation,
            dict(self._done),
            self._topics.known,
            self.name,
            self._share,
            self.state.with_batch(claims),
        )
        epochs = {partition: self._owned[partition].epoch for partition in claims}
        self._batch = _Batch(offset, BatchState.CLAIMED, epochs)
        return to_json(offset)

    def waiting(self, ends: Mapping[TopicPartition, int]) -> int:
        """How many records are unread, up to `ends`."""
        return sum(self._available(ends).values())

    def _available(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {
            partition: ends[partition] - position
            for partition, position in self.positions().items()
            if ends.get(partition, 0) > position and self._may_read(self._owned[partition])
        }

    def begin_from(self, start: dict[str, Any]) -> None:
        """Everything up to `start` is done, since Spark asks what follows it (rules 2 and 3)."""
        batch = self._batch
        if batch is not None and to_json(batch.offset) == start:
            self._finish(batch)
        elif not self._started:
            self._restore(from_json(start))
        self._started = True
        if self._records_first and self._topics.decided:
            self._records_first = False
            self._unrecorded = not self._restarted

    def finished(self, end: dict[str, Any]) -> None:
        """Spark reports in another way that the batch is done: by `commit`, or by its commit log. A second call does
        nothing."""
        batch = self._batch
        if batch is not None and to_json(batch.offset) == end:
            self._finish(batch)

    def planned(self, end: dict[str, Any]) -> Claims:
        """The claims of the batch with this end (rules 3, 9); the same at every call."""
        offset = from_json(end)
        batch = self._batch
        if batch is not None and batch.offset.seq == offset.seq:
            batch.state = BatchState.PLANNED
        elif not self._started and offset.seq:
            self._started = True
            again = self._remember(offset)
            self._add_done(offset.uncommitted, offset.seq - 1)
            self._batch = _Batch(offset, BatchState.PLANNED, replayed=True)
            self._recreated(again)
            self._unknow({**offset.uncommitted, **offset.claims})
        return self._trimmed.get(offset.seq, offset.claims)

    def to_trim(self) -> bool:
        """Whether a planned batch is a replay to trim (rule 9): wait until the group has assigned partitions and
        none is `unresolved`, then `trim`, then plan it again."""
        batch = self._batch
        trims = self._replay is ReplayMode.TRIM and batch is not None and batch.replayed
        return trims and batch is not None and batch.offset.seq not in self._trimmed

    def trim(self) -> None:
        """Cut the replayed batch to what is owned and uncommitted; the same at every planning."""
        batch = self._batch
        assert batch is not None
        trimmed: Claims = {}
        for partition, claim in batch.offset.claims.items():
            owned = self._owned.get(partition)
            if owned is not None and owned.known:
                start = claim.start if owned.committed is None else max(claim.start, owned.committed)
                if start < claim.end:
                    trimmed[partition] = Claim(start, claim.end)
                    if start == owned.committed:
                        # The batch starts at the group's offset, so it honours that commit, and continues from there.
                        # If the position were resolved again, another member's commit would make the same records be
                        # read once more.
                        batch.epochs[partition] = owned.epoch
        self._trimmed[batch.offset.seq] = trimmed

    def _position(self, partition: TopicPartition) -> int:
        position = self._owned[partition].position
        assert position is not None
        return position

    def _unclaim(self) -> None:
        """Forget a claim that Spark never planned; it is made again (rule 3)."""
        if self._batch is not None and self._batch.state is BatchState.CLAIMED:
            self._seq -= 1
            self._settle()

    def _finish(self, batch: _Batch) -> None:
        """A batch is done: positions advance for partitions owned since its claim; the rest is remembered (rule 6)."""
        read = self._trimmed.pop(batch.offset.seq, batch.offset.claims)
        read = {partition: claim for partition, claim in read.items() if self._is_same(partition.topic, batch.offset)}
        finished = QueryOffset(batch.offset.seq, read, uncommitted=self._done).finished()
        self._add_done({partition: finished[partition] for partition in read}, batch.offset.seq)
        self.state.read(read)
        for partition, claim in read.items():
            if self._is_under(partition, batch.epochs.get(partition)):
                self._owned[partition].position = claim.end
        self._settle()

    def _add_done(self, done: Claims, batch: int) -> None:
        """The batch with this number completed these ranges."""
        self._done.update(done)
        self._done_by.update(dict.fromkeys(done, batch))

    def _is_same(self, topic: str, offset: QueryOffset) -> bool:
        """Whether a topic is still the one that an offset refers to."""
        then = offset.topics.get(topic)
        return then is None or not then.id or then.id == self._topics.topic_id(topic)

    def _settle(self) -> None:
        """No batch is in progress: partitions that waited for its end get their positions."""
        self._batch = None
        for partition, owned in self._owned.items():
            if owned.known and owned.position is None:
                self._resolve(partition, owned)

    def _restore(self, start: QueryOffset) -> None:
        """The first call after a restart asks what follows `start`: everything in it was done by an earlier run."""
        again = self._remember(start)
        if start == INITIAL:
            return
        finished = start.finished()
        if self._replay is ReplayMode.TRIM:
            # A trimmed replay may have skipped what other members owned then, which the checkpoint does not say: of
            # these claims only the start is certain.
            finished = {partition: Claim(claim.start, claim.start) for partition, claim in finished.items()}
        self._add_done(finished, start.seq - 1)
        self._add_done({partition: finished[partition] for partition in start.claims}, start.seq)
        self._recreated(again)
        self._unknow(self._done)

    def _remember(self, offset: QueryOffset) -> list[str]:
        """Note what an offset says about the query itself. Returns the topics recreated since."""
        self._seq = offset.seq
        if offset.seq:
            if offset.share != self._share:
                raise ConfigError(
                    f"the checkpoint belongs to share {offset.share} of the partitions, not to share {self._share}: "
                    "the query's state would not fit; start with a new checkpointLocation"
                )
            self._restarted = True
            self.state.known |= bool(offset.state)
            self.state.read([*offset.state, *offset.claims, *offset.uncommitted])
            self._older_names = not offset.query
            self.name = offset.query or self.name
        return self._topics.restore(offset.topics)

    def _unknow(self, partitions: Iterable[TopicPartition]) -> None:
        """Resolve these positions again: what the query did before became known only after they were resolved."""
        for partition in list(partitions):
            owned = self._owned.get(partition)
            if owned is not None and owned.known:
                owned.position = None
                self._resolve(partition, owned)

    # --- commits (rules 5 to 7) --------------------------------------------------------------------------------------

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions not yet committed: of finished batches, of resolved gains and of the reset policy.

        Empty until Spark has passed the query's offset: without the checkpoint's name and finished ranges, a
        commit would hide that an earlier one was lost."""
        if not self._started:
            return {}
        return {
            partition: OffsetAndMetadata(owned.position, metadata=self._note(owned))
            for partition, owned in self._owned.items()
            if owned.position is not None and (owned.position != owned.committed or not self._is_own(owned.note))
        }

    def epoch(self, partition: TopicPartition) -> int | None:
        """The epoch under which a partition is owned now; the caller keeps it with each commit that it sends."""
        owned = self._owned.get(partition)
        return owned.epoch if owned else None

    def acknowledged(self, partition: TopicPartition, offset: int, epoch: int | None) -> None:
        """The group has acknowledged a commit that was sent under this epoch."""
        if not self._is_under(partition, epoch):
            return
        owned = self._owned[partition]
        owned.committed, owned.note = offset, self._note(owned)
        done = self._done.get(partition)
        if done is not None and done.end <= offset:
            del self._done[partition]
