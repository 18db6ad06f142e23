"""The operations of each curve on its own server, each with what it costs the server."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import sparse_log
from benchmarks.groups import (
    HEARTBEAT_VERSION,
    JOIN_VERSION,
    PROTOCOL,
    SESSION_MS,
    SYNC_VERSION,
    Group,
    find_coordinator,
)
from benchmarks.modes import COMMIT_VERSION, CREATE_VERSION, FETCH_VERSION, OFFSET_FETCH_VERSION, create_topic
from benchmarks.servers import METADATA_VERSION, Muster
from benchmarks.wire import Asker, BenchmarkError, connect, frame
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol.group_partitions import group_partition
from muster.protocol.messages import (
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

LIST_VERSION, API_VERSIONS_VERSION = 4, 3
PATIENCE_S = 120.0
LARGEST_TOPIC = 5_000
"""Partitions: one CreateTopics request may ask for twice as many, in muster and in Kafka."""

OFFSETS_OF_A_GROUP = 1_000
GROUP_SHARDS = 50
GREETED_AT_ONCE = 500
READ_PLACES = 16
GIGABYTE = 10**9


@dataclass
class Cost:
    """What an operation cost: seconds of the server's CPU and on the clock, and the server's memory afterwards."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    rss_mb: float = 0.0
    descriptors: int = 0


Costs = dict[str, Cost]


