"""What a group experienced is recorded, and happens again to another consumer: records, rebalances, errors, in
order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

import muster.testing
from muster import CommitFailedError, Consumer, ErrorCode, MusterError, RebalanceListener
from muster.log import LogError, PartitionLog
from muster.protocol.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from muster.testing import AsyncKafka, Kafka, WaitTimeoutError
from muster.testing.recordings import recording
from tests.support.brokers import RawClient
from tests.support.peers import KafkaBroker

Place = tuple[int, int, bytes | None]


class Listener(RebalanceListener):
    """Records its calls, and forgets the uncommitted offsets of partitions that it loses."""

    def __init__(self, reported: list[tuple[str, list[int]]], uncommitted: dict[muster.TopicPartition, int]) -> None:
        self._reported = reported
        self._uncommitted = uncommitted

    def _note(self, what: str, partitions: Any) -> None:
        self._reported.append((what, sorted(each.partition for each in partitions)))

    def _forget(self, partitions: Any) -> None:
        for partition in partitions:
            self._uncommitted.pop(partition, None)

    def on_partitions_assigned(self, partitions: Any) -> None:
        self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: Any) -> None:
        self._note("revoked", partitions)
        self._forget(partitions)

    def on_partitions_lost(self, partitions: Any) -> None:
        self._note("lost", partitions)
        self._forget(partitions)


class Member:
    """A consumer that commits each record after it has handled it.

    A commit that a rebalance interrupts is repeated after the next poll, if the partition stays: in a cooperative
    rebalance its records are not read again."""

    def __init__(
        self, bootstrap: str, client_id: str, group: str = "billing", topic: str = "orders", **more: Any
    ) -> None:
        self.handled: list[Place] = []
        self.reported: list[tuple[str, list[int]]] = []
        self._ending = threading.Event()
        self._uncommitted: dict[muster.TopicPartition, int] = {}
        settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "group_id": group, "client_id": client_id}
        settings |= {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 100}
        self._consumer = Consumer({**settings, **more})
        self._topic = topic
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self._consumer as consumer:
            consumer.subscribe([self._topic], listener=Listener(self.reported, self._uncommitted))
            while not self._ending.is_set():
                for partition, records in consumer.poll(50, max_records=1).items():
                    for record in records:
                        self.handled.append((record.partition, record.offset, record.value))
                        self._uncommitted[partition] = record.offset + 1
                if self._uncommitted:
                    with suppress(CommitFailedError):
                        consumer.commit(self._uncommitted)
                        self._uncommitted.clear()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


@contextmanager
def member(kafka: Kafka, client_id: str = "a", **more: Any) -> Iterator[Member]:
    one = Member(kafka.bootstrap, client_id, **more)
    try:
        yield one
    finally:
        one.close()


ORDERS = [(b"%d" % number, b"order %d" % number) for number in range(6)]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Place]]:
    """A recording in which the third commit is refused, because the member's session has expired, and its record is
    handled twice; and the handled records."""
    path = tmp_path_factory.mktemp("recordings") / "twice.recording"
    with muster.testing.kafka() as kafka, kafka.record(path):
        kafka.topic("orders", records=[value for _, value in ORDERS])
        with kafka.hold("OffsetCommit", nth=3) as held, member(kafka) as one:
            kafka.until(lambda: held.held, "a commit")
            kafka.group("billing").expire()
            held.release()
            kafka.until_lag_zero("billing", "orders")
            kafka.produce("orders", [b"late"])
            kafka.until_lag_zero("billing", "orders")
    assert [offset for _, offset, _ in one.handled] == [0, 1, 2, 2, 3, 4, 5, 6]
    return path, one.handled


@pytest.mark.parametrize("in_process", [True, False])
def test_the_same_records_are_handled_twice(twice: tuple[Path, list[Place]], in_process: bool) -> None:
    path, handled = twice
    with muster.testing.kafka(in_process=in_process) as kafka:
        for _ in range(2):  # the first replay leaves nothing
            with kafka.replay(path, pace=0) as replay, member(kafka, "any") as one:
                replay.until_over()
                assert replay.differences == []
            assert one.handled == handled
            assert kafka.admin.list_topics() == []
            assert kafka.groups() == []


def by_confluent(bootstrap: str, over: Callable[[], bool]) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    settings |= {"enable.auto.commit": "false", "heartbeat.interval.ms": "100", "session.timeout.ms": "45000"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["orders"])
    handled = []
    try:
        while not over():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                handled.append(message.offset() or 0)
                try:
                    consumer.commit(message, asynchronous=False)
                except confluent_kafka.KafkaException:
                    continue
    finally:
        consumer.close()
    return handled


KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer
from kafka.errors import CommitFailedError
from kafka.structs import OffsetAndMetadata

settings = dict(bootstrap_servers=sys.argv[1], group_id="billing", enable_auto_commit=False)
settings |= dict(heartbeat_interval_ms=100, session_timeout_ms=45_000)
consumer = KafkaConsumer("orders", auto_offset_reset="earliest", **settings)
while True:
    for partition, records in consumer.poll(100, max_records=1).items():
        print(records[0].offset, flush=True)
        try:
            consumer.commit({partition: OffsetAndMetadata(records[0].offset + 1, "", -1)})
        except CommitFailedError:
            continue
"""


