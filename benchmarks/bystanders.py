"""Well-behaved clients next to a hostile one, in a process of their own: `python -m benchmarks.bystanders ADDRESS`.

A group member sends heartbeats and polls; a producer writes to a topic on which a consumer waits. Each sends requests
at fixed times, even if the last answer is missing, and latency counts from the time at which the request was due: an
answer that takes a second makes a hundred late ones, as it would for a hundred clients.

A line on standard output says that they are running; when standard input ends, they stop and print their figures as
JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from benchmarks.groups import HEARTBEAT_VERSION, JOIN_VERSION, SYNC_VERSION
from benchmarks.wire import Address, Asker
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode, MusterError
from muster.protocol.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    PartitionProduceData,
    ProduceRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicProduceData,
)
from tests.support.written import build_batch

TOPIC = "bystanders"
GROUP = "bystanders"
SESSION_MS = 6_000
EVERY_S = 0.01
CREATE_VERSION, PRODUCE_VERSION, FETCH_VERSION = 7, 11, 12
_MOST_MS = 500


@dataclass
class Seen:
    """What the bystanders saw: latencies in milliseconds, how often the member was expelled, what failed."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    expelled: int = 0
    failures: list[str] = field(default_factory=list)


class Bystanders:
    """All of them. They run in threads until `stop`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.seen = Seen()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, run), daemon=True)
            for name, run in (
                ("heartbeat", self._member),
                ("poll", self._poller),
                ("produce", self._producer),
                ("consume", self._consumer),
            )
        ]

    def start(self) -> None:
        """Begin."""
        with Asker(self.address) as asker:
            asker.ask(CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1)], 10_000), CREATE_VERSION)
        for thread in self._threads:
            thread.start()

    def stop(self) -> Seen:
        """End; an answer that does not arrive is a failure."""
        self._over.set()
        for thread in self._threads:
            thread.join(70)
        return self.seen

    def _guarded(self, name: str, run: Callable[[list[float]], None]) -> None:
        try:
            run(self.seen.latencies.setdefault(name, []))
        except (OSError, MusterError, Exception) as error:
            self.seen.failures.append(f"{name}: {type(error).__name__}: {error}")

    def _paced(self, latencies: list[float], act: Callable[[], None]) -> None:
        """Act at fixed times; if one action was slow, those that became due meanwhile follow immediately."""
        due = time.perf_counter()
        while not self._over.is_set():
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            act()
            latencies.append((time.perf_counter() - due) * 1e3)
            due += EVERY_S

    def _member(self, latencies: list[float]) -> None:
        with Asker(self.address) as asker:
            identity = [self._join(asker)]

            def beat() -> None:
                member_id, generation_id = identity[0]
                code = asker.ask(HeartbeatRequest(GROUP, generation_id, member_id), HEARTBEAT_VERSION).error_code
                if code:
                    self.seen.expelled += 1
                    identity[0] = self._join(asker)

            self._paced(latencies, beat)

    def _join(self, asker: Asker) -> tuple[str, int]:
        member_id = ""
        while True:
            protocols = [JoinGroupRequestProtocol("range", b"\0\0\0\0\0\1\0\0\0\0\xff\xff\xff\xff")]
            join = JoinGroupRequest(
                GROUP, SESSION_MS, SESSION_MS, member_id, protocol_type="consumer", protocols=protocols
            )
            joined = asker.ask(join, JOIN_VERSION)
            member_id = joined.member_id or member_id
            if joined.error_code == ErrorCode.NONE:
                break
            time.sleep(0.02)
        share = [SyncGroupRequestAssignment(member_id, b"")]
        sync = SyncGroupRequest(GROUP, joined.generation_id, member_id, None, "consumer", "range", share)
        asker.ask(sync, SYNC_VERSION)
        return member_id, joined.generation_id

    def _poller(self, latencies: list[float]) -> None:
        with Asker(self.address) as asker:

            def poll() -> None:
                asker.ask(_fetch(0, 0), FETCH_VERSION)

            self._paced(latencies, poll)

    def _producer(self, latencies: list[float]) -> None:
        with Asker(self.address) as asker:

            def produce() -> None:
                batch = bytes(build_batch([(wall_clock_ms(), None, b"x" * 100, [])]))
                data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])]
                request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
                answer = asker.ask(request, PRODUCE_VERSION).responses[0].partition_responses[0]
                if answer.error_code:
                    self.seen.failures.append(f"produce: {ErrorCode(answer.error_code).name}")

            self._paced(latencies, produce)

    def _consumer(self, latencies: list[float]) -> None:
        """Waits for each record; its latency is how much longer it waited than the producer's pace."""
        offset = 0
        with Asker(self.address) as asker:
            while not self._over.is_set():
                asked = time.perf_counter()
                answer = asker.ask(_fetch(offset, _MOST_MS), FETCH_VERSION)
                offset = max(offset, answer.responses[0].partitions[0].high_watermark)
                took = (time.perf_counter() - asked - EVERY_S) * 1e3
                # A wait of a second counts once for each poll that it prevented.
                latencies.extend([max(took, 0.0)] * max(1, int(took / 1e3 / EVERY_S)))


def _fetch(offset: int, wait_ms: int) -> FetchRequest:
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=64 * 1024)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=64 * 1024, topics=[FetchTopic(TOPIC, partitions=[wanted])]
    )


def main() -> None:
    """Run until standard input ends."""
    host, _, port = sys.argv[1].rpartition(":")
    bystanders = Bystanders((host, int(port)))
    bystanders.start()
    print("running", flush=True)
    sys.stdin.read()
    print(json.dumps(asdict(bystanders.stop())), flush=True)


if __name__ == "__main__":
    main()
