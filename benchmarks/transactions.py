"""Transactions on muster's broker and on Apache Kafka, in turn.

    python -m benchmarks transactions [--rounds 3] [--seconds 3] [--ids 100000] [--only muster kafka] [--write-docs]

Both brokers have default settings. Each producer has a connection and a partition of its own and does what a client of
`transaction.version` 2 does: a Produce, which also adds the partition to the transaction, then an EndTxn, whose
response has the next epoch. A transaction lasts from its Produce to the answer of its EndTxn. All producers are in one
thread of this process, which does little more than send prepared batches of records of 100 B. The last rows measure
starts, after a kill, with many transactional ids.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from benchmarks import report
from benchmarks.servers import Kafka, Muster, Server
from benchmarks.wire import TIMEOUT_S, Asker, BenchmarkError, connect, frame
from muster.errors import ErrorCode
from muster.protocol import framing
from muster.protocol.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import DescribeTransactionsRequest, EndTxnRequest

TOPIC, BYTES = "transactions", 100
PRODUCE_VERSION, END_VERSION = 12, 5
WARM_UP_S, FIRST_WARM_UP_S = 1.0, 8.0
TRANSACTION = 1
"""The key type of FindCoordinator."""
SHARDS = 50
FILLED_AT_ONCE = 200
_IDS, _CRC = Struct(">qh"), Struct(">I")

Figures = dict[str, float]
Found = dict[str, dict[str, list[Figures]]]
"""By case and server."""


class Case(NamedTuple):
    """Concurrent producers, each of whose transactions has this many records."""

    producers: int
    records: int

    @property
    def name(self) -> str:
        producers = "one producer" if self.producers == 1 else f"{self.producers} producers"
        return f"{producers}, {self.records} record{'s' if self.records > 1 else ''} each"


CASES = (Case(1, 1), Case(1, 10), Case(1, 100), Case(50, 1), Case(50, 10))
START = "a start with many ids"


class Row(NamedTuple):
    """One line of a case."""

    figure: str
    label: str
    less_is_better: bool


ROWS = (
    Row("per_s", "transactions/s", False),
    Row("transaction_p50_ms", "transaction, median, ms", True),
    Row("transaction_p99_ms", "transaction, 99th percentile, ms", True),
    Row("commit_p50_ms", "EndTxn, median, ms", True),
    Row("commit_p99_ms", "EndTxn, 99th percentile, ms", True),
    Row("server_us", "server's CPU for each, µs", True),
    Row("serving_ms", "until all ids are served, ms", True),
    Row("cpu_ms", "server's CPU until then, ms", True),
    Row("rss_mb", "resident memory then, MB", True),
)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--ids", type=int, default=100_000, help="transactional ids for the measured start; 0 omits it")
    parser.add_argument("--only-start", action="store_true", help="leave out the transactions")
    parser.add_argument("--only", nargs="+", choices=["muster", "kafka"], default=["muster", "kafka"])
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    kinds: list[type[Server]] = [kind for kind in (Muster, Kafka) if kind.name in arguments.only]
    found: Found = {}
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        servers = [kind(Path(folder) / kind.name) for kind in kinds]
        try:
            _measure(servers, found, arguments)
        except BenchmarkError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
        finally:
            for server in servers:
                server.stop()
    after = os.getloadavg()
    path = report.save_as("transactions", {"seconds": arguments.seconds, "runs": found})
    head, rows = ("", "", "muster", "Kafka 4.2", "muster is better by"), _rows(found)
    load = f"load averages before and after: {before[0]:.1f} and {after[0]:.1f}"
    note = f"Medians of {arguments.rounds} runs of {arguments.seconds:g} s on {report.machine()}; {load}."
    print(f"\n{report.plain_table(head, rows, left=(0, 1))}\n\n{note} All figures: {path}")
    if arguments.write_docs:
        ids = f"The start had {arguments.ids:,} transactional ids."
        report.put_on_page("transactions", f"{note} {ids}\n\n{report.markdown_table(head, rows, left=(0, 1))}")
    return 0


def _measure(servers: Sequence[Server], found: Found, arguments: argparse.Namespace) -> None:
    for server in servers:
        server.prepare()
        server.start()
        if not arguments.only_start:
            _create_topic(server)
            _run(server, Case(1, 1), 1.0, FIRST_WARM_UP_S)
    for case in () if arguments.only_start else CASES:
        for _ in range(arguments.rounds):
            for server in servers:
                _note(found, case.name, server, _run(server, case, arguments.seconds, WARM_UP_S))
    for server in servers if arguments.ids else ():
        _fill(server, arguments.ids)
        for _ in range(arguments.rounds):
            _note(found, START, server, _restart(server))


def _create_topic(server: Server) -> None:
    with Asker(server.address) as asker:
        topic = CreatableTopic(TOPIC, max(case.producers for case in CASES), 1, [], [])
        [created] = asker.ask(CreateTopicsRequest([topic], timeout_ms=30_000), 7).topics
        if created.error_code != ErrorCode.NONE:
            raise BenchmarkError(f"{server.name} did not create the topic: {created.error_message}")


def _ids(asker: Asker, transactional_id: str) -> tuple[int, int]:
    """The ids of a producer, once the coordinator is available and the last transaction has ended."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        found = asker.ask(InitProducerIdRequest(transactional_id, 60_000, -1, -1), 4)
        if found.error_code == ErrorCode.NONE:
            return found.producer_id, found.producer_epoch
        asker.ask(FindCoordinatorRequest("", TRANSACTION, [transactional_id]), 4)
        time.sleep(0.05)
    raise BenchmarkError(f"no producer id: {ErrorCode(found.error_code).name}")