def by_kafka_python(bootstrap: str, over: Callable[[], bool]) -> list[int]:
    """In a separate process: its import raises a warning."""
    program = subprocess.Popen([sys.executable, "-c", KAFKA_PYTHON, bootstrap], stdout=subprocess.PIPE, text=True)
    try:
        until(over)
    finally:
        program.kill()
    return [int(line) for line in program.communicate()[0].split()]


def by_aiokafka(bootstrap: str, over: Callable[[], bool]) -> list[int]:
    async def work() -> list[int]:
        joined = asyncio.Semaphore(0)

        class Joins(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: object) -> None:
                pass

            def on_partitions_assigned(self, assigned: object) -> None:
                joined.release()

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=30_000,
        )
        consumer.subscribe(["orders"], listener=Joins())
        await consumer.start()
        await joined.acquire()
        handled = []
        try:
            while not await asyncio.to_thread(over):  # the loop sends heartbeats meanwhile
                for partition, records in (await consumer.getmany(timeout_ms=100, max_records=1)).items():
                    handled.append(records[0].offset)
                    try:
                        await consumer.commit({partition: records[0].offset + 1})
                    except aiokafka.errors.CommitFailedError:
                        await joined.acquire()  # until then it has records that were fetched for the old generation
        finally:
            await consumer.stop()
        return handled

    return asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize("by", [by_confluent, by_kafka_python, by_aiokafka])
def test_other_clients_meet_the_same(
    twice: tuple[Path, list[Place]], by: Callable[[str, Callable[[], bool]], list[int]]
) -> None:
    path, handled = twice
    with muster.testing.kafka() as kafka, kafka.replay(path, pace=0) as replay:
        offsets = by(kafka.bootstrap, lambda: bool(replay.now()["over"]))
        assert replay.differences == []
    assert set(offsets) == {offset for _, offset, _ in handled}
    assert offsets.count(2) == 2


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_other_members_join_and_are_removed_as_they_were(tmp_path: Path, strategy: str) -> None:
    path, more = tmp_path / "two.recording", {"partition_assignment_strategy": strategy}
    with muster.testing.kafka(in_process=True) as kafka:
        kafka.topic("orders", partitions=3, records=ORDERS)
        with kafka.record(path), member(kafka, "a", **more) as one:
            kafka.until_lag_zero("billing", "orders")
            with member(kafka, "b", **more):
                kafka.until(lambda: parts(kafka) == [1, 2], "both to have partitions")
                kafka.produce("orders", ORDERS)
                kafka.until_lag_zero("billing", "orders")
            kafka.until(lambda: parts(kafka) == [3], "the first to have all")
            kafka.produce("orders", ORDERS)
            kafka.until_lag_zero("billing", "orders")
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, client="a", pace=0) as replay:
        with member(kafka, "any", **more) as again:
            replay.until_over()
        assert replay.differences == []
    assert again.handled == one.handled
    assert again.reported == one.reported


def test_another_member_that_comes_first_waits_for_the_one_under_test(tmp_path: Path) -> None:
    """The first generation has both members, as in the recording: the other one does not complete one alone."""
    path = tmp_path / "both.recording"
    both = [{"client": name, "partitions": {"orders": [place]}} for place, name in enumerate("ab")]
    lines = [
        {"muster_recording": 1},
        {"at_ms": 0, "what": "topic", "topic": "orders", "partitions": 2},
        {"at_ms": 1, "what": "joined", "group": "billing", "client": "b"},
        {"at_ms": 2, "what": "joined", "group": "billing", "client": "a"},
        {"at_ms": 3, "what": "generation", "group": "billing", "generation": 1, "members": both},
        {"at_ms": 4, "what": "end", "why": "complete"},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, client="a", pace=0) as replay:
        with member(kafka, "any") as again:
            replay.until_over()
            view = kafka.until_assigned("billing", members=2, topics=["orders"])
        assert replay.differences == []
    assert view["generation"] == 1
    assert again.reported[0] == ("assigned", [0])