class CurveServer(Muster):
    """A server that can also be shut down cleanly."""

    def terminate(self) -> None:
        """Shut it down cleanly, as an operator does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        self._process = None

    @contextlib.contextmanager
    def cost(self) -> Iterator[Cost]:
        """The cost of what happens within the block."""
        found = Cost()
        cpu, begun = self._cpu(), time.perf_counter()
        yield found
        found.wall_s, found.cpu_s = time.perf_counter() - begun, self._cpu() - cpu
        self._look(found)

    def started(self) -> Cost:
        """The cost of a start, until Metadata was answered."""
        found = Cost(wall_s=self.start())
        found.cpu_s = self._cpu()
        self._look(found)
        return found

    def _cpu(self) -> float:
        cpu = self.cpu_s()
        if cpu is None:
            raise BenchmarkError("this system does not say how much CPU time another process has used")
        return cpu

    def _look(self, found: Cost) -> None:
        found.rss_mb = self.rss_mb() or 0.0
        found.descriptors = self.descriptors()

    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


# ----------------------------------------------------------------------------------------------- members


def members(server: CurveServer, size: int) -> Costs:
    """One group of this many members forms, each on a connection of its own, and one more joins."""
    server.start()
    group = Group(server.address, "curve")
    with server.cost() as formed:
        group.form(size)
    with server.cost() as grown:
        group.grow()
    group.close()
    return {"form": formed, "one more joins": grown}


# ----------------------------------------------------------------------------------------------- groups


def groups(server: CurveServer, size: int) -> Costs:
    """This many groups of one member form; all are listed; the server is killed and starts again."""
    server.start()
    names = [f"curve-{number}" for number in range(size)]
    _until_served(server, names)
    with server.cost() as formed, Asker(server.address) as asker:
        for name in names:
            _form_alone(asker, name)
    with server.cost() as listed, Asker(server.address) as asker:
        found = asker.ask(ListGroupsRequest(), LIST_VERSION)
    if len(found.groups) != size:
        raise BenchmarkError(f"{len(found.groups)} of {size} groups are listed")
    server.stop()
    again = _serve_again(server, names)
    return {"form": formed, "ListGroups": listed, "serve again, killed": again}


def _form_alone(asker: Asker, name: str) -> None:
    join = JoinGroupRequest(
        name, SESSION_MS, SESSION_MS, protocol_type="consumer", protocols=[JoinGroupRequestProtocol(PROTOCOL, b"")]
    )
    join.member_id = asker.ask(join, JOIN_VERSION).member_id
    joined = asker.ask(join, JOIN_VERSION)
    _good(joined.error_code, "JoinGroup")
    shares = [SyncGroupRequestAssignment(join.member_id, b"share")]
    sync = SyncGroupRequest(name, joined.generation_id, join.member_id, None, "consumer", PROTOCOL, shares)
    _good(asker.ask(sync, SYNC_VERSION).error_code, "SyncGroup")


def _until_served(server: CurveServer, names: list[str]) -> None:
    """Wait until the coordinator serves all groups: it reads the log of one shard at a time."""
    for name in {group_partition(name, GROUP_SHARDS): name for name in names}.values():
        find_coordinator(server.address, name)


def _serve_again(server: CurveServer, names: list[str]) -> Cost:
    begun = time.perf_counter()
    server.start()
    with server.cost() as found:
        _until_served(server, names)
    found.cpu_s, found.wall_s = server.cpu_s() or 0.0, time.perf_counter() - begun
    return found


# ----------------------------------------------------------------------------------------------- partitions


def partitions(server: CurveServer, size: int) -> Costs:
    """`size` partitions are created, in topics of up to 5,000; all are described; the server restarts."""
    server.start()
    counts = [LARGEST_TOPIC] * (size // LARGEST_TOPIC) + [size % LARGEST_TOPIC] * bool(size % LARGEST_TOPIC)
    with server.cost() as created, Asker(server.address) as asker:
        for number, count in enumerate(counts):
            wanted = CreateTopicsRequest([CreatableTopic(f"curve-{number}", count, 1)], 60_000)
            _good(asker.ask(wanted, CREATE_VERSION).topics[0].error_code, "CreateTopics")
    with server.cost() as described, Asker(server.address) as asker:
        told = asker.ask(MetadataRequest(topics=None), METADATA_VERSION).topics
    if sum(len(topic.partitions) for topic in told) != size:
        raise BenchmarkError("Metadata does not list all partitions")
    server.terminate()
    again = server.started()
    server.stop()
    return {
        "create": created,
        "Metadata of all": described,
        "start again": again,
        "start again, killed": server.started(),
    }


# ----------------------------------------------------------------------------------------------- connections


def connections(server: CurveServer, size: int) -> Costs:
    """`size` connections are opened and kept; a thousand heartbeats are sent on one more; all are closed
    together."""
    server.start()
    at_first = server.descriptors()
    greeting = frame(ApiVersionsRequest("curve", "1"), API_VERSIONS_VERSION)
    sockets: list[socket.socket] = []
    with server.cost() as greeted:
        for begin in range(0, size, GREETED_AT_ONCE):
            some = [connect(server.address) for _ in range(min(GREETED_AT_ONCE, size - begin))]
            for one in some:
                one.sendall(greeting)
            for one in some:
                one.recv(4096)
            sockets += some
    find_coordinator(server.address, "curve")
    with server.cost() as beside, Asker(server.address) as asker:
        for _ in range(1_000):
            asker.ask(HeartbeatRequest("curve", 0, "nobody"), HEARTBEAT_VERSION)
    with server.cost() as idle:
        time.sleep(1.0)
    with server.cost() as closed:
        for one in sockets:
            one.close()
        while server.descriptors() > at_first + 5:  # nothing reports it, and a short sleep costs nothing
            time.sleep(0.01)
    return {
        "connect and greet": greeted,
        "1,000 heartbeats meanwhile": beside,
        "one idle second": idle,
        "close": closed,
    }


# ----------------------------------------------------------------------------------------------- committed offsets


def offsets(server: CurveServer, size: int) -> Costs:
    """This many offsets are committed, up to 1,000 for each group; the server is killed and serves all groups again."""
    server.start()
    each = min(size, OFFSETS_OF_A_GROUP)
    topic = create_topic(server, each)
    names = [f"curve-{number}" for number in range(-(-size // each))]
    _until_served(server, names)
    values = [OffsetCommitRequestPartition(index, index) for index in range(each)]
    with server.cost() as committed, Asker(server.address) as asker:
        for name in names:
            request = OffsetCommitRequest(name, -1, topics=[OffsetCommitRequestTopic(topic, partitions=values)])
            for told in asker.ask(request, COMMIT_VERSION).topics[0].partitions:
                _good(told.error_code, "OffsetCommit")
    server.stop()
    again = _serve_again(server, names)
    wanted = OffsetFetchRequestGroup(names[-1], topics=[OffsetFetchRequestTopics(topic, partition_indexes=[each - 1])])
    with Asker(server.address) as asker:
        found = asker.ask(OffsetFetchRequest(groups=[wanted]), OFFSET_FETCH_VERSION).groups[0].topics[0].partitions[0]
    if found.committed_offset != each - 1:
        raise BenchmarkError(f"the offset {each - 1} is {found.committed_offset} after the start")
    return {"commit": committed, "serve again, killed": again}


# ----------------------------------------------------------------------------------------------- the log


def log(server: CurveServer, size: int) -> Costs:
    """A partition of this many gigabytes is opened, after a clean shutdown and after a kill, and read at various
    offsets."""
    server.start()
    create_topic_named(server, "curve")
    server.terminate()
    data = server.folder / "data"
    made = sparse_log.make(data / "curve-0", size * GIGABYTE, wall_clock_ms() - 86_400_000)
    # As the broker writes it every few minutes: everything before the last segment is synced.
    (data / "recovery-point-offset-checkpoint").write_text(f"0\n1\ncurve 0 {made.active_from}\n")
    started = server.started()
    with server.cost() as read, Asker(server.address) as asker:
        # The same number of offsets for every size, so that no size has more pages to load than another.
        places = made.offsets[:: len(made.offsets) // READ_PLACES]
        for offset in itertools.islice(itertools.cycle(places), 500):
            _read_at(asker, offset, made.batch_bytes)
    server.stop()
    return {"start again": started, "500 fetches": read, "start again, killed": server.started()}


def create_topic_named(server: CurveServer, name: str) -> None:
    """A topic of one partition."""
    with Asker(server.address) as asker:
        made = asker.ask(CreateTopicsRequest([CreatableTopic(name, 1, 1)], 60_000), CREATE_VERSION)
        _good(made.topics[0].error_code, "CreateTopics")


def _read_at(asker: Asker, offset: int, batch_bytes: int) -> None:
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=batch_bytes)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=batch_bytes, topics=[FetchTopic("curve", partitions=[wanted])]
    )
    told = asker.ask(request, FETCH_VERSION).responses[0].partitions[0]
    _good(told.error_code, "Fetch")
    found = b"" if isinstance(told.records, list) else bytes(told.records or b"")
    if not found or int.from_bytes(found[:8], "big") != offset - sparse_log.RECORDS + 1:
        raise BenchmarkError(f"a Fetch at {offset} did not bring that batch")


def _good(error: int, what: str) -> None:
    if error:
        raise BenchmarkError(f"{what} was answered {ErrorCode(error).name}")
