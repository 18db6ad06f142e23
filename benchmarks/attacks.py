"""Hostile peers: what each sends, on raw sockets, for a bounded time.

An attack prepares its topics and records, runs until its time is over, and closes its connections.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from struct import pack
from typing import Any, NamedTuple

import cramjam
from crc32c import crc32c

from benchmarks.wire import Address, Asker, connect, frame
from muster.clock import wall_clock_ms
from muster.protocol import framing
from muster.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from muster.protocol.primitives import Request, uvarint
from muster.protocol.records.varints import varint
from tests.support.written import build_batch

TOPIC = "hostile"
CREATE_VERSION, PRODUCE_VERSION, COMMIT_VERSION = 7, 9, 8


class Field(NamedTuple):
    """Where an attack takes place: the broker, and the latest time to stop (by time.monotonic)."""

    address: Address
    pid: int
    until: float


class Attack(NamedTuple):
    """One row: `prepare` is not measured. `seconds` is how long it is watched; `settings` and `descriptors` are its
    broker's."""

    name: str
    run: Callable[[Field], None]
    prepare: Callable[[Address], None] = lambda address: None
    seconds: float = 5.0
    settings: tuple[str, ...] = ()
    descriptors: int | None = None


# ------------------------------------------------------------------------------------------------- what is sent


def create(address: Address, partitions: int = 1, cleanup_policy: str = "delete") -> None:
    """Make the topic of the attack."""
    configs = [CreatableTopicConfig("cleanup.policy", cleanup_policy)]
    with Asker(address) as asker:
        asker.ask(CreateTopicsRequest([CreatableTopic(TOPIC, partitions, 1, configs=configs)], 60_000), CREATE_VERSION)


def fill(address: Address, megabytes: int) -> None:
    """Put batches of a megabyte into it."""
    create(address)
    with Asker(address) as asker:
        for _ in range(megabytes):
            asker.ask(produce(_million()), PRODUCE_VERSION)


def _million() -> bytes:
    return bytes(build_batch([(wall_clock_ms(), None, os.urandom(1_000_000), [])]))


def produce(batch: bytes) -> ProduceRequest:
    """A Produce of one batch."""
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])],
    )


def fetch(size: int = 50 << 20) -> FetchRequest:
    """A Fetch of all there is."""
    wanted = [FetchPartition(0, fetch_offset=0, partition_max_bytes=size)]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[FetchTopic(TOPIC, partitions=wanted)])


def classic_array(key: int, version: int, count: int, element: bytes, after: bytes = b"") -> bytes:
    """A request that begins with an array of this many equal elements."""
    body = pack(">hhih", key, version, 1, 1) + b"x" + pack(">i", count) + element * count + after
    return pack(">i", len(body)) + body


def leave_group(members: int) -> bytes:
    """A LeaveGroup of this many members without a name: three bytes each."""
    body = b"".join(framing.encode_request(LeaveGroupRequest("g", members=[]), 4, 1, "x"))[4:]
    at = body.rindex(b"\x01\x00")
    body = body[:at] + uvarint(members + 1) + b"\x01\x00\x00" * members + b"\0"
    return pack(">i", len(body)) + body


def header_tags(count: int) -> bytes:
    """A Metadata whose header has this many empty tags."""
    body = pack(">hhih", 3, 12, 1, 1) + b"x" + uvarint(count) + b"\0\0" * count + b"\1\0\0\0"
    return pack(">i", len(body)) + body


def bomb(records: int) -> bytes:
    """A zstd batch of this many records of a few bytes: nearly nothing on the wire."""
    body = b"\0\0\0\2k\1\0"
    packed = bytes(cramjam.zstd.compress((varint(len(body)) + body) * records, level=19))
    batch = bytearray(build_batch([(wall_clock_ms(), b"k", None, [])]))
    now = wall_clock_ms()
    batch = batch[:61] + packed
    batch[8:12] = pack(">i", len(batch) - 12)
    batch[21:61] = pack(">hiqqqhii", 4, records - 1, now, now, -1, -1, -1, records)
    batch[17:21] = pack(">I", crc32c(memoryview(batch)[21:]))
    return bytes(batch)