def parts(kafka: Kafka) -> list[int]:
    """The number of partitions of each member."""
    view = kafka.view("billing")
    stable = view["state"] == "Stable"
    return sorted(sum(map(len, each["partitions"].values())) for each in view["members"]) if stable else []


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        ("OffsetCommit", {"do": "error", "error": "NOT_COORDINATOR"}),
        ("OffsetCommit", {"do": "lose_answer"}),
        ("JoinGroup", {"do": "lose_request"}),
        ("OffsetFetch", {"do": "error", "error": "UNSTABLE_OFFSET_COMMIT"}),
        ("Fetch", {"do": "cut"}),
    ],
)
def test_a_fault_strikes_again_and_once(tmp_path: Path, api: str, fault: dict[str, Any]) -> None:
    path, do = tmp_path / "fault.recording", fault["do"]
    more = {name: value for name, value in fault.items() if name != "do"}
    with muster.testing.kafka(in_process=True) as kafka, kafka.record(path):
        topic = kafka.topic("orders", records=[b"1", b"2"])
        about = {"topic": topic} if api == "Fetch" else {"group": "billing"}
        with kafka.fault(do, api, **about, **more) as first, member(kafka):  # type: ignore[arg-type]
            kafka.until_lag_zero("billing", "orders")
            first.wait_struck()
    assert json.loads(next(row for row in path.read_text().splitlines() if '"struck"' in row))["fault"] == fault
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, pace=0) as replay:
        with member(kafka):
            replay.until_over()
        assert replay.differences == []
        said = [line for line in kafka.story().splitlines() if "fault fault-1" in line]
        assert len(said) == 1, kafka.story()
        assert api in said[0]


def test_what_a_consumer_no_longer_does_is_a_difference(twice: tuple[Path, list[Place]]) -> None:
    path, _ = twice
    with muster.testing.kafka(in_process=True) as kafka:
        with kafka.replay(path, pace=0, patience_s=0.2) as replay:
            with member(kafka, group="another"):
                replay.until_over()
            assert "group billing has completed 0 rebalance(s), not 1, after 0.2 s" in replay.differences
        with kafka.replay(path, pace=0) as replay:
            kafka.until(lambda: "completed 0 rebalance(s)" in (replay.now()["waits_for"] or ""), "the replay to wait")
            with pytest.raises(WaitTimeoutError, match=r"waits: group billing has completed 0 rebalance\(s\)"):
                replay.until_over(0.1)


def test_a_group_may_have_another_name(twice: tuple[Path, list[Place]]) -> None:
    path, handled = twice
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, group="test-7", pace=0) as replay:
        with member(kafka, group="test-7") as one:
            replay.until_over()
        assert (replay.differences, one.handled) == ([], handled)


def test_records_come_no_sooner_than_their_time(tmp_path: Path) -> None:
    """With `pace=0.5`, a record that came a second later comes half a second later."""
    path = tmp_path / "slow.recording"
    lines = [
        {"muster_recording": 1},
        {"at_ms": 0, "what": "topic", "topic": "orders", "partitions": 1},
        *(
            {"what": "record", "topic": "orders", "partition": 0, "offset": n, "at_ms": n * 1_000, "timestamp_ms": n}
            | {"key": None, "value": str(n), "headers": []}
            for n in range(2)
        ),
        {"at_ms": 1_000, "what": "end", "why": "complete"},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with muster.testing.kafka(in_process=True) as kafka:
        began = time.monotonic()
        with kafka.replay(path, pace=0.5):
            first = [record.value for record in kafka.records("orders")]
            looked = time.monotonic() - began
            found = kafka.until_records("orders", 2)
        took = time.monotonic() - began
    assert took >= 0.5
    assert first == [b"0"] or looked >= 0.5
    assert [record.timestamp for record in found] == [0, 1]


def test_what_was_there_before_is_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "later.recording"
    with muster.testing.kafka(in_process=True) as kafka:
        kafka.topic("orders", records=[value for _, value in ORDERS])
        kafka.topic("other", records=[b"x"])
        with member(kafka), member(kafka, group="others", topic="other"):
            kafka.until_lag_zero("billing", "orders")
            kafka.until_lag_zero("others", "other")
        with kafka.record(path, topics=["orders"]):
            kafka.produce("orders", [b"late"])
            with member(kafka, group="others", topic="other"):
                kafka.until_assigned("others")
            with member(kafka) as one:
                kafka.until_lag_zero("billing", "orders")
        assert [offset for _, offset, _ in one.handled] == [6]
    assert '"other"' not in path.read_text()
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, pace=0) as replay:
        with member(kafka) as again:
            replay.until_over()
        assert (again.handled, replay.differences) == (one.handled, [])


