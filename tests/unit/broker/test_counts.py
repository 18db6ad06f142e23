"""The cost of a request, in numbers that do not depend on the machine's load: calls of functions, bytes of memory,
writes to the log, sends, lines.

Time is measured by `make bench`; these tests notice at once when a change makes a hot path longer. Each limit is the
last measured number; if it has to grow, put the new number (the failure reports it) into the table, and the reason into
the commit message. If it has shrunk, lower it: a limit with slack notices nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import mmap
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from struct import unpack_from
from types import FrameType
from typing import Any

import pytest

import muster
from muster.broker.broker import Broker
from muster.broker.group_server import LATENCY_MS
from muster.broker.groups import event_topic
from muster.broker.net import connection_core
from muster.broker.net.calls import encode_answer
from muster.broker.net.connection import WRITE_EVERY, ServerConnection
from muster.clock import wall_clock_ms
from muster.coordinator.transactions.entry import COMPLETE_COMMIT
from muster.log import DISK
from muster.metrics.families import Buckets
from muster.protocol import codec, framing
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.compression import Compression
from muster.protocol.transaction_messages import EndTxnRequest, EndTxnResponse
from tests.support.brokers import RawClient, in_thread, running
from tests.support.written import build_batch

MOST_CALLS = {
    "a greeting": 33,
    "a heartbeat alone": 41,
    "each of 64 heartbeats at once": 30,
    "a join that is told its id": 94,
    "joins and syncs for each of 50 members of a group": 260,
    "each of 156 events of groups": 22,
    "a commit of one partition": 136,
    "a commit of ten partitions": 158,
    "a look-up of one offset": 93,
    "a produce of 1 record": 91,
    "a produce of 16 records": 112,
    "a produce of 900 records": 278,
    "each of 64 produces of 1 record at once": 78,
    "a compressed produce of 16 records": 199,
    "a fetch of what is there": 146,
    "a produce that begins a transaction": 385,
    "the end of a transaction": 457,
}
"""Calls of muster's functions, and of C functions by them, in CPython 3.11; later versions count less."""

MOST_BYTES = {"a heartbeat": 64, "a join that waits": 1_136, "a commit of ten partitions": 1_573}
"""Peak memory for each of MANY requests, in CPython 3.11; in other versions it may be a tenth more."""

SLACK_BYTES = 32
"""What a table that grows during the requests, or another thread of the process, may add to each: less than the
smallest container object takes, so that one more of these in each request is noticed."""

OURS = (str(Path(muster.__file__).parent), "<muster codec ")
NOW = wall_clock_ms()
RUNS = 3
"""Number of measurements; the fewest calls count, because a timer of the broker may fire during one."""

MEMBERS = 50
MANY = 100
SUBSCRIPTION = b"\0\0" + codec.encode(m.ConsumerProtocolSubscription(["t"]), 0)


class Peer(asyncio.Transport):
    """The far end of a connection: takes what is sent, and counts the sends."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[bytes] = []
        self.connection = ServerConnection(broker._server.shared)
        self.connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.connection.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        raise AssertionError("the connection stops reading")

    def say(self, *requests: Any, version: int) -> None:
        """Send requests in one packet."""
        data = frames(*requests, version=version)
        self.calls = position = 0
        while position < len(data):
            view = self.connection.get_buffer(-1)
            part = data[position : position + len(view)]
            view[: len(part)] = part
            with Counted() as counted:
                self.connection.buffer_updated(len(part))
            self.calls += counted.calls
            position += len(part)

    def feed(self, data: bytes) -> None:
        """Send what is already encoded."""
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def heard(self, response: type[Any], version: int, header: int = 9) -> Any:
        data = b"".join(self.sent)
        self.sent.clear()
        assert len(data) == 4 + unpack_from(">i", data)[0], "one answer"
        return codec.decode(response, version, data, header)


def frames(*requests: Any, version: int) -> bytes:
    return b"".join(b"".join(framing.encode_request(request, version, 1, "c")) for request in requests)


class Counted:
    """Count the calls within `with`, except those that asyncio makes for its own purposes."""

    calls = 0

    def __enter__(self) -> Counted:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
            self.calls += 1


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(connection_core, "SLICE_S", 60)  # frames of one read are handled in one turn, however slowly
    monkeypatch.setattr(event_topic, "DELAY_S", 60)  # events are written when a test says so
    async with running(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.changes.create_topic("t", 10, {})
        assert broker.groups.ensure()
        yield broker


async def answered(*peers: Peer) -> int:
    """Turns of the loop until all requests are answered; returns the calls in them."""
    with Counted() as counted:
        while not all(peer.sent for peer in peers):
            await asyncio.sleep(0.001)
    return counted.calls


def check(what: str, calls: int) -> None:
    assert calls <= MOST_CALLS[what], f"{what} takes {calls} calls"


def commit(partitions: int) -> m.OffsetCommitRequest:
    offsets = [m.OffsetCommitRequestPartition(number, 7) for number in range(partitions)]
    return m.OffsetCommitRequest("g", topics=[m.OffsetCommitRequestTopic("t", partitions=offsets)])


LOOKED_UP = [m.OffsetFetchRequestGroup("g", topics=[m.OffsetFetchRequestTopics("t", partition_indexes=[0])])]


def join(member_id: str, group_id: str = "g") -> m.JoinGroupRequest:
    protocols = [m.JoinGroupRequestProtocol("range", SUBSCRIPTION)]
    return m.JoinGroupRequest(group_id, 60_000, 60_000, member_id, None, "consumer", protocols)


async def form(group_id: str, peers: list[Peer]) -> tuple[list[str], int]:
    """The members' ids once each has its assignment, and the number of calls that it took."""
    for peer in peers:
        peer.say(join("", group_id), version=9)
    await answered(*peers)
    ids = [peer.heard(m.JoinGroupResponse, 9).member_id for peer in peers]
    calls = 0
    for peer, member_id in zip(peers, ids, strict=True):
        peer.say(join(member_id, group_id), version=9)
        calls += peer.calls
    calls += await answered(*peers)
    joined = [peer.heard(m.JoinGroupResponse, 9) for peer in peers]
    for peer, answer in zip(peers, joined, strict=True):
        share = [m.SyncGroupRequestAssignment(member.member_id, b"share") for member in answer.members]
        peer.say(m.SyncGroupRequest(group_id, 1, answer.member_id, None, "consumer", "range", share), version=5)
        calls += peer.calls
    calls += await answered(*peers)
    assert {peer.heard(m.SyncGroupResponse, 5).assignment for peer in peers} == {b"share"}
    return ids, calls