class Producer:
    """One transaction after the other on a connection."""

    def __init__(self, server: Server, number: int, records: int) -> None:
        self._id, self._number = f"bench-{number}", number
        with Asker(server.address) as asker:
            self._producer_id, self._epoch = _ids(asker, self._id)
        batch = BatchBuilder()
        for _ in range(records):
            batch.append(1_700_000_000_000, None, bytes(BYTES))
        self._batch = bytearray(batch.build(base_sequence=0, transactional=True))
        self.socket = connect(server.address)
        self._received = bytearray()
        self._ending = False
        self._begun = self._ended = 0.0
        self.transactions: list[float] = []
        self.commits: list[float] = []

    def begin(self) -> None:
        """Send the records of the next transaction."""
        self._begun = time.perf_counter()
        self._produce()

    def _produce(self) -> None:
        self._ending = False
        _IDS.pack_into(self._batch, 43, self._producer_id, self._epoch)
        _CRC.pack_into(self._batch, 17, crc32c(memoryview(self._batch)[21:]))
        data = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(self._number, bytes(self._batch))])
        self.socket.sendall(frame(ProduceRequest(self._id, -1, 30_000, [data]), PRODUCE_VERSION))

    def _end(self) -> None:
        self._ending, self._ended = True, time.perf_counter()
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, True)
        self.socket.sendall(frame(request, END_VERSION))

    def read(self) -> bool:
        """Read what has arrived, and send the next request; returns whether a transaction is over."""
        received = self._received
        received += self.socket.recv(65_536)
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            return False
        answer, self._received = bytes(received[4:]), bytearray()
        if not self._ending:
            [topic] = framing.decode_response(answer, ProduceRequest, PRODUCE_VERSION).responses
            [partition] = topic.partition_responses
            if partition.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
                self._produce()
            elif partition.error_code != ErrorCode.NONE:
                raise BenchmarkError(f"a Produce was rejected: {ErrorCode(partition.error_code).name}")
            else:
                self._end()
            return False
        ended = framing.decode_response(answer, EndTxnRequest, END_VERSION)
        if ended.error_code != ErrorCode.NONE:
            raise BenchmarkError(f"an EndTxn was rejected: {ErrorCode(ended.error_code).name}")
        self._producer_id, self._epoch = ended.producer_id, ended.producer_epoch
        now = time.perf_counter()
        self.transactions.append(now - self._begun)
        self.commits.append(now - self._ended)
        return True


