"""What is measured: each mode drives one server once, and returns figures by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from struct import pack
from typing import Any, NamedTuple

from benchmarks.groups import HEARTBEAT_VERSION, Group
from benchmarks.servers import Server
from benchmarks.wire import Asker, BenchmarkError, Traffic, connect, frame, percentile, pump
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol import framing
from muster.protocol.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    HeartbeatRequest,
    HeartbeatResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.written import build_batch

COMMIT_VERSION, OFFSET_FETCH_VERSION, PRODUCE_VERSION, FETCH_VERSION = 9, 8, 11, 12
CREATE_VERSION, DELETE_VERSION, LIST_VERSION = 7, 6, 7

RECORD_BYTES = 1024
MOST_PRODUCED = 700_000_000
"""The most bytes that one run of `produce` writes, however long it may take: it measures the log, not the disk."""

FETCH_BYTES = 1024 * 1024
FETCH_FILL = 100
"""How many batches of 900 records (1 MB each) are in each partition that `fetch` reads."""

_numbers = itertools.count()
_OFFSET = 0x0123456789ABCDEF
"""A placeholder for the offset in a Fetch."""

Figures = dict[str, float]


@dataclass
class Options:
    """The command line's settings for every run."""

    seconds: float


class Mode(NamedTuple):
    """One kind of run. A `fresh` one starts the server itself."""

    run: Callable[[Server, Options], Figures]
    fresh: bool = False


def fresh_name(prefix: str) -> str:
    """A name for a topic or group that was not used before."""
    return f"{prefix}-{next(_numbers)}"


# ----------------------------------------------------------------------------------------------- start and memory


def startup(server: Server, options: Options) -> Figures:
    """From the process's start to its first successful Metadata response, and the memory that it then holds."""
    found = {"ms": server.start() * 1e3}
    cpu = server.cpu_s()
    if cpu is not None:
        found["cpu_ms"] = cpu * 1e3
    time.sleep(1.0)
    return found | resident(server, "rss_mb")


def memory(server: Server, options: Options) -> Figures:
    """With a group of 1,000 members, each on its own connection."""
    server.start()
    group = Group(server.address, fresh_name("memory"))
    group.form(1_000)
    time.sleep(0.5)
    found = resident(server, "rss_mb")
    group.close()
    return found


def resident(server: Server, name: str) -> Figures:
    rss = server.rss_mb()
    return {} if rss is None else {name: rss}


# ----------------------------------------------------------------------------------------------- groups


def rebalance(server: Server, members: int) -> Figures:
    """A group forms, and one more member joins it."""
    group = Group(server.address, fresh_name("rebalance"))
    found: Figures = {}
    changes: tuple[tuple[str, Callable[[], float]], ...] = (
        ("form", lambda: group.form(members)),
        ("one_more", group.grow),
    )
    for name, change in changes:
        cpu = server.cpu_s()
        found[f"{name}_ms"] = change() * 1e3
        cpu_after = server.cpu_s()
        if cpu is not None and cpu_after is not None:
            found[f"{name}_cpu_ms"] = (cpu_after - cpu) * 1e3
        time.sleep(0.3)
    group.leave()
    return found


def heartbeats(server: Server, options: Options, members: int, connections: int, depth: int) -> Figures:
    """Heartbeats of a stable group's members."""
    group = Group(server.address, fresh_name("heartbeats"))
    group.form(members)
    requests = [HeartbeatRequest(group.group_id, one.generation_id, one.member_id) for one in group.members]
    traffic = Traffic(requests, HEARTBEAT_VERSION, _good_heartbeat)
    found = pump(server, [traffic] * connections, depth=depth, seconds=options.seconds).figures()
    group.leave()
    return found


def _good_heartbeat(response: HeartbeatResponse) -> None:
    _good(response.error_code, "Heartbeat")


GROUPS, GROUP_SIZE, COMMIT_CONNECTIONS, COMMIT_DEPTH = 4, 10, 4, 16


def commits(server: Server, options: Options, partitions: int) -> Figures:
    """Offsets committed by the members of four groups: kept in the log before they are acknowledged."""
    topic = create_topic(server, partitions)
    groups = [Group(server.address, fresh_name("commits")) for _ in range(GROUPS)]
    traffics = []
    for group in groups:
        group.form(GROUP_SIZE)
        traffics.append(Traffic(_commits(group, topic, partitions), COMMIT_VERSION, _good_commit))
    assert len(traffics) == COMMIT_CONNECTIONS
    found = pump(server, traffics, depth=COMMIT_DEPTH, seconds=options.seconds).figures()
    for group in groups:
        group.leave()
    delete_topic(server, topic)
    return found


def _commits(group: Group, topic: str, partitions: int) -> list[OffsetCommitRequest]:
    return [
        OffsetCommitRequest(
            group.group_id,
            one.generation_id,
            one.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    topic, partitions=[OffsetCommitRequestPartition(index, number) for index in range(partitions)]
                )
            ],
        )
        for number, one in enumerate(group.members)
    ]


