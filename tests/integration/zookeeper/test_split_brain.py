"""Split brain (Z6) with real processes: what a member does after it was frozen for longer than its session timeout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.watcher_cluster import PATIENCE_S, Cluster, until

PARTITIONS = 4
RECORDS = 1_000
GROUP = "split"
ROOT = Path(__file__).resolve().parents[3]


class Line(NamedTuple):
    """A record that a process has handed out."""

    partition: int
    offset: int
    in_hand: int
    """How many later records of its partition the process has fetched, too."""


class Member:
    """A process of tests/support/watcher_process.py."""

    def __init__(self, folder: Path, cluster: Cluster, name: str, topic: str, pause_ms: int) -> None:
        self.name = name
        self._output = folder / f"{name}.out"
        arguments = [cluster.connect, GROUP, name, topic, "3000", str(pause_ms)]
        command = [sys.executable, "-m", "tests.support.watcher_process", *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        with self._output.open("wb") as output, (folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=log)

    def lines(self) -> list[Line]:
        """The records that it has handed out."""
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [Line(*map(int, line.split())) for line in whole.splitlines()]

    def freeze(self) -> None:
        """Freeze it, with all its threads."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Resume it."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def member(folder: Path, cluster: Cluster, name: str, topic: str, pause_ms: int) -> Iterator[Member]:
    """A member that takes its time with each record."""
    found = Member(folder, cluster, name, topic, pause_ms)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


async def frozen_with_records_in_hand(cluster: Cluster, topic: str, member: Member) -> Line:
    """Freeze it while it owns the partition of the records that it has fetched; returns the last one that it handed
    out."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            lines = member.lines()
            if lines and lines[-1].in_hand > 10:
                member.freeze()
                last = member.lines()[-1]
                owners = await asyncio.to_thread(cluster.owners, GROUP, topic)
                if last.in_hand > 10 and owners.get(last.partition) == f"{GROUP}_{member.name}-0":
                    return last
                member.thaw()
            await asyncio.sleep(0.02)


async def test_a_frozen_member_wakes_up_and_hands_out_what_another_one_has_handed_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Nothing fences it: it hands out the records that it has fetched, and no record is lost."""
    topic = f"split-{os.getpid()}"
    await cluster.create(topic, PARTITIONS, records=RECORDS)
    with member(tmp_path, cluster, "a", topic, 50) as frozen:
        last = await frozen_with_records_in_hand(cluster, topic, frozen)
        before = len(frozen.lines())
        with member(tmp_path, cluster, "b", topic, 0) as other:
            # ZooKeeper ends the session, and the other one takes over everything that the frozen one had.
            everything = dict.fromkeys(range(PARTITIONS), f"{GROUP}_b-0")
            await until(lambda: cluster.owners(GROUP, topic) == everything)
            # Two owners at one moment: according to ZooKeeper it is the other one, which has handed out the record that
            # the frozen one, alive and unaware, has fetched.
            await until(lambda: (last.partition, last.offset + 1) in places(other))
            assert frozen.process.poll() is None
            taken_over = places(other)
            frozen.thaw()
            await until(lambda: len(frozen.lines()) >= before + last.in_hand)
            woken = {line[:2] for line in frozen.lines()[before:]}
            assert (last.partition, last.offset + 1) in woken
            again = taken_over & woken
            # It joins again, and at the end each record has been handed out, some of them twice.
            await until(lambda: set(cluster.owners(GROUP, topic).values()) == {f"{GROUP}_a-0", f"{GROUP}_b-0"})
            await cluster.produce(topic, PARTITIONS, range(RECORDS, RECORDS + 40))
            wanted = {(number % PARTITIONS, number // PARTITIONS) for number in range(RECORDS + 40)}
            await until(lambda: places(frozen) | places(other) >= wanted)
            times = Counter(line[:2] for lines in (frozen.lines(), other.lines()) for line in lines)
            twice = sum(1 for often in times.values() if often > 1)
            assert twice >= len(again) >= 1
            print(f"{len(wanted)} records, {twice} handed out twice, {len(again)} of them by the one that woke up")


def places(of: Member) -> set[tuple[int, int]]:
    """The records that a process has handed out."""
    return {(line.partition, line.offset) for line in of.lines()}