# ------------------------------------------------------------------------------------------------- how it is sent


def unread(field: Field, data: bytes, connections: int = 1) -> None:
    """Send without ever reading, as far as the broker takes it, and stay until the end."""
    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(_small_window(field.address)) for _ in range(connections)]
        left = {sock: memoryview(data) for sock in open_ones}
        while time.monotonic() < field.until:
            for sock in list(left):
                try:
                    left[sock] = left[sock][sock.send(left[sock][:262_144]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    left[sock] = left[sock][:0]
                if not left[sock]:
                    del left[sock]
            time.sleep(0.002)


def _small_window(address: Address) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(address)
    sock.setblocking(False)
    return sock


def read(field: Field, frames: Sequence[bytes], *, again: bool = False) -> None:
    """Send frames one after the other on one connection while reading all that arrives, repeatedly with `again`.

    When the broker closes the connection, the next frame is sent on a new one.
    """
    queue = list(frames)
    while queue and time.monotonic() < field.until:
        with connect(field.address) as sock:
            queue = _converse(field, sock, queue)
        if again and not queue:
            queue = list(frames)


def _converse(field: Field, sock: socket.socket, queue: list[bytes]) -> list[bytes]:
    """Returns the frames that are left when the connection ends or all are answered."""
    sock.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
    out, received = [memoryview(one) for one in reversed(queue)], _Answers()
    with contextlib.suppress(OSError):
        while time.monotonic() < field.until and received.count < len(queue):
            for _, events in selector.select(0.05):
                if events & selectors.EVENT_READ and not received.read(sock):
                    return list(map(bytes, reversed(out[:-1])))
                if events & selectors.EVENT_WRITE:
                    _send_some(sock, out)
                    if not out:
                        selector.modify(sock, selectors.EVENT_READ)
        return []
    return list(map(bytes, reversed(out[:-1])))


def _send_some(sock: socket.socket, out: list[memoryview]) -> None:
    with contextlib.suppress(BlockingIOError):
        out[-1] = out[-1][sock.send(out[-1][: 1 << 20]) :]
    if not out[-1]:
        out.pop()


class _Answers:
    """Counts whole frames without keeping them."""

    def __init__(self) -> None:
        self.count = 0
        self._missing = 0
        self._head = b""

    def read(self, sock: socket.socket) -> bool:
        """Count what has arrived; False when the connection has ended."""
        data = sock.recv(1 << 20)
        self._feed(data)
        return bool(data)

    def _feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._missing:
                taken = min(self._missing, len(data) - position)
                self._missing -= taken
                position += taken
                self.count += not self._missing
                continue
            taken = 4 - len(self._head)
            self._head += data[position : position + taken]
            position += taken
            if len(self._head) == 4:
                self._missing, self._head = int.from_bytes(self._head, "big"), b""


def half_frames(field: Field, declared: Sequence[int], sent: int) -> None:
    """Announce large frames, send a part of each, and wait; meanwhile another producer sends a batch of 500 KB."""
    start = pack(">hhih", 0, 9, 1, 1) + b"x" + b"\0" * 100
    batch = bytes(build_batch([(wall_clock_ms(), None, os.urandom(500_000), [])]))
    with contextlib.ExitStack() as stack:
        for size in declared:
            sock = stack.enter_context(connect(field.address))
            sock.settimeout(0.5)
            with contextlib.suppress(OSError):
                sock.sendall(pack(">i", size) + start)
                for _ in range(sent // 1_000_000):
                    sock.sendall(bytes(1_000_000))
        worst = 0.0
        while time.monotonic() < field.until:
            begun = time.monotonic()
            with connect(field.address) as sock, contextlib.suppress(TimeoutError):
                sock.settimeout(max(field.until - begun, 0.1))
                sock.sendall(frame(produce(batch), PRODUCE_VERSION))
                sock.recv(1024)
            worst = max(worst, time.monotonic() - begun)
            time.sleep(0.05)
        print(f"    another producer's 500 KB waited {worst * 1e3:.0f} ms at most", flush=True)


def slow_readers(field: Field, connections: int) -> None:
    """Ask for 50 MB on each connection and take a kilobyte a second."""
    request = frame(fetch(), 11)
    with contextlib.ExitStack() as stack:
        open_ones = [stack.enter_context(_small_window(field.address)) for _ in range(connections)]
        for sock in open_ones:
            sock.send(request)
        while time.monotonic() < field.until:
            for sock in open_ones:
                with contextlib.suppress(OSError):
                    sock.recv(100)
            time.sleep(0.1)


def descriptors(field: Field) -> None:
    """Open more connections than the broker has descriptors for."""
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(field.address)
            if time.monotonic() > field.until:
                break
            time.sleep(0.002)
        time.sleep(max(field.until - time.monotonic(), 0))


def stop_process(field: Field) -> None:
    """Stop the process, as a paused machine does, for longer than a session."""
    os.kill(field.pid, signal.SIGSTOP)
    time.sleep(max(field.until - time.monotonic(), 0))
    os.kill(field.pid, signal.SIGCONT)


def _ask(request: Request[Any], version: int, times: int = 1) -> Callable[[Field], None]:
    return partial(read, frames=[frame(request, version)] * times)


def _raw(make: Callable[[], bytes], times: int = 1) -> Callable[[Field], None]:
    return lambda field: read(field, [make()] * times)


def _heartbeats(field: Field) -> None:
    read(field, [frame(HeartbeatRequest(f"{number:08d}" + "g" * 1_000_000, 1, "x"), 4) for number in range(150)])


def _sessions(field: Field) -> None:
    partitions = [FetchPartition(index, fetch_offset=0, partition_max_bytes=10) for index in range(200_000)]
    topics = [FetchTopic(TOPIC, partitions=partitions)]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=0, topics=topics)
    read(field, [frame(request, 11)] * 4)


def _by_time(field: Field) -> None:
    wanted = [ListOffsetsPartition(0, -1, wall_clock_ms() - 600_000)]
    read(field, [frame(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(TOPIC, wanted)]), 5)] * 5)