def _good_commit(response: OffsetCommitResponse) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            _good(partition.error_code, "OffsetCommit")


def offset_fetches(server: Server, options: Options) -> Figures:
    """Fetching the committed offset of one partition."""
    topic = create_topic(server, 1)
    traffics = []
    for _ in range(COMMIT_CONNECTIONS):
        group = fresh_name("offsets")
        partition = OffsetCommitRequestPartition(0, 42)
        with Asker(server.address) as asker:
            commit = OffsetCommitRequest(group, -1, topics=[OffsetCommitRequestTopic(topic, partitions=[partition])])
            _until_good(lambda commit=commit, asker=asker: _good_commit(asker.ask(commit, COMMIT_VERSION)))  # type: ignore[misc]
        wanted = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=wanted)])
        traffics.append(Traffic([request] * COMMIT_DEPTH, OFFSET_FETCH_VERSION, _good_offset))
    found = pump(server, traffics, depth=COMMIT_DEPTH, seconds=options.seconds).figures()
    delete_topic(server, topic)
    return found


def _good_offset(response: OffsetFetchResponse) -> None:
    partition = response.groups[0].topics[0].partitions[0]
    _good(partition.error_code, "OffsetFetch")
    if partition.committed_offset != 42:
        raise BenchmarkError(f"OffsetFetch says {partition.committed_offset} where 42 was committed")


# ----------------------------------------------------------------------------------------------- the log


def produce(server: Server, options: Options, records: int, connections: int, depth: int) -> Figures:
    """Batches of this many records of 1 KB, each connection to a partition of its own, acks=all."""
    topic = create_topic(server, connections)
    batch = bytes(build_batch([(wall_clock_ms(), None, RECORD, [])] * records))
    traffics = [
        Traffic(
            [_produce(topic, index, batch)] * (depth if records < 100 else 1),
            PRODUCE_VERSION,
            _good_produce,
            alike=False,
        )
        for index in range(connections)
    ]
    most = MOST_PRODUCED // len(batch)
    run = pump(server, traffics, depth=depth, seconds=options.seconds, most_requests=most)
    delete_topic(server, topic)
    return run.figures() | {
        "mb_per_s": run.per_second * len(batch) / 1e6,
        "records_per_s": run.per_second * records,
    }


RECORD = bytes((7 * number + number // 256) % 256 for number in range(RECORD_BYTES))


def _produce(topic: str, partition: int, batch: bytes) -> ProduceRequest:
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def _good_produce(response: ProduceResponse) -> None:
    _good(response.responses[0].partition_responses[0].error_code, "Produce")


def fetch(server: Server, options: Options) -> Figures:
    """Fetching produced records, 1 MB at a time, on two connections."""
    topic = create_topic(server, 2)
    records = 900
    batch = bytes(build_batch([(wall_clock_ms(), None, RECORD, [])] * records))
    with Asker(server.address) as asker:
        for _ in range(FETCH_FILL):
            for partition in (0, 1):
                _good_produce(asker.ask(_produce(topic, partition, batch), PRODUCE_VERSION))
    readers = [_Reader(server, topic, partition, len(batch), records) for partition in (0, 1)]
    found = _read_in_turn(server, readers, options.seconds)
    delete_topic(server, topic)
    return found


class _Reader:
    """One connection that fetches a partition from its beginning to its end, over and over."""

    def __init__(self, server: Server, topic: str, partition: int, batch_bytes: int, records: int) -> None:
        request = _fetch(topic, partition, _OFFSET, FETCH_BYTES)
        self._before, self._after = frame(request, FETCH_VERSION).split(pack(">q", _OFFSET))
        self._batch_bytes, self._records = batch_bytes, records
        self._offset = 0
        self.socket = connect(server.address)
        self._buffer = memoryview(bytearray(FETCH_BYTES + batch_bytes + 4096))

    def ask(self) -> None:
        """Send the next Fetch."""
        self.socket.sendall(self._before + pack(">q", self._offset) + self._after)

    def answer(self) -> int:
        """Read the whole answer; returns the number of bytes of records."""
        buffer, filled, end = self._buffer, 0, 4
        while filled < end:
            got = self.socket.recv_into(buffer[filled:])
            if not got:
                raise BenchmarkError("the server closed the connection")
            filled += got
            if end == 4 and filled >= 4:
                end = 4 + int.from_bytes(buffer[:4], "big")
        response: FetchResponse = framing.decode_response(buffer[4:end], FetchRequest, FETCH_VERSION)
        data = response.responses[0].partitions[0]
        _good(data.error_code, "Fetch")
        assert isinstance(data.records, memoryview)
        size = len(data.records)
        if not size or data.records[:8] != pack(">q", self._offset):
            raise BenchmarkError(f"a Fetch from offset {self._offset} brought {size} bytes that do not begin there")
        self._offset += size // self._batch_bytes * self._records
        if self._offset >= data.high_watermark:
            self._offset = 0
        return size


def _read_in_turn(server: Server, readers: Sequence[_Reader], seconds: float) -> Figures:
    """Two fetches are in flight at any time: while one answer is read, the server prepares the other."""
    try:
        cpu, own, start = server.cpu_s(), time.process_time(), time.perf_counter()
        latencies, asked, size = [], [], 0
        for reader in readers:
            asked.append(time.perf_counter())
            reader.ask()
        while time.perf_counter() < start + seconds:
            for number, reader in enumerate(readers):
                size += reader.answer()
                latencies.append((time.perf_counter() - asked[number], 1))
                asked[number] = time.perf_counter()
                reader.ask()
        wall, own, cpu_after = time.perf_counter() - start, time.process_time() - own, server.cpu_s()
        for reader in readers:
            reader.answer()
    finally:
        for reader in readers:
            reader.socket.close()
    found = {
        "mb_per_s": size / 1e6 / wall,
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "generator_us": own / len(latencies) * 1e6,
    }
    if cpu is not None and cpu_after is not None:
        found["server_us"] = (cpu_after - cpu) / len(latencies) * 1e6
    return found


def _fetch(topic: str, partition: int, offset: int, most: int) -> FetchRequest:
    wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=most)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=most, topics=[FetchTopic(topic, partitions=[wanted])])