async def test_calls_of_a_group(broker: Broker) -> None:
    calls = []
    for group_id in ["g", *map(str, range(RUNS - 1))]:
        ids, some = await form(group_id, [Peer(broker) for _ in range(MEMBERS)])
        calls.append(some // MEMBERS)
    check("joins and syncs for each of 50 members of a group", min(calls))
    assert broker._events is not None
    broker._events.ensure()
    with Counted() as counted:
        broker._events._write()
    check("each of 156 events of groups", counted.calls // 156)
    check("a join that is told its id", min(asked(Peer(broker), join(""), 9) for _ in range(RUNS)))
    heartbeat = m.HeartbeatRequest(group_id, 1, ids[0])
    check("a heartbeat alone", min(asked(Peer(broker), heartbeat, 4) for _ in range(RUNS)))
    greeting = m.ApiVersionsRequest("c", "1")
    check("a greeting", min(asked(Peer(broker), greeting, 4) for _ in range(RUNS)))
    peer = Peer(broker)
    peer.say(*[heartbeat] * 64, version=4)
    check("each of 64 heartbeats at once", peer.calls // 64)
    assert len(peer.sent) == 1, "answers of one read are sent together"


def asked(peer: Peer, request: Any, version: int) -> int:
    """The calls for a request that is answered at once."""
    peer.say(request, version=version)
    assert len(peer.sent) == 1
    return peer.calls


@pytest.mark.parametrize(
    ("what", "request_of_one"),
    [
        ("a commit of one partition", (m.OffsetCommitResponse, commit(1))),
        ("a commit of ten partitions", (m.OffsetCommitResponse, commit(10))),
        ("a look-up of one offset", (m.OffsetFetchResponse, m.OffsetFetchRequest(groups=LOOKED_UP))),
    ],
)
async def test_calls_of_offsets(broker: Broker, what: str, request_of_one: tuple[type[Any], Any]) -> None:
    response, request = request_of_one
    peer = Peer(broker)
    calls = []
    for _ in range(RUNS + 1):  # the first one compiles codecs, and opens the shard
        peer.say(request, version=9)
        calls.append(peer.calls + await answered(peer))
        peer.heard(response, 9)
    check(what, min(calls))


@pytest.mark.interpreted
async def test_bytes_of_requests(broker: Broker) -> None:
    """Measured over many requests: the occasional growth of a table is not one request's cost. Other threads of
    the process, including pytest's, may allocate in the meantime, so only the smallest of several rounds counts."""
    rounds = range(RUNS)
    crowds = [[Peer(broker) for _ in range(MANY)] for _ in rounds]
    joins: list[list[tuple[Peer, bytes]]] = []
    for number, peers in enumerate(crowds):
        group = f"other{number}"
        for peer in peers:
            peer.say(join("", group), version=9)
        await answered(*peers)
        ids = [peer.heard(m.JoinGroupResponse, 9).member_id for peer in peers]
        joins.append([(peer, frames(join(own, group), version=9)) for peer, own in zip(peers, ids, strict=True)])
    heartbeat = frames(m.HeartbeatRequest("other0", 1, ids[0]), version=4)
    crowds[0][0].feed(heartbeat)
    crowds[0][0].sent.clear()
    await check_bytes("a join that waits", joins)
    await check_bytes("a heartbeat", [[(peer, heartbeat) for peer in peers] for peers in crowds])
    data = frames(commit(10), version=9)
    first, *some = [Peer(broker) for _ in range(RUNS * MANY + 1)]
    first.feed(data)  # compiles codecs, and opens the shard
    await answered(first)
    await check_bytes("a commit of ten partitions", [[(peer, data) for peer in some[at::RUNS]] for at in rounds])


async def check_bytes(what: str, rounds: list[list[tuple[Peer, bytes]]]) -> None:
    """Peak memory, for each of these requests until it is answered."""
    sizes = []
    for requests in rounds:
        gc.collect()
        tracemalloc.start()
        for peer, data in requests:
            peer.feed(data)
        sizes.append(tracemalloc.get_traced_memory()[1] // len(requests))
        tracemalloc.stop()
        await answered(*(peer for peer, _ in requests))
    most = MOST_BYTES[what] * (100 if sys.version_info[:2] == (3, 11) else 110) // 100 + SLACK_BYTES
    assert min(sizes) <= most, f"{what} takes {sizes} bytes"


def batch(records: int, compression: Compression = Compression.NONE) -> m.ProduceRequest:
    data = bytes(build_batch([(NOW, None, bytes(1_000), [])] * records, compression=compression))
    return m.ProduceRequest(None, -1, 30_000, [m.TopicProduceData("t", ZERO_UUID, [m.PartitionProduceData(0, data)])])


async def test_calls_of_produces_and_fetches(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    pwrite = type(DISK).pwrite

    def counted(self: Any, fd: int, data: Any, position: int) -> int:
        writes.append(len(data))
        return pwrite(self, fd, data, position)

    monkeypatch.setattr(type(DISK), "pwrite", counted)
    peer = Peer(broker)
    for what, request in {
        "a produce of 1 record": batch(1),
        "a produce of 16 records": batch(16),
        "a produce of 900 records": batch(900),
        "a compressed produce of 16 records": batch(16, Compression.GZIP),
    }.items():
        calls = []
        for _ in range(RUNS + 1):  # the first one compiles codecs, and creates the file
            peer.sent.clear()
            writes.clear()
            calls.append(asked(peer, request, 11))
            assert len(writes) == 1, "a batch is one write"
        check(what, min(calls))
        assert peer.heard(m.ProduceResponse, 11).responses[0].partition_responses[0].error_code == 0
    peer.say(*[batch(1)] * 64, version=11)
    check("each of 64 produces of 1 record at once", peer.calls // 64)
    assert len(peer.sent) == 1, "answers of one read are sent together"
    wanted = m.FetchPartition(0, fetch_offset=0, partition_max_bytes=50_000)
    fetch = m.FetchRequest(max_wait_ms=0, topics=[m.FetchTopic("t", partitions=[wanted])])
    calls = []
    for _ in range(RUNS + 1):
        peer.sent.clear()
        calls.append(asked(peer, fetch, 12))
    check("a fetch of what is there", min(calls))
    assert len(peer.heard(m.FetchResponse, 12).responses[0].partitions[0].records) > 10_000


async def test_calls_of_a_transaction(broker: Broker) -> None:
    """With `transaction.version` 2 the Produce adds the partition; EndTxn writes the marker and moves to the next
    epoch."""
    peer, calls, runtime = Peer(broker), [], broker.transactions.runtime
    assert broker.transactions.ensure()
    peer.say(m.InitProducerIdRequest("x", 60_000, -1, -1), version=4)
    await answered(peer)
    ids: Any = peer.heard(m.InitProducerIdResponse, 4)
    served = runtime._served[runtime.partition_for("x")]
    for _ in range(RUNS + 1):  # the first one compiles codecs, and creates the files
        data = build_batch(
            [(NOW, None, bytes(100), [])] * 10,
            producer_id=ids.producer_id,
            producer_epoch=ids.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        partition = m.PartitionProduceData(0, bytes(data))
        peer.say(m.ProduceRequest("x", -1, 30_000, [m.TopicProduceData("t", ZERO_UUID, [partition])]), version=12)
        calls.append([peer.calls + await answered(peer)])
        assert peer.heard(m.ProduceResponse, 12).responses[0].partition_responses[0].error_code == 0
        peer.say(EndTxnRequest("x", ids.producer_id, ids.producer_epoch, True), version=5)
        with Counted() as counted:
            while not peer.sent or served.batch.count or served.shard.entries["x"].state is not COMPLETE_COMMIT:
                await asyncio.sleep(0)
        calls[-1].append(peer.calls + counted.calls)
        ids = peer.heard(EndTxnResponse, 5)
        assert ids.error_code == 0
    begins, ends = zip(*calls, strict=True)
    check("a produce that begins a transaction", min(begins))
    check("the end of a transaction", min(ends))


async def test_measured_requests_cost_at_most_three_calls_more(broker: Broker) -> None:
    """With `--metrics-port` the time of each request is counted: one reading of the clock, one addition."""
    requests = [(m.HeartbeatRequest("g", 1, "m"), 4), (batch(1), 11), (commit(1), 9), (m.MetadataRequest([]), 12)]
    for request, version in requests:
        calls = []
        for measured in (False, True):
            for api in broker._server.tables[0].values():
                api.latency = Buckets(LATENCY_MS) if measured else None
            peer, costs = Peer(broker), []
            for _ in range(RUNS + 1):
                peer.sent.clear()
                peer.say(request, version=version)
                costs.append(peer.calls + (0 if peer.sent else await answered(peer)))
            calls.append(min(costs))
        assert 0 < calls[1] - calls[0] <= 3, request


async def test_large_frames_use_the_same_memory_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counting(mmap.mmap):
        def __new__(cls, fileno: int, length: int) -> Counting:
            made.append(length)
            return super().__new__(cls, fileno, length)

    monkeypatch.setattr("muster.broker.net.intake.mmap.mmap", Counting)

    def produce(bootstrap: str) -> None:
        with RawClient(bootstrap) as client:
            for _ in range(5):
                assert client.ask(batch(900), 11).responses[0].partition_responses[0].error_code == 0

    await in_thread(produce, broker.bootstrap)
    assert len(made) == 1


async def test_commits_of_one_read_are_one_write_and_one_send(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(broker)
    peer.say(commit(1), version=9)
    await answered(peer)
    peer.sent.clear()
    log = broker.groups.runtime._served[broker.groups.runtime.partition_for("g")].journal.log  # type: ignore[attr-defined]
    writes: list[int] = []
    append = type(log).append

    def counted(self: Any, data: bytearray, **rest: Any) -> Any:
        writes.append(len(data))
        return append(self, data, **rest)

    monkeypatch.setattr(type(log), "append", counted)
    peer.say(*[commit(1)] * 64, version=9)
    await answered(peer)
    assert (len(writes), len(peer.sent)) == (1, 1)


@pytest.mark.interpreted
async def test_answers_to_many_leave_while_the_others_are_made(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance answers a thousand members at once: the first ones already work when the last ones are answered."""
    peers = [Peer(broker) for _ in range(3 * WRITE_EVERY)]
    sent_before: list[int] = []

    def counted(response: Any, call: Any) -> Any:
        sent_before.append(sum(bool(peer.sent) for peer in peers))
        return encode_answer(response, call)

    ids, _ = await form("g", peers)
    for peer, member_id in zip(peers, ids, strict=True):
        if peer is peers[-1]:
            monkeypatch.setattr(connection_core, "encode_answer", counted)
        peer.say(join(member_id), version=9)
    assert sent_before == [number // WRITE_EVERY * WRITE_EVERY for number in range(len(peers))]
    await answered(*peers)
    assert [len(peer.sent) for peer in peers] == [1] * len(peers)


class PausedPeer(Peer):
    """A transport that may be asked to stop reading."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@pytest.mark.parametrize("in_one_read", [True, False])
async def test_a_connection_continues_though_its_answer_left_early(broker: Broker, in_one_read: bool) -> None:
    """A request after the join waits for the join's answer, and is handled in the turn after it."""
    early = PausedPeer(broker)
    peers = [early, *[Peer(broker) for _ in range(WRITE_EVERY)]]
    ids, _ = await form("g", peers)
    for peer, member_id in zip(peers, ids, strict=True):
        heartbeat = [m.HeartbeatRequest("g", 2, member_id)] if peer is early else []
        if in_one_read:
            peer.say(join(member_id), *heartbeat, version=4)
        else:
            peer.say(join(member_id), version=9)
            peer.say(*heartbeat, version=4)
        assert peer is not early or early.reading is in_one_read
    await answered(*peers)
    for _ in range(100):
        await asyncio.sleep(0)
    assert early.reading
    assert codec.decode(m.HeartbeatResponse, 4, early.sent[1], 9).error_code == 0


async def test_a_group_that_forms_is_a_few_lines_of_the_log(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "muster.groups"):
        await form("g", [Peer(broker) for _ in range(MEMBERS)])
    assert len([record for record in caplog.records if record.name == "muster.groups"]) == 4