def _put_bomb(address: Address) -> None:
    create(address)
    with Asker(address) as asker:
        asker.ask(produce(bomb(1_000_000)), PRODUCE_VERSION)


def _bombs(field: Field) -> None:
    read(field, [frame(produce(bomb(1_000_000)), PRODUCE_VERSION)] * 2)


def _many_topics(count: int) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=f"auto{number}") for number in range(count)])


def _two_creates() -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(f"many{number}", 6_000, 1) for number in (1, 2)], 60_000)


def _with_groups(address: Address) -> None:
    """The topic with 10,000 partitions, and 10,000 groups' commits for it."""
    create(address, partitions=9_990)
    with Asker(address) as asker:
        for number in range(10_000):
            asker.ask(_commit(1, f"group{number}"), COMMIT_VERSION)


def _commit(partitions: int, group: str = "hostile") -> OffsetCommitRequest:
    offsets = [OffsetCommitRequestPartition(index, 1, -1, "") for index in range(partitions)]
    return OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(TOPIC, partitions=offsets)])


def _committed(address: Address) -> None:
    create(address, partitions=9_990)
    with Asker(address) as asker:
        asker.ask(_commit(9_990), COMMIT_VERSION)


def _fetched(partitions: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(TOPIC, partition_indexes=list(range(partitions)))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("hostile", topics=topics)])


def _make_topics(address: Address, count: int) -> None:
    with Asker(address) as asker:
        topics = [CreatableTopic(f"many{number}", 1, 1) for number in range(count)]
        asker.ask(CreateTopicsRequest(topics, 60_000), CREATE_VERSION)


def _deleted(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=60_000)