def end_to_end(server: Server, options: Options) -> Figures:
    """From sending one record to its arrival at a consumer whose Fetch waits for it."""
    topic = create_topic(server, 1)
    record = _produce(topic, 0, bytes(build_batch([(wall_clock_ms(), None, RECORD[:100], [])])))
    seen: list[tuple[float, int]] = []
    with Asker(server.address) as producer, Asker(server.address) as consumer:
        end = time.perf_counter() + options.seconds
        offset = 0
        while time.perf_counter() < end:
            consumer.send(_fetch(topic, 0, offset, FETCH_BYTES), FETCH_VERSION)
            time.sleep(0.001)
            sent = time.perf_counter()
            producer.send(record, PRODUCE_VERSION)
            data = consumer.receive(FetchRequest(), FETCH_VERSION).responses[0].partitions[0]
            seen.append((time.perf_counter() - sent, 1))
            _good(data.error_code, "Fetch")
            if not data.records:
                raise BenchmarkError("a waiting Fetch was answered without the record")
            _good_produce(producer.receive(record, PRODUCE_VERSION))
            offset += 1
    delete_topic(server, topic)
    return {
        "p50_ms": percentile(seen, 0.5) * 1e3,
        "p99_ms": percentile(seen, 0.99) * 1e3,
        "mean_ms": sum(one for one, _ in seen) / len(seen) * 1e3,
        "records": len(seen),
    }


# ----------------------------------------------------------------------------------------------- topics


def create_topic(server: Server, partitions: int) -> str:
    """A new topic, all of whose partitions are served."""
    name = fresh_name("topic")
    with Asker(server.address) as asker:
        made = asker.ask(CreateTopicsRequest(topics=[CreatableTopic(name, partitions, 1)]), CREATE_VERSION)
        _good(made.topics[0].error_code, "CreateTopics")
        wanted = [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(name, wanted)])

        def served() -> None:
            for partition in asker.ask(request, LIST_VERSION).topics[0].partitions:
                _good(partition.error_code, "ListOffsets")

        _until_good(served)
    return name


def delete_topic(server: Server, name: str) -> None:
    """Delete it, so that runs do not fill the disk."""
    with Asker(server.address) as asker:
        gone: Any = asker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=30_000), DELETE_VERSION)
        _good(gone.responses[0].error_code, "DeleteTopics")


def _good(error: int, what: str) -> None:
    if error:
        raise BenchmarkError(f"{what} was answered {ErrorCode(error).name}")


def _until_good(attempt: Callable[[], None]) -> None:
    """A server that has just made a topic or a coordinator may need a moment before it serves it."""
    deadline = time.monotonic() + 10.0
    while True:
        try:
            return attempt()
        except BenchmarkError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


MODES: dict[str, Mode] = {
    "startup": Mode(startup, fresh=True),
    "memory": Mode(memory, fresh=True),
    "heartbeats": Mode(lambda server, options: heartbeats(server, options, 1_000, 4, 64)),
    "heartbeats-64x1": Mode(lambda server, options: heartbeats(server, options, 100, 64, 1)),
    "commits": Mode(lambda server, options: commits(server, options, 1)),
    "commits-10": Mode(lambda server, options: commits(server, options, 10)),
    "offset-fetches": Mode(offset_fetches),
    "rebalance-100": Mode(lambda server, options: rebalance(server, 100)),
    "rebalance-1000": Mode(lambda server, options: rebalance(server, 1_000)),
    "produce-900": Mode(lambda server, options: produce(server, options, 900, 2, 4)),
    "produce-16": Mode(lambda server, options: produce(server, options, 16, 2, 4)),
    "produce-single": Mode(lambda server, options: produce(server, options, 1, 4, 64)),
    "fetch": Mode(fetch),
    "end-to-end": Mode(end_to_end),
}


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    return {name: median(run[name] for run in runs) for name in runs[0]}
