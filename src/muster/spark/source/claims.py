"""The rules of a streaming query in a group: which partitions it owns, what a batch reads, when it is committed.

Two sources of truth divide the work. The group's committed offset says where a newly gained partition starts. The
query's checkpoint says what is in the batch under way and in the last one. This module joins them; it does no I/O, and
time comes in as `now` (milliseconds).

Ownership. Each gain of a partition has an epoch of its own, so that a partition lost and regained is not taken for one
that was kept. A partition that is owned and whose committed offset is known has a position.

Batches: at most one.

    NONE --latest() claims--> CLAIMED --planned()--> PLANNED --latest(start == its end), or finished()--> NONE
    NONE --planned() comes first, after a restart--> PLANNED (a replay)

1.  The query joins the group when it first reads; its face (`member.py`) does that.
2.  `latest(start)`: the batch whose end is `start` is done. Without partitions, while draining, or with nothing new the
    answer is `start` itself. Otherwise the query claims `[position, end)`, at most its share of the limit.
3.  Positions move only when a batch is done. A claim that was never planned is made again.
4.  Draining: before partitions are given up, the batch that reads them is finished and committed; no batch is begun.
5.  When the drain's deadline has passed, or partitions are lost, ownership ends at once. The batch goes on, since Spark
    cannot be stopped in it: for those partitions it is an orphan and is not committed. The new owner reads its records
    again; none is lost.
6.  A claim made under an earlier epoch is not committed as such: its partition's position is resolved anew.
7.  Commits never go back within an epoch.
8.  `resume_position`, a table, says where a partition starts that the query has read before. It has to tell a commit of
    this query from one of another member, so a gained partition is not read before the group holds its start under
    this query's name. The note of a commit also has the number of the last batch that was done when it was made. A
    commit made before a range was done shows that a later one was lost. A commit made since then is deliberate: an
    operator's reset, or another member's offset, that the query has obeyed and noted under its own name.
9.  Replay after a restart reads the claims whole (`strict`), or only what is owned and not committed (`trim`).
10. Executors read fixed ranges and never talk to the group.
11. At the end, a batch known to be done is committed before the member leaves; the face does both.
12. What a query with state needs beyond this is in `state.py`.
13. Records that are gone before they were read, and positions that are no longer valid, are losses. `bounds.judge` is
    the table for a position; a topic's id shows that it was created again. After a loss what is remembered of the
    partition is dropped, the loss is told once (`take_losses`), and reading goes on from the start of the log: records
    are read twice rather than not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muster.errors import ConfigError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.offsets import ALL, INITIAL, Claim, Claims, QueryOffset, Share, Topic, from_json, to_json
from muster.spark.source.shares import share_rows
from muster.spark.source.state import KeptState
from muster.spark.source.topics import KnownTopics


class Resume(Enum):
    """Which offset counts for a partition that this query has read before (rule 8)."""

    MAX = "max"
    """The checkpoint for what it has done, unless the group was set back before it or went on beyond it."""
    GROUP = "group"
    """The group's committed offset, whatever the checkpoint says."""
    CHECKPOINT = "checkpoint"
    """The checkpoint, whatever the group says."""


class Replay(Enum):
    """What is read when a batch is planned again after a restart (rule 9)."""

    STRICT = "strict"
    TRIM = "trim"


class BatchState(Enum):
    """How far the batch under way is."""

    NONE = "none"
    CLAIMED = "claimed"
    PLANNED = "planned"


def resume_position(
    committed: int | None, done: Claim | None, resume: Resume = Resume.MAX, earlier: bool = True
) -> int | None:
    """Where a gained partition starts; None leaves it to the reset policy (`startingOffsets`).

    `earlier` says that this query made the commit, and before it had done the range. If such a commit lies within the
    range, a later one was lost. Any other commit there comes from an operator that wants records read again, or from
    another member that has read on from there; this query may have noted it under its own name since.

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
    if committed is None or resume is Resume.CHECKPOINT:
        return done.end
    if resume is Resume.MAX and earlier and done.start <= committed <= done.end:
        return done.end
    return committed


@dataclass(slots=True)
class _Owned:
    """A partition of this member. `committed` is the group's offset as far as this member knows."""

    epoch: int
    known: bool = False
    committed: int | None = None
    position: int | None = None
    note: str = ""
    """The metadata of the group's commit, which names the query that made it (rule 8)."""
    renewed: bool = False
    """Whether the topic was created again under this epoch: then a commit of this query is about the old topic. A
    broker that accepts commits by the topic's name has accepted it all the same."""


