"""Transactions of a log against a model of them: Hypothesis begins, ends, repeats, fences, crashes, tears and compacts.

The model is a list of what was written and a plain reading of the log's own batches (`rebuilt`): what the log keeps in
indexes, snapshots and memory must agree with it, even after every start."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster.errors import ErrorCode
from muster.log import CleanupPolicy, FsyncPolicy, LogConfig, LogError, LogStore
from muster.log.files import Files
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.records.control_records import TxnMarker
from tests.support.logs import NOW, Row, batch
from tests.support.power import Unsynced
from tests.support.scale import examples
from tests.support.transactions import check_rebuilt, read_committed, rebuilt, sent

TP = TopicPartition("transactions", 0)
DAY = 86_400_000
PRODUCERS = (1, 2, 3)
keys = st.sampled_from([b"a", b"b", b"c"])
values = st.none() | st.binary(max_size=40)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=3)


@dataclass
class Sent:
    """A batch: its records, the producer of its transaction (None: no transaction), and whether that was committed,
    once known."""

    rows: list[Row]
    producer: int | None
    committed: bool | None


@dataclass
class Producer:
    """What a producer and its coordinator know. Those that support transaction version 2 get a new epoch each time."""

    tv2: bool
    epoch: int = 0
    sequence: int = 0
    first: int | None = None
    late_guard: int | None = None
    """A guard of an earlier transaction, which must no longer open anything."""


class TransactionMachine(RuleBasedStateMachine):
    @initialize(fsync=st.sampled_from([FsyncPolicy.INTERVAL, FsyncPolicy.ALWAYS]), compacts=st.booleans())
    def begin(self, fsync, compacts):
        self.root = Path(tempfile.mkdtemp())
        self.fsync = fsync
        self.config = LogConfig(
            segment_bytes=500,
            index_interval_bytes=150,
            cleanup_policy=CleanupPolicy.COMPACT if compacts else CleanupPolicy.DELETE,
            delete_retention_ms=DAY,
            producer_id_expiration_ms=365 * DAY,
            retention_ms=-1,
        )
        self.now = NOW
        self.sent = []
        self.producers = {pid: Producer(tv2=pid == 3) for pid in PRODUCERS}
        self.compacted = False
        self.files = Unsynced()
        self.open()

    def open(self):
        files: Files = self.files
        self.store = LogStore.open(self.root, now=self.now, fsync=self.fsync, defaults=self.config, files=files)
        self.log = self.store.create(TP)

    # ---------------------------------------------------------------------------------------------- what happens

    @rule(pairs=pairs)
    def plain(self, pairs):
        self.now += 10
        base = self.log.append(batch(*pairs, timestamp=self.now), now=self.now).base_offset
        self.sent.append(Sent([(base + at, *pair) for at, pair in enumerate(pairs)], None, True))

    @rule(pid=st.sampled_from(PRODUCERS), pairs=pairs)
    def produce(self, pid, pairs):
        self.now += 10
        who = self.producers[pid]
        guard = self.log.begin_verification(pid, who.epoch, who.sequence, tv2=who.tv2, now=self.now)
        assert (guard is None) == (who.first is not None)
        data = sent(pid, who.epoch, who.sequence, *pairs, time=self.now)
        base = self.log.append(data, now=self.now, guard=guard).base_offset
        who.sequence += len(pairs)
        who.first = base if who.first is None else who.first
        who.late_guard = guard or who.late_guard
        self.sent.append(Sent([(base + at, *pair) for at, pair in enumerate(pairs)], pid, None))

    @rule(pid=st.sampled_from(PRODUCERS), commit=st.booleans(), twice=st.booleans())
    def end(self, pid, commit, twice):
        who = self.producers[pid]
        self.now += 10
        if who.tv2:
            who.epoch, who.sequence = who.epoch + 1, 0
        for _ in range(1 + twice):
            result = self.log.append_marker(TxnMarker(pid, who.epoch, commit, 0, 2 if who.tv2 else 0), now=self.now)
            assert result.error is ErrorCode.NONE
        for one in self.sent:
            if one.producer == pid and one.committed is None:
                one.committed = commit
        who.first = None

    @rule(pid=st.sampled_from(PRODUCERS))
    def late(self, pid):
        """A batch whose guard is used up, and one of a fenced producer."""
        who = self.producers[pid]
        if who.first is None:
            assert self.refused(pid, who.epoch, who.sequence, who.late_guard) is ErrorCode.INVALID_TXN_STATE
        if who.epoch:
            known = self.log.producers.producers.get(pid)
            if known is not None and known.epoch == who.epoch:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
                assert self.refused(pid, who.epoch - 1, 0, who.late_guard) is code

    def refused(self, pid, epoch, sequence, guard):
        try:
            self.log.append(sent(pid, epoch, sequence, (b"late", b"late")), now=self.now, guard=guard)
        except LogError as error:
            return error.code
        return None

    @rule()
    def flush(self):
        self.store.flush()

    @rule(clean=st.booleans())
    def open_again(self, clean):
        self.store.write_checkpoints()
        self.store.close(clean=clean)
        self.open()

    @rule(which=st.integers(0, 5), how=st.sampled_from(["removed snapshot", "damaged index", "no offset index"]))
    def damage(self, which, how):
        """After a shutdown. What is lost is rebuilt from the log."""
        self.store.close()
        suffix = {"removed snapshot": "snapshot", "damaged index": "txnindex", "no offset index": "index"}[how]
        found = sorted(self.log.directory.glob(f"*.{suffix}"), reverse=True)
        if found:
            path = found[which % len(found)]
            if how == "damaged index":
                path.write_bytes(path.read_bytes()[:-1])
            else:
                path.unlink()
        self.open()

    @rule(days=st.integers(0, 3))
    def housekeeping(self, days):
        self.now += days * DAY
        self.store.flush()
        self.store.housekeeping(self.now)
        self.compacted |= self.config.cleanup_policy.compacts

    # ------------------------------------------------------------------------------------------------------- invariants

    def expected(self, start=0):
        end = self.log.last_stable_offset
        return [row for one in self.sent if one.committed for row in one.rows if start <= row[0] < end]

    def check(self, found, start=0):
        expected = self.expected(start)
        if not self.compacted:
            assert found == expected
            return
        assert set(found) <= set(expected), "a record that was aborted, or is open, is seen"
        assert [row[0] for row in found] == sorted({row[0] for row in found})
        seen = {key: value for _, key, value in found}
        for key, value in {key: value for _, key, value in expected}.items():
            assert seen.get(key) == value, f"the last committed value of {key!r} is gone"

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 1_500))
    def read(self, share, max_bytes):
        start = int(share * self.log.high_watermark)
        self.check(read_committed(self.log, start, max_bytes), start)

    @rule(share=st.floats(0, 1), level=st.sampled_from([READ_COMMITTED, READ_UNCOMMITTED]))
    def the_size_is_that_of_what_is_read(self, share, level):
        offset = int(share * self.log.high_watermark)
        found = self.log.readable_size(offset, level)
        size = 0
        while data := (result := self.log.read(offset, 1, isolation_level=level)).data:
            size, offset = size + len(data), result.next_offset
        assert found == size

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 1_500))
    def the_aborted_list_is_exact(self, share, max_bytes):
        start = int(share * self.log.high_watermark)
        found = self.log.read(start, max_bytes, isolation_level=READ_COMMITTED)
        assert found.last_stable_offset == self.log.last_stable_offset
        if not self.compacted:
            wanted = rebuilt(self.log).overlapping(start, found.next_offset) if found.data else []
            assert found.aborted == wanted

    @invariant()
    def all_is_there(self):
        if hasattr(self, "log"):
            self.check(read_committed(self.log))

    @invariant()
    def what_is_kept_is_what_the_batches_say(self):
        if not hasattr(self, "log"):
            return
        if not self.compacted:
            check_rebuilt(self.log)
        opened = {pid: who.first for pid, who in self.producers.items() if who.first is not None}
        assert {one.producer_id: one.first_offset for one in self.log.open_transactions()} == opened
        if self.log.high_watermark == self.log.log_end_offset:
            assert self.log.last_stable_offset == min(opened.values(), default=self.log.high_watermark)

    @invariant()
    def ends_are_in_order(self):
        if hasattr(self, "log"):
            log = self.log
            assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close(clean=False)
            shutil.rmtree(self.root)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