def test_a_commit_whose_answer_is_lost_is_not_that_of_another_member(tmp_path: Path) -> None:
    """The other member commits before the commit is sent again."""
    path = tmp_path / "lost.recording"

    def commit(client_id: str, partition: int) -> None:
        topic = OffsetCommitRequestTopic("orders", partitions=[OffsetCommitRequestPartition(partition, 1)])
        client = RawClient(kafka.bootstrap)
        with closing(client.socket):
            client.send(OffsetCommitRequest("billing", topics=[topic]), 8, client_id)
            client.receive(OffsetCommitRequest, 8)

    with muster.testing.kafka(in_process=True) as kafka:
        kafka.topic("orders", partitions=2)
        with kafka.record(path):
            with kafka.lose_answer("OffsetCommit", client="one"), pytest.raises((EOFError, ConnectionResetError)):
                commit("one", 0)
            commit("two", 1)
            commit("one", 0)
    lines = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("what") == "committed"]
    assert [(line["client"], line["offsets"]["orders"]) for line in lines] == [("two", {"1": 1}), ("one", {"0": 1})]


def test_records_of_an_aborted_transaction_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "transactions.recording"
    with muster.testing.kafka(in_process=True) as kafka, kafka.record(path):
        kafka.topic("orders")
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": "billing-1"}
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions()
        for value, ends in ((b"dropped", producer.abort_transaction), (b"kept", producer.commit_transaction)):
            producer.begin_transaction()
            producer.produce("orders", value)
            producer.flush()
            ends()
        kafka.produce("orders", [b"plain"])
    values = [line["value"] for line in map(json.loads, path.read_text().splitlines()) if line.get("what") == "record"]
    assert values == ["kept", "plain"]


def test_the_recording_of_a_broker_that_is_killed_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "killed.recording"
    with muster.testing.kafka() as kafka:
        recorded = kafka.record(path)
        recorded.__enter__()
        kafka.topic("orders", records=[b"1"])
        kafka.kill()
        with pytest.warns(UserWarning, match="is incomplete: the broker was stopped or killed"):
            recorded.__exit__(None, None, None)
        kafka.start()
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, pace=0) as replay:
        replay.until_over()
        assert replay.differences == [
            "the recording is incomplete: its last line is missing: the broker ended while it was recorded"
        ]
        assert [record.value for record in kafka.records("orders")] == [b"1"]


def test_what_cannot_be_is_refused_by_a_sentence(twice: tuple[Path, list[Place]], tmp_path: Path) -> None:
    path, _ = twice
    with muster.testing.kafka(in_process=True) as kafka:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"path": tmp_path / "none"}, f"cannot read the recording {tmp_path / 'none'}: No such file or directory"),
            ({"path": Path(__file__)}, f"{__file__} is not a recording by muster: its first line has no"),
            ({"path": path, "client": "b"}, "client='b' is not a member in .*: its members are a$"),
            ({"path": path, "pace": -1}, "pace=-1: it must be a factor for recorded times, from 0 to 1000"),
            ({"path": path, "pace": "fast"}, "pace='fast': it must be a factor for recorded times"),
            ({"path": path, "patience_s": -1}, "patience_ms=-1000: it must be a whole number of milliseconds"),
        ]
        for arguments, says in refused:
            with pytest.raises(MusterError, match=says), kafka.replay(**arguments):
                pass
        again = pytest.raises(MusterError, match=r"is being recorded to .*/a already")
        with kafka.record(tmp_path / "a"), again, kafka.record(tmp_path / "b"):
            pass
        again = pytest.raises(MusterError, match="this broker is replaying a recording already")
        with kafka.replay(path), again, kafka.replay(path):
            pass
        kafka.topic("orders")
        exists = "topic orders exists on this broker: delete it, or replay on another broker"
        with pytest.raises(MusterError, match=exists), kafka.replay(path):
            pass
        with pytest.raises(MusterError, match="this broker is not replaying a recording"):
            kafka.ask_all("GET", "replay")


def test_several_brokers_are_not_recorded(tmp_path: Path) -> None:
    kafka = Kafka(brokers=3)
    kafka._running = type("Three", (), {"count": lambda self: 3})()
    with (
        pytest.raises(MusterError, match="a recording needs a single broker, and this kit has 3"),
        kafka.record(tmp_path / "r"),
    ):
        pass


