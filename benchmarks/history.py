"""The history of a large topic of groups, in Spark.

    python -m benchmarks history make DIR [--groups 10000] [--commits 20000000]
    python -m benchmarks history run DIR [--master 'local[2]' | --workers 2] [--tables DIR]

`make` writes segment files of `__consumer_offsets` with 50 partitions: groups of two members that commit ten partitions
every five seconds and sometimes rebalance. `run` computes all its tables in batch and reports how long that took,
without Spark's start; `--workers` starts a standalone cluster on this machine, with one core per worker.
"""

from __future__ import annotations

import argparse
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from crc32c import crc32c

from muster.local.ports import free_ports
from muster.protocol.group_records import GroupMetadataRecord, encode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from muster.protocol.records.record_batch import RecordFields
from muster.protocol.subscription import Subscription, encode_assignment_by_topic, encode_subscription
from tests.support.written import build_batch

PARTITIONS = 50
OF_A_GROUP = 10
ROUND_MS = 5_000
REBALANCE_ROUNDS = 60
BEGIN_MS = 1_790_000_000_000

_OFFSET, _TIME = 0x1122334455667788, 0x1234567890ABCDEF
_COMMIT = struct.Struct(">hqihq")


class _Round:
    """One commit of all groups of a partition: a batch that is built once and written with different numbers each
    time."""

    def __init__(self, groups: list[str]) -> None:
        value = _COMMIT.pack(3, _OFFSET, -1, 0, _TIME)
        records: list[RecordFields] = [
            (BEGIN_MS, _commit_key(group, partition), value, []) for group in groups for partition in range(OF_A_GROUP)
        ]
        self.records = len(records)
        self._batch = np.frombuffer(bytes(build_batch(records)), np.uint8).copy()
        self._offsets = self._places(_OFFSET)
        self._times = self._places(_TIME)

    def bytes_at(self, base_offset: int, number: int) -> bytes:
        """The batch for a round: with its offset in the log, the committed offsets, and the time."""
        now_ms = BEGIN_MS + number * ROUND_MS
        self._put(self._offsets, 1_000 * number + 7)
        self._put(self._times, now_ms)
        return stamped(self._batch.tobytes(), base_offset, now_ms)

    def _places(self, number: int) -> np.ndarray:
        data, sought, found, at = self._batch.tobytes(), struct.pack(">q", number), [], -1
        while (at := data.find(sought, at + 1)) >= 0:
            found.append(at)
        assert len(found) == self.records
        return np.array(found)[:, None] + np.arange(8)

    def _put(self, places: np.ndarray, number: int) -> None:
        self._batch[places] = np.frombuffer(struct.pack(">q", number), np.uint8)


def stamped(batch: bytes, base_offset: int, now_ms: int) -> bytes:
    """A batch with its offset in the log, and its time."""
    found = bytearray(batch)
    struct.pack_into(">q", found, 0, base_offset)
    struct.pack_into(">qq", found, 27, now_ms, now_ms)
    struct.pack_into(">I", found, 17, crc32c(memoryview(found)[21:]))
    return bytes(found)


def _commit_key(group: str, partition: int) -> bytes:
    name, topic = group.encode(), b"events"
    return struct.pack(f">hh{len(name)}sh{len(topic)}si", 1, len(name), name, len(topic), topic, partition)


def generation(group: str, number: int, now_ms: int) -> tuple[bytes, bytes | None]:
    """A generation in which one of two members has just been replaced."""
    names = [f"{group}-m{number // 2 * 2}", f"{group}-m{(number + 1) // 2 * 2 - 1}"]
    said = encode_subscription(Subscription(["events"]))
    half = OF_A_GROUP // 2
    members = [
        MemberMetadata(
            name, None, group, "/10.0.0.1", 300_000, 45_000, said,
            encode_assignment_by_topic({"events": list(range(index * half, index * half + half))}),
        )
        for index, name in enumerate(names)
    ]  # fmt: skip
    value = GroupMetadataValue("consumer", number, "range", names[0], now_ms, members)
    return encode_record(GroupMetadataRecord(GroupMetadataKey(group), value))


def make(folder: Path, groups: int, commits: int) -> int:
    """Write the segment files; returns the number of records."""
    records = 0
    for partition in range(PARTITIONS):
        own = [f"group-{number:06d}" for number in range(partition, groups, PARTITIONS)]
        path = folder / f"__consumer_offsets-{partition}"
        path.mkdir(parents=True)
        records += _write(path, own, max(1, round(commits / groups / OF_A_GROUP)))
    return records


def _write(path: Path, groups: list[str], rounds: int) -> int:
    each = _Round(groups)
    offset = 0
    with (path / f"{0:020d}.log").open("wb") as log:
        for number in range(rounds):
            if number % REBALANCE_ROUNDS == 0:
                now_ms = BEGIN_MS + number * ROUND_MS
                made: list[RecordFields] = [
                    (now_ms, *generation(g, number // REBALANCE_ROUNDS + 1, now_ms), []) for g in groups
                ]
                log.write(stamped(bytes(build_batch(made)), offset, now_ms))
                offset += len(made)
            log.write(each.bytes_at(offset, number))
            offset += each.records
    return offset


@contextmanager
def standalone(workers: int) -> Iterator[str]:
    """A standalone cluster on this machine; yields its master."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port, *ports = free_ports(1 + workers)
    master = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    deploy = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    here = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]
    commands = [[deploy[0], f"{deploy[1]}.master.Master", *here, str(port)]]
    worker = [deploy[0], f"{deploy[1]}.worker.Worker", "--cores", "1", "--memory", "2g"]
    commands += [[*worker, *here, str(own), master] for own in ports]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for command in commands]
    try:
        yield master
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)


def run(folder: str, master: str) -> None:
    """Compute all tables, and report the time."""
    from muster.spark import history, session

    spark = session("history benchmark", master, **{"spark.ui.enabled": False, "spark.log.level": "ERROR"})
    began, cpu = time.monotonic(), _cpu_s()
    tables = history.tables(spark, folder=folder)
    counts = {name: getattr(tables, name).count() for name in ("generations", "rebalances", "notes", "findings")}
    took = time.monotonic() - began
    records = sum(row["records"] for row in tables.counts.collect())
    print(f"{master}: {records:,} records in {took:.1f} s: {records / took:,.0f} records/s; {counts}")
    print(f"largest Python process of this machine: {_largest_mb():,} MB; this process: {_cpu_s() - cpu:.1f} s of CPU")
    spark.stop()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _largest_mb() -> int:
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if "\nName:\tpython" in f"\n{text}" and "VmHWM:" in text:
            found = max(found, int(text.split("VmHWM:")[1].split()[0]) // 1024)
    return found


def main() -> None:
    """Make the topic, or run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=20_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.what == "make":
        began = time.monotonic()
        records = make(arguments.folder, arguments.groups, arguments.commits)
        print(f"{records:,} records in {time.monotonic() - began:.1f} s")
    elif arguments.workers:
        with standalone(arguments.workers) as master:
            run(str(arguments.folder.resolve()), master)
    else:
        run(str(arguments.folder.resolve()), arguments.master)


if __name__ == "__main__":
    main()
