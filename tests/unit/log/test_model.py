"""The log against a model of it, a list: Hypothesis appends, reads, flushes, crashes, tears, deletes and compacts."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster.log import CleanupPolicy, FsyncPolicy, LogConfig, LogStore
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from tests.support.logs import NOW, batch, read_all
from tests.support.power import Unsynced
from tests.support.scale import examples

TP = TopicPartition("modelled", 0)
keys = st.sampled_from([b"a", b"b", b"c"])
values = st.none() | st.binary(max_size=60)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)


class LogMachine(RuleBasedStateMachine):
    """`rows` is what was appended and not deleted; once `compacted`, older values of a key may be missing from the
    log."""

    @initialize(fsync=st.sampled_from(FsyncPolicy), policy=st.sampled_from(CleanupPolicy))
    def begin(self, fsync, policy):
        self.root = Path(tempfile.mkdtemp())
        self.fsync = fsync
        self.config = LogConfig(
            segment_bytes=700, index_interval_bytes=150, retention_bytes=2_000, cleanup_policy=policy
        )
        self.now = NOW
        self.rows = []
        self.compacted = False
        self.open()

    def open(self):
        self.store = LogStore.open(self.root, now=self.now, fsync=self.fsync, defaults=self.config, files=Unsynced())
        self.log = self.store.create(TP)

    @rule(pairs=pairs, codec=st.sampled_from(Compression))
    def append(self, pairs, codec):
        self.now += 10
        result = self.log.append(batch(*pairs, timestamp=self.now, compression=codec), now=self.now)
        start = self.rows[-1][0] + 1 if self.rows else result.base_offset
        assert result.base_offset >= start
        self.rows += [(result.base_offset + at, key, value) for at, (key, value) in enumerate(pairs)]

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 2_000))
    def read(self, share, max_bytes):
        start = self.log.log_start_offset
        offset = start + int(share * (self.log.high_watermark - start))
        self.check(read_all(self.log, offset, max_bytes), offset)

    def check(self, found, offset):
        high_watermark = self.log.high_watermark
        expected = [row for row in self.rows if offset <= row[0] < high_watermark]
        if not self.compacted:
            assert found == expected
            return
        assert set(found) <= set(expected)
        assert [at for at, _, _ in found] == sorted({at for at, _, _ in found})
        if offset == self.log.log_start_offset:
            last = {key: value for _, key, value in expected}
            seen = {key: value for _, key, value in found}
            for key, value in last.items():
                assert seen.get(key) == value

    @rule()
    def flush(self):
        self.store.flush()
        if self.fsync is not FsyncPolicy.NEVER:
            assert self.log.recovery_point == self.log.log_end_offset

    @rule(days=st.integers(0, 2))
    def housekeeping(self, days):
        self.now += days * 86_400_000
        self.store.housekeeping(self.now)
        self.compacted |= self.config.cleanup_policy.compacts
        self.forget()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share):
        start = self.log.log_start_offset
        self.log.delete_records(start + int(share * (self.log.high_watermark - start)))
        self.forget()

    def forget(self):
        self.rows = [row for row in self.rows if row[0] >= self.log.log_start_offset]

    @rule(clean=st.booleans())
    def open_again(self, clean):
        self.store.write_checkpoints()
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.store.close(clean=clean)
        self.open()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (start, end)

    @rule(torn=st.integers(1, 200))
    def tear(self, torn):
        """A power cut that costs the end of the active segment."""
        segments = self.log.segments
        if not segments:
            return
        path, size, base = segments[-1].path, segments[-1].size, segments[-1].base_offset
        whole = [header for at, header in segments[-1].headers() if at + header.size <= size - torn]
        good_end = whole[-1].next_offset if whole else base
        self.store.write_checkpoints()
        self.store.close(clean=False)
        with path.open("r+b") as file:
            file.truncate(max(size - torn, 0))
        self.open()
        # What was recorded as synced is gone, too: the disk lied. Those offsets are not assigned again.
        assert self.log.log_end_offset >= good_end
        self.rows = [row for row in self.rows if row[0] < good_end]
        self.forget()

    @invariant()
    def ends_are_in_order(self):
        if hasattr(self, "log"):
            assert self.log.log_start_offset <= self.log.high_watermark <= self.log.log_end_offset
            if self.rows:
                assert self.log.log_end_offset > self.rows[-1][0]

    @invariant()
    def all_is_there(self):
        if hasattr(self, "log"):
            self.check(read_all(self.log), self.log.log_start_offset)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close(clean=False)
            shutil.rmtree(self.root)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