def _run(server: Server, case: Case, seconds: float, warm_up_s: float) -> Figures:
    producers = [Producer(server, number, case.records) for number in range(case.producers)]
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for producer in producers:
            stack.callback(producer.socket.close)
            selector.register(producer.socket, selectors.EVENT_READ, producer)
            producer.begin()
        _drive(selector, warm_up_s, producers)
        for producer in producers:
            producer.transactions.clear()
            producer.commits.clear()
        cpu, own, begun = server.cpu_s(), time.process_time(), time.perf_counter()
        _drive(selector, seconds, producers)
        cpu_after, own, took = server.cpu_s(), time.process_time() - own, time.perf_counter() - begun
    transactions = sorted(each for producer in producers for each in producer.transactions)
    commits = sorted(each for producer in producers for each in producer.commits)
    count = len(transactions)
    figures = {"per_s": count / took, "client_us": own / count * 1e6}
    for name, found in (("transaction", transactions), ("commit", commits)):
        figures |= {f"{name}_p50_ms": found[count // 2] * 1e3, f"{name}_p99_ms": found[count * 99 // 100] * 1e3}
    if cpu is not None and cpu_after is not None:
        figures["server_us"] = (cpu_after - cpu) / count * 1e6
    return figures


def _drive(selector: selectors.BaseSelector, seconds: float, producers: Sequence[Producer]) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        ready = selector.select(TIMEOUT_S)
        if not ready:
            raise BenchmarkError(f"no answer within {TIMEOUT_S:.0f} s")
        for key, _ in ready:
            if key.data.read():
                key.data.begin()


def _name(number: int) -> str:
    return f"many-{number}"


def _fill(server: Server, ids: int) -> None:
    """Make this many ids. A broker that has no producer ids at the moment is asked again."""
    left = [_name(number) for number in range(ids)]
    with Asker(server.address) as asker:
        _ids(asker, left[0])
        while left:
            refused: list[str] = []
            for start in range(0, len(left), FILLED_AT_ONCE):
                some = left[start : start + FILLED_AT_ONCE]
                requests = [InitProducerIdRequest(name, 60_000, -1, -1) for name in some]
                for request in requests:
                    asker.send(request, 4)
                answers = [asker.receive(request, 4) for request in requests]
                refused += [name for name, each in zip(some, answers, strict=True) if each.error_code != ErrorCode.NONE]
            left = refused


def _restart(server: Server) -> Figures:
    """Kill the server, start it again, and wait until it describes an id of each shard."""
    server.stop()
    begun = time.perf_counter()
    server.start()
    with Asker(server.address) as asker:
        while not _serves(asker):
            time.sleep(0.002)
    figures = {"serving_ms": (time.perf_counter() - begun) * 1e3}
    cpu, memory = server.cpu_s(), server.rss_mb()
    if cpu is not None and memory is not None:
        figures |= {"cpu_ms": cpu * 1e3, "rss_mb": memory}
    return figures


def _serves(asker: Asker) -> bool:
    names = [_name(number) for number in range(SHARDS * 10)]
    found = asker.ask(FindCoordinatorRequest("", TRANSACTION, names[:1]), 4).coordinators
    if any(each.error_code != ErrorCode.NONE for each in found):
        return False
    described = asker.ask(DescribeTransactionsRequest(names), 0).transaction_states
    return all(each.error_code == ErrorCode.NONE for each in described)


def _note(found: Found, case: str, server: Server, figures: Figures) -> None:
    found.setdefault(case, {}).setdefault(server.name, []).append(figures)
    told = "  ".join(f"{name} {value:,.4g}" for name, value in figures.items())
    print(f"{case:32} {server.name:7} {told}", flush=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rows(found: Found) -> Sequence[Sequence[str]]:
    rows = []
    for case, by_server in found.items():
        label = case
        for row in ROWS:
            runs = [by_server.get(name, []) for name in ("muster", "kafka")]
            if not any(row.figure in figures for figures in [*runs[0], *runs[1]]):
                continue
            ours, theirs = (median(each[row.figure] for each in some) if some else None for some in runs)
            better = "-"
            if ours and theirs:
                better = f"{theirs / ours if row.less_is_better else ours / theirs:.2g}×"
            rows.append((label, row.label, *map(_number, (ours, theirs)), better))
            label = ""
    return rows


if __name__ == "__main__":
    sys.exit(main())