async def test_recordings_on_an_event_loop(twice: tuple[Path, list[Place]], tmp_path: Path) -> None:
    path, handled = twice
    broker = AsyncKafka(in_process=True)
    async with broker as kafka, kafka.record(tmp_path / "again"), kafka.replay(path, pace=0) as replay:
        one = Member(kafka.bootstrap, "any")
        try:
            await replay.until_over()
            assert await replay.differences() == []
            assert (await replay.now())["over"]
        finally:
            await asyncio.to_thread(one.close)
    assert one.handled == handled
    assert (tmp_path / "again").read_text().endswith('"why": "complete"}\n')


# ------------------------------------------------------------------------------------- from a cluster, afterwards


def played_and_recorded(bootstrap: str, path: Path, name: str) -> Member:
    """A group of two on a cluster, recorded afterwards; returns the first member."""
    with muster.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([muster.NewTopic(name, 3)])
    send(bootstrap, name)
    one = Member(bootstrap, "a", name, name)
    try:
        until(lambda: len(one.handled) == len(ORDERS))
        other = Member(bootstrap, "b", name, name)
        try:
            until(lambda: len(one.reported) >= 3 and bool(other.reported))
            send(bootstrap, name)
            until(lambda: len(one.handled) + len(other.handled) == 2 * len(ORDERS))
        finally:
            other.close()
        until(lambda: one.reported[-1] == ("assigned", [0, 1, 2]))
        send(bootstrap, name)
        until(lambda: len(one.handled) + len(other.handled) == 3 * len(ORDERS))
    finally:
        one.close()
    muster.testing.record_past(path, name, {"bootstrap_servers": bootstrap}, since_s=300)
    return one


def send(bootstrap: str, topic: str) -> None:
    with muster.Producer(bootstrap_servers=bootstrap) as producer:
        for key, value in ORDERS:
            producer.send(topic, value, key=key)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def replayed(path: Path, name: str, one: Member) -> None:
    with muster.testing.kafka(in_process=True) as kafka, kafka.replay(path, client="a", group="here", pace=0) as replay:
        with member(kafka, "any", group="here", topic=name) as again:
            replay.until_over()
        assert replay.differences == []
    assert sorted(again.handled) == sorted(one.handled)
    assert again.reported == one.reported


def test_a_group_of_a_running_broker_is_recorded_afterwards(tmp_path: Path) -> None:
    with muster.testing.kafka() as kafka:
        one = played_and_recorded(kafka.bootstrap, tmp_path / "past", "past-orders")
        before = kafka.admin.list_consumer_group_offsets("past-orders")
        of_the_group = {"bootstrap.servers": kafka.bootstrap, "group.id": "past-orders"}
        muster.testing.record_past(tmp_path / "again", "past-orders", of_the_group, since_s=300)
        assert kafka.admin.list_consumer_group_offsets("past-orders") == before
        with pytest.raises(MusterError, match="__consumer_offsets has no records about group unknown in that time"):
            muster.testing.record_past(tmp_path / "x", "unknown", {"bootstrap_servers": kafka.bootstrap}, since_s=60)
        with pytest.raises(MusterError, match="since_s=1 must be greater than until_s=2"):
            muster.testing.record_past(tmp_path / "x", "g", {}, since_s=1, until_s=2)
    replayed(tmp_path / "past", "past-orders", one)


def test_a_group_of_kafka_is_recorded_afterwards(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    name = "recorded-afterwards"
    one = played_and_recorded(kafka_broker.bootstrap, tmp_path / "past", name)
    replayed(tmp_path / "past", name, one)


def test_a_log_that_cannot_be_read_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise LogError(ErrorCode.KAFKA_STORAGE_ERROR)

    with muster.testing.kafka(in_process=True) as kafka:
        topic = kafka.topic()
        recorded = kafka.record(tmp_path / "one")
        path = recorded.__enter__()
        monkeypatch.setattr(PartitionLog, "read", refuse)
        kafka.produce(topic, [b"a"])
        with pytest.raises(MusterError, match=f"one is incomplete: partition 0 of {topic} cannot be read"):
            recorded.__exit__(None, None, None)
        assert kafka.requests("Produce") == 1
    assert f"partition 0 of {topic} cannot be read" in recording.read(path.read_bytes(), "one").why


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_recording_on_a_full_disk_raises() -> None:
    with muster.testing.kafka(in_process=True) as kafka:
        full = "the recording /dev/full is incomplete: the file cannot be written: No space left on device"
        with pytest.raises(MusterError, match=full), kafka.record("/dev/full"):
            kafka.topic(records=[b"a"])
        with pytest.raises(ValueError, match="the block's own"), kafka.record("/dev/full"):
            raise ValueError("the block's own")