_CONFIGS = DescribeConfigsRequest([DescribeConfigsResource(4, "1", None)], True, True)

ATTACKS = (
    Attack("nobody hostile", lambda f: None),
    Attack("60 fetches of 50 MB, unread", lambda f: unread(f, frame(fetch(), 11) * 60), partial(fill, megabytes=50)),
    Attack("300 Metadata of 10,000, unread", lambda f: unread(f, frame(MetadataRequest(None), 1) * 300),
           partial(create, partitions=9_990)),
    Attack("300 Metadata of 10,000, read", _ask(MetadataRequest(None), 1, 300), partial(create, partitions=9_990)),
    Attack("20 readers of 50 MB at 1 KB/s", lambda f: slow_readers(f, 20), partial(fill, megabytes=50)),
    Attack("half frames of 268 MB", lambda f: half_frames(f, (100_000_000, 100_000_000, 68_000_000), 0), create),
    Attack("half frames, 3 x 90 MB sent", lambda f: half_frames(f, (100_000_000,) * 3, 90_000_000), create, 8.0),
    Attack("1,000 x 1 MB produced in a row", lambda f: read(f, [frame(produce(_million()), 9)] * 1_000), create, 6.0),
    Attack("2 zstd bombs, compacted topic", _bombs, partial(create, cleanup_policy="compact"), 8.0),
    Attack("5 ListOffsets by time in a bomb", _by_time, _put_bomb, 8.0),
    Attack("LeaveGroup of 3 M members", _raw(lambda: leave_group(3_000_000)), seconds=8.0),
    Attack("DescribeGroups of 1 M ids", _raw(lambda: classic_array(15, 0, 1_000_000, b"\0\0")), seconds=8.0),
    Attack("DescribeGroups of 10,000 ids x 20", _raw(lambda: classic_array(15, 0, 10_000, b"\0\0"), 20)),
    Attack("DeleteGroups of 1 M ids", _raw(lambda: classic_array(42, 0, 1_000_000, b"\0\0")), seconds=8.0),
    Attack("Metadata of 5 M names", _raw(lambda: classic_array(3, 1, 5_000_000, b"\0\0")), seconds=8.0),
    Attack("header of 5 M tags", _raw(lambda: header_tags(5_000_000)), seconds=6.0),
    Attack("150 heartbeats, ids of 1 MB", _heartbeats, seconds=6.0),
    Attack("Metadata of 300 new topics", _ask(_many_topics(300), 9)),
    Attack("Metadata of 2,000 new topics", _ask(_many_topics(2_000), 9), seconds=8.0),
    Attack("4 sessions of 200,000 partitions", _sessions, seconds=8.0),
    Attack("two topics of 6,000 in a request", _ask(_two_creates(), 7), seconds=6.0),
    Attack("topic of 10,000, 10,000 groups, gone", _ask(_deleted(TOPIC), 5), _with_groups, 6.0),
    Attack("2,000 topics deleted in a request", _ask(_deleted(*(f"many{n}" for n in range(2_000))), 5),
           partial(_make_topics, count=2_000), 6.0),
    Attack("OffsetFetch of 90,000 x 5", _ask(_fetched(90_000), 8, 5), _committed, 6.0),
    Attack("OffsetFetch of all of 10,000 x 20", _ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("hostile")]),
           8, 20), _committed, 6.0),
    Attack("OffsetCommit of 18,000 x 5", _ask(_commit(18_000), COMMIT_VERSION, 5), partial(create, partitions=9_990),
           6.0),
    Attack("3,000 DescribeConfigs at once", _ask(_CONFIGS, 4, 3_000), seconds=6.0),
    Attack("300 connections, 128 descriptors", descriptors, settings=("offsets.topic.num.partitions=1",),
           descriptors=128),
)  # fmt: skip

PAUSE = Attack("stopped for 8 s (SIGSTOP)", stop_process, seconds=8.0)
"""No client is served meanwhile; what counts is that no member is expelled."""