@dataclass(slots=True)
class _Batch:
    """The batch under way, with the epoch under which each partition was claimed. A replayed batch has none: its
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
    """One query's part in its group. It commits under its `name`, which the checkpoint keeps.

    `fails_on_loss`: the query ends at a loss, so nothing is read or committed of a partition that has one.
    `notes_first`: a partition is read only when the group has its start under that name. `records_first`: the first
    batch, with records or without, writes down which partitions were there.

    Without a group to commit to (`keeps_all`), the query's own offsets hold what it has done in every partition, and
    also where the reset policy had each begin: otherwise a restart before the first record would ask for the latest
    offset again.
    """

    def __init__(
        self,
        resume: Resume = Resume.MAX,
        replay: Replay = Replay.STRICT,
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
        self.name = name  # under which the query commits: the checkpoint's, once it is known
        self._older_names = False
        self._keeps_all = keeps_all
        self._notes_first = notes_first and not keeps_all
        self._records_first = records_first
        self._fails_on_loss = fails_on_loss
        self._share = share
        self._topics = KnownTopics()
        self.state = KeptState()
        self._losses: list[str] = []
        self._unrecorded = False
        self._owned: dict[TopicPartition, _Owned] = {}
        self._epoch = 0
        self._seq = 0
        self._batch: _Batch | None = None
        self._drain: _Drain | None = None
        self._done: Claims = {}
        """Claims that the query has finished and the group has not acknowledged."""
        self._done_by: dict[TopicPartition, int] = {}
        """The number of the batch by whose end each of them was done."""
        self._started = False
        self._restarted = False
        self._trimmed: dict[int, Claims] = {}

    # --- what the face looks at --------------------------------------------------------------------------------------

    @property
    def batch_state(self) -> BatchState:
        """How far the batch under way is."""
        return self._batch.state if self._batch else BatchState.NONE

    @property
    def all_acknowledged(self) -> bool:
        """Whether the group knows all that the query has done."""
        known = {partition: owned.committed for partition, owned in self._owned.items()}
        return self._started and all(known.get(partition) == done.end for partition, done in self._done.items())

    @property
    def batch_in_flight(self) -> dict[str, Any] | None:
        """The end offset of the batch under way, as Spark knows it."""
        return to_json(self._batch.offset) if self._batch else None

    @property
    def draining(self) -> bool:
        """Whether partitions are about to be given up."""
        return self._drain is not None

    @property
    def drain_deadline(self) -> int | None:
        """The time at which partitions are given up at the latest."""
        return self._drain.deadline if self._drain else None

    def batch_reads(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the batch under way reads any of these as their owner."""
        batch = self._batch
        return batch is not None and any(self._is_under(p, batch.epochs.get(p)) for p in partitions)

    def owned(self) -> list[TopicPartition]:
        """This member's partitions."""
        return sorted(self._owned)

    def positions(self) -> dict[TopicPartition, int]:
        """The position of each partition where it is known."""
        return {p: owned.position for p, owned in self._owned.items() if owned.position is not None}

    def unresolved(self) -> list[TopicPartition]:
        """Partitions whose committed offset is not known yet."""
        return sorted(partition for partition, owned in self._owned.items() if not owned.known)

    def unnoted(self) -> list[TopicPartition]:
        """Partitions that wait for their start to be committed under this query's name."""
        return sorted(p for p, owned in self._owned.items() if not self._may_read(owned) and owned.position is not None)

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition came after the query had begun: it is read from its start."""
        return self._topics.is_new(partition)

    @property
    def started(self) -> bool:
        """Whether Spark has said where the query stands."""
        return self._started

    @property
    def restarted(self) -> bool:
        """Whether the query had read something before this run."""
        return self._restarted

    def without_start(self) -> list[TopicPartition]:
        """Partitions with no committed offset and nothing done: the reset policy decides, then `reset`. None before it
        is known what the query has done, and which partitions are new."""
        if not self._topics.decided:
            return []
        waiting = self._batch.offset.claims if self._batch is not None else {}
        return sorted(
            p for p, owned in self._owned.items() if owned.known and owned.position is None and p not in waiting
        )

    # --- ownership ---------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Own more partitions. Their committed offsets are to be looked up: `committed`."""
        self._epoch += 1
        for partition in partitions:
            self._owned[partition] = _Owned(self._epoch)

    def committed(self, partition: TopicPartition, offset: int | None, note: str = "") -> None:
        """What the group has committed for a gained partition, None for nothing; `note` is the commit's metadata."""
        owned = self._owned.get(partition)
        if owned is not None and not owned.known:
            owned.known = True
            if not (owned.renewed and self._is_own(note)):
                owned.committed, owned.note = offset, note
                if offset is not None:
                    self.state.committed(partition, self._is_own(note))
                elif partition not in self._done and not self._is_claimed(partition):
                    self.state.uncommitted(partition)
            self._resolve(partition, owned)

    def seen(self, topics: Mapping[str, Topic]) -> None:
        """The topics that the query reads, as the cluster has them now: ids and numbers of partitions."""
        self._recreated(self._topics.seen(topics))

    def lost(self, partition: TopicPartition, start: int, what: str) -> None:
        """Records are gone, or the position is invalid: read on from the log's start (rule 13)."""
        owned = self._owned.get(partition)
        if owned is None:
            return
        self._losses.append(what)
        if self._fails_on_loss:
            del self._owned[partition]
            return
        self._epoch += 1
        self._owned[partition] = _Owned(self._epoch, True, owned.committed, start)
        self._done.pop(partition, None)
        if self._keeps_all:
            self._done[partition] = Claim(start, start)
            self._unrecorded = True

    def take_losses(self) -> list[str]:
        """The losses since this was last called, as sentences without a full stop."""
        found, self._losses = self._losses, []
        return found

    def _recreated(self, topics: Iterable[str]) -> None:
        """A topic was deleted and created again: forget what is remembered of it."""
        for topic in topics:
            self._losses.append(f"topic {topic} was deleted and created again, and what it had before is gone")
            for partition in [partition for partition in self._done if partition.topic == topic]:
                del self._done[partition]
            self._epoch += 1
            for partition in [partition for partition in self._owned if partition.topic == topic]:
                self._owned[partition] = _Owned(self._epoch, renewed=True)
                if self._fails_on_loss:
                    del self._owned[partition]

    def reset(self, partition: TopicPartition, offset: int) -> None:
        """Where the reset policy has a partition start."""
        owned = self._owned.get(partition)
        if owned is not None and owned.known and owned.position is None:
            owned.position = offset
            if self._keeps_all:
                self._done[partition] = Claim(offset, offset)
                self._unrecorded = True

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Own these no more: given up after a drain, or lost. A batch that still reads them is an orphan for them."""
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
            # The group was set back, or other members went on: what was done before no longer counts. If it were kept,
            # an operator's wish to have a range read again would be taken half-way for a lost commit.
            del self._done[partition]

    def _is_claimed(self, partition: TopicPartition) -> bool:
        return self._batch is not None and partition in self._batch.offset.claims

    def _note(self) -> str:
        """The metadata of this query's commits: its name, and the last batch that is done."""
        return f"spark:{self.name}/{self._seq - (self._batch is not None)}"

    def _is_own(self, note: str) -> bool:
        """Whether a commit's metadata is this query's. Older versions, whose offsets lack the name, wrote none."""
        name = note.rpartition("/")[0]
        return bool(name) and (name == f"spark:{self.name}" or (self._older_names and name == "spark"))

    def _number(self, note: str) -> int:
        """The last batch that was done when this query made a commit; -1 where the note does not say: older versions
        had the number of the batch under way."""
        name, _, number = note.rpartition("/")
        return int(number) if name != "spark" and number.isdecimal() else -1

    def _may_read(self, owned: _Owned) -> bool:
        return not self._notes_first or owned.committed is None or self._is_own(owned.note)

    # --- draining (rules 4 and 5) ------------------------------------------------------------------------------------

    def drain(self, partitions: Iterable[TopicPartition], deadline: int) -> None:
        """Begin to give partitions up; `may_give_up` says when it is done, then call `revoked`."""
        self._drain = _Drain(set(partitions), deadline)

    def may_give_up(self, now: int, hopeless: Set[TopicPartition] = frozenset()) -> bool:
        """Whether the partitions being drained can be given up: no batch reads them, and none waits for a commit.

        `hopeless` are partitions whose commit is not waited for."""
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
        """The end of the next batch: new claims up to `ends`, or `start` itself where there is nothing to read."""
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
        """How many records there are to read, up to `ends`."""
        return sum(self._available(ends).values())

    def _available(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {
            partition: ends[partition] - position
            for partition, position in self.positions().items()
            if ends.get(partition, 0) > position and self._may_read(self._owned[partition])
        }

    def begin_from(self, start: dict[str, Any]) -> None:
        """Everything up to `start` is done, since Spark asks what comes after it (rules 2 and 3)."""
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
        """Spark says in another way that the batch is done: by `commit`, or by its commit log. A second call does
        nothing."""
        batch = self._batch
        if batch is not None and to_json(batch.offset) == end:
            self._finish(batch)

    def planned(self, end: dict[str, Any]) -> Claims:
        """The claims of the batch with this end (rules 3, 9); the same each time it is called."""
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
        """Whether a planned batch is a replay to be trimmed (rule 9): wait until the group has given partitions and
        none is `unresolved`, then `trim`, then plan it again."""
        batch = self._batch
        trims = self._replay is Replay.TRIM and batch is not None and batch.replayed
        return trims and batch is not None and batch.offset.seq not in self._trimmed

    def trim(self) -> None:
        """Cut the replayed batch to what is owned and not committed; the same for every planning of it."""
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
                        # The batch begins at the group's offset, so it obeys that commit, and moves on from there. If
                        # the position were resolved anew, another member's commit would have the same records read
                        # once more.
                        batch.epochs[partition] = owned.epoch
        self._trimmed[batch.offset.seq] = trimmed

    def _position(self, partition: TopicPartition) -> int:
        position = self._owned[partition].position
        assert position is not None
        return position

    def _unclaim(self) -> None:
        """Forget a claim that was never planned: Spark did not use it, so it is made again (rule 3)."""
        if self._batch is not None and self._batch.state is BatchState.CLAIMED:
            self._seq -= 1
            self._settle()

    def _finish(self, batch: _Batch) -> None:
        """A batch is done: positions move for partitions owned since its claim; the rest is remembered (rule 6)."""
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
        """Ranges were done by the end of the batch with this number."""
        self._done.update(done)
        self._done_by.update(dict.fromkeys(done, batch))

    def _is_same(self, topic: str, offset: QueryOffset) -> bool:
        """Whether a topic is still the one that an offset is about."""
        then = offset.topics.get(topic)
        return then is None or not then.id or then.id == self._topics.topic_id(topic)

    def _settle(self) -> None:
        """No batch is under way: partitions that waited for its end get their positions."""
        self._batch = None
        for partition, owned in self._owned.items():
            if owned.known and owned.position is None:
                self._resolve(partition, owned)

    def _restore(self, start: QueryOffset) -> None:
        """The first call after a start asks what follows `start`: everything in it was done by an earlier run."""
        again = self._remember(start)
        if start == INITIAL:
            return
        finished = start.finished()
        if self._replay is Replay.TRIM:
            # A trimmed replay may have skipped what other members owned then, which the checkpoint does not tell: of
            # these claims only the beginning is sure.
            finished = {partition: Claim(claim.start, claim.start) for partition, claim in finished.items()}
        self._add_done(finished, start.seq - 1)
        self._add_done({partition: finished[partition] for partition in start.claims}, start.seq)
        self._recreated(again)
        self._unknow(self._done)

    def _remember(self, offset: QueryOffset) -> list[str]:
        """Take note of what an offset says of the query itself. Returns the topics that were created again since."""
        self._seq = offset.seq
        if offset.seq:
            if offset.share != self._share:
                raise ConfigError(
                    f"the checkpoint belongs to share {offset.share} of the partitions, and share is {self._share}: "
                    "what the query keeps of its records would not fit; begin with a new checkpointLocation"
                )
            self._restarted = True
            self.state.known |= bool(offset.state)
            self.state.read([*offset.state, *offset.claims, *offset.uncommitted])
            self._older_names = not offset.query
            self.name = offset.query or self.name
        return self._topics.restore(offset.topics)

    def _unknow(self, partitions: Iterable[TopicPartition]) -> None:
        """Resolve these positions again: what the query has done before became known only after they were resolved."""
        for partition in list(partitions):
            owned = self._owned.get(partition)
            if owned is not None and owned.known:
                owned.position = None
                self._resolve(partition, owned)

    # --- commits (rules 5 to 7) --------------------------------------------------------------------------------------

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions that the group does not know yet: of done batches, of resolved gains and of the reset policy.

        None before Spark has said where the query stands: without its name in the checkpoint, and what it has done, a
        commit would hide that an earlier one was lost."""
        if not self._started:
            return {}
        note = self._note()
        return {
            partition: OffsetAndMetadata(owned.position, metadata=note)
            for partition, owned in self._owned.items()
            if owned.position is not None and (owned.position != owned.committed or not self._is_own(owned.note))
        }

    def epoch(self, partition: TopicPartition) -> int | None:
        """The epoch under which a partition is owned now; the caller keeps it with a commit that it sends."""
        owned = self._owned.get(partition)
        return owned.epoch if owned else None

    def acknowledged(self, partition: TopicPartition, offset: int, epoch: int | None) -> None:
        """The group has acknowledged a commit that was sent under this epoch."""
        if not self._is_under(partition, epoch):
            return
        owned = self._owned[partition]
        owned.committed, owned.note = offset, self._note()
        done = self._done.get(partition)
        if done is not None and done.end <= offset:
            del self._done[partition]
