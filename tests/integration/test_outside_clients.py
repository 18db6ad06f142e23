"""Unmodified third-party clients in groups on muster: they join, leave and crash, and nothing is lost.

Each story runs on a stream that never pauses. The broker describes the members of a group, its log says why the group
changed, and Kafka's own ConsumerGroupCommand is the third source.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from muster.broker.broker import Broker
from tests.support.brokers import BrokerProcess
from tests.support.outsiders import CLIENTS, PATIENCE_S, SESSION_TIMEOUT_MS, Cluster, Feed, Member, Share, until
from tests.support.peers import run_kafka_class

pytestmark = pytest.mark.slow(85)

PARTITIONS = 4
MIXED_PARTITIONS = 12
EXPIRED = f"was removed: no heartbeat within its session timeout ({SESSION_TIMEOUT_MS} ms)"


class Story:
    """One group on one topic, and the members that it has had."""

    def __init__(self, broker: BrokerProcess, cluster: Cluster, name: str, partitions: int, folder: Path) -> None:
        self.broker = broker
        self.cluster = cluster
        self.name = name
        self.partitions = partitions
        self.folder = folder
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.left: list[Member] = []
        """The members that left by sending LeaveGroup."""

    def start(self, client: str) -> Member:
        """Start a member."""
        member = Member(client, self.broker.bootstrap, self.name, self.name, self.folder)
        self.members.append(member)
        return member

    def settled(self) -> list[Share]:
        """Wait until the expected members share all partitions; returns what each has."""
        return self.cluster.shared_by(self.name, self.members, self.partitions)

    def leave(self, member: Member) -> None:
        """Make a member leave; the broker notices that it left on its own."""
        self.left.append(member)
        self._end(member, member.leave, lambda line: re.search(rf"{member.client}' at \S+ left", line) is not None)

    def crash(self, member: Member) -> None:
        """Kill a member; the broker notices its silence."""
        self._end(member, member.crash, lambda line: member.client in line and EXPIRED in line)

    def _end(self, member: Member, end: Callable[[], None], reported: Callable[[str], bool]) -> None:
        before = self._log_lines()
        end()
        self.members.remove(member)
        self.gone.append(member)
        until(
            lambda: any(reported(line) for line in self._log_lines()[len(before) :]),
            lambda: f"the broker's log says how {member.client} left; it says {self._log_lines()[len(before) :]}",
        )

    def _log_lines(self) -> list[str]:
        return [line for line in self.broker.log().splitlines() if f"group {self.name}: " in line]

    def values(self) -> set[int]:
        """The values that all members together have handled."""
        return set().union(*(member.values for member in (*self.members, *self.gone)))

    def handled(self, count: int) -> None:
        """Wait until all of the first `count` numbers have been handled: nothing is lost.

        Except for records that kcat itself drops: SIGTERM comes while kcat waits for a record; the record comes, and
        librdkafka counts it as consumed; kcat notices the signal, and returns without printing it; closing commits it.
        That is at most one record for each kcat that leaves.
        """
        dropped_by_kcat = sum(member.client == "with-kcat" for member in self.left)
        until(
            lambda: len(set(range(count)) - self.values()) <= dropped_by_kcat,
            lambda: f"{self.name} handles all: missing {sorted(set(range(count)) - self.values())[:20]} of {count}",
        )

    def account(self) -> str:
        """What the broker has reported about the group, and each member about itself: for the message of a failure."""
        lines = [f"{self.name}, as the broker tells it:", *self._log_lines()]
        return "\n".join([*lines, *(member.account() for member in (*self.gone, *self.members))])

    def destroy(self) -> None:
        """Stop what is still running."""
        for member in self.members:
            member.destroy()


@contextmanager
def stories(
    broker: BrokerProcess, names: Iterable[str], partitions: int, folder: Path
) -> Iterator[tuple[Feed, list[Story]]]:
    """Groups with one topic each, of the same name, to which numbers are written all the time."""
    cluster = Cluster(broker.bootstrap)
    reported = [Story(broker, cluster, name, partitions, folder) for name in names]
    cluster.create([story.name for story in reported], partitions)
    with Feed(broker.bootstrap, [story.name for story in reported], partitions) as feed:
        try:
            yield feed, reported
        except BaseException as error:
            for story in reported:
                error.add_note(story.account())
            raise
        finally:
            for story in reported:
                story.destroy()


def at_once(works: Iterable[Callable[[], object]]) -> None:
    """Run all at the same time. Raises the original failure, not those of others that waited at a barrier."""
    works = list(works)
    with ThreadPoolExecutor(len(works)) as pool:
        failures = [error for future in [pool.submit(work) for work in works] if (error := future.exception())]
    for error in sorted(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error


# ---------------------------------------------------------------------------------- what Kafka's own tool shows of it


def tables(*arguments: str, broker: BrokerProcess) -> list[dict[str, str]]:
    """Rows of ConsumerGroupCommand's tables, by column."""
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    patient = [
        "--timeout",
        str(int(PATIENCE_S * 1000)),
    ]  # its default is 5 s, in which a JVM on a busy machine may barely start
    done = run_kafka_class(
        command, "--bootstrap-server", broker.bootstrap, *patient, *arguments, timeout_s=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = []
    columns: list[str] = []
    for line in done.stdout.splitlines():
        cells = re.sub(r"\s+\(", "(", line).split()  # COORDINATOR (ID) is one column
        if cells[:1] == ["GROUP"]:
            columns = cells
        elif cells:
            assert len(cells) == len(columns), f"{columns}: {line}"
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def of_group(rows: list[dict[str, str]], group: str) -> list[dict[str, str]]:
    return [row for row in rows if row["GROUP"] == group]


def kafka_lists(broker: BrokerProcess, stories: list[Story]) -> None:
    rows = tables("--list", "--state", broker=broker)
    listed = {row["GROUP"]: row["STATE"] for row in rows}
    assert {story.name: listed.get(story.name) for story in stories} == {story.name: "Stable" for story in stories}


def kafka_describes_states(broker: BrokerProcess, stories: list[Story]) -> None:
    rows = tables("--describe", "--all-groups", "--state", broker=broker)
    for story in stories:
        (row,) = of_group(rows, story.name)
        assert row == {
            "GROUP": story.name,
            "COORDINATOR(ID)": f"{broker.bootstrap}(1)",
            "ASSIGNMENT-STRATEGY": "range",
            "STATE": "Stable",
            "#MEMBERS": str(len(story.members)),
        }


def kafka_describes_members(broker: BrokerProcess, stories: list[Story]) -> None:
    rows = tables("--describe", "--all-groups", "--members", "--verbose", broker=broker)
    for story in stories:
        found = {row["CONSUMER-ID"]: row for row in of_group(rows, story.name)}
        for share in story.settled():
            row = found.pop(share.member_id)
            assert (row["HOST"], row["CLIENT-ID"]) == (share.host, share.client_id)
            assert row["#PARTITIONS"] == str(len(share.partitions))
            numbers = ",".join(str(partition) for partition in share.partitions)
            assert row["CURRENT-ASSIGNMENT"] == f"{story.name}:{numbers}"
        assert not found


def kafka_describes_offsets(broker: BrokerProcess, stories: list[Story]) -> None:
    rows = tables("--describe", "--all-groups", "--offsets", broker=broker)
    for story in stories:
        found = of_group(rows, story.name)
        owners = {str(p): share for share in story.settled() for p in share.partitions}
        assert sorted(row["PARTITION"] for row in found) == sorted(owners)
        for row in found:
            owner = owners[row["PARTITION"]]
            assert (row["CONSUMER-ID"], row["CLIENT-ID"], row["HOST"]) == (
                owner.member_id,
                owner.client_id,
                owner.host,
            )
            assert int(row["LAG"]) == int(row["LOG-END-OFFSET"]) - int(row["CURRENT-OFFSET"])


def kafka_sees_all_handled(broker: BrokerProcess, stories: list[Story], count: int) -> None:
    """After all members have left, every offset is committed up to the end."""
    rows = tables("--describe", "--all-groups", "--offsets", broker=broker)
    for story in stories:
        ends = {int(row["PARTITION"]): row for row in of_group(rows, story.name)}
        assert sorted(ends) == list(range(story.partitions))
        for partition, row in ends.items():
            end = str(len(range(partition, count, story.partitions)))
            assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == (end, end, "0"), row
            assert (row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"]) == ("-", "-", "-")


# ------------------------------------------------------------------------------------------------------- the stories


def join_and_leave_and_crash(client: str, story: Story, both_in: threading.Barrier, seen: threading.Barrier) -> None:
    """One member is joined by a second, which leaves; a third joins, and the first, the leader, is killed."""
    first = story.start(client)
    assert [share.partitions for share in story.settled()] == [list(range(PARTITIONS))]

    second = story.start(client)
    assert [share.partitions for share in story.settled()] == [[0, 1], [2, 3]]
    both_in.wait(PATIENCE_S)
    seen.wait(PATIENCE_S)

    story.leave(second)
    assert [share.partitions for share in story.settled()] == [list(range(PARTITIONS))]

    story.start(client)
    assert [share.partitions for share in story.settled()] == [[0, 1], [2, 3]]

    story.crash(first)
    assert [share.partitions for share in story.settled()] == [list(range(PARTITIONS))]


def test_each_client_joins_leaves_and_crashes(java: str, kcat: str, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        stories(broker, [f"group-{client}" for client in CLIENTS], PARTITIONS, tmp_path) as (feed, reported),
    ):
        both_in, seen = (threading.Barrier(len(reported) + 1) for _ in range(2))

        def look() -> None:
            both_in.wait(PATIENCE_S)
            looks = (kafka_lists, kafka_describes_states, kafka_describes_members, kafka_describes_offsets)
            at_once([partial(each, broker, reported) for each in looks])
            seen.wait(PATIENCE_S)

        def together(part: Callable[[], None]) -> None:
            """A part that fails makes nobody wait for it."""
            try:
                part()
            except BaseException:
                both_in.abort()
                seen.abort()
                raise

        parts: list[Callable[[], None]] = [
            partial(join_and_leave_and_crash, c, s, both_in, seen) for c, s in zip(CLIENTS, reported, strict=True)
        ]
        at_once([partial(together, part) for part in [*parts, look]])
        count = feed.finish()
        at_once([partial(story.handled, count) for story in reported])
        at_once([partial(story.leave, story.members[0]) for story in reported])
        kafka_sees_all_handled(broker, reported, count)


def test_all_clients_in_one_group(java: str, kcat: str, tmp_path: Path) -> None:
    """Whoever leads, the others understand it: one after another leaves, and one of them crashes, until one has
    everything."""
    with (
        BrokerProcess(tmp_path / "data") as broker,
        stories(broker, ["mixed"], MIXED_PARTITIONS, tmp_path) as (feed, (story,)),
    ):
        for client in CLIENTS:
            story.start(client)
        shares = story.settled()
        assert [len(share.partitions) for share in shares] == [2] * len(CLIENTS)
        kafka_describes_members(broker, [story])

        by_client = {member.client: member for member in story.members}
        leave, crash = story.leave, story.crash
        for end, client in (
            (leave, "with-kafka-python"),
            (crash, "with-java"),
            (leave, "with-confluent"),
            (leave, "with-aiokafka"),
            (leave, "with-kcat"),
        ):
            end(by_client[client])
            assert len(story.settled()) == len(story.members)
        count = feed.finish()
        story.handled(count)
        story.leave(by_client["with-muster"])
        kafka_sees_all_handled(broker, [story], count)


def test_all_clients_in_one_group_to_which_the_coordinator_assigns(java: str, tmp_path: Path) -> None:
    """None of them leads; each takes its assignment. The broker is killed, then one of them, and one leaves.

    kcat, which ends itself when no broker is left, is not among them.
    """
    clients = [client for client in CLIENTS if client != "with-kcat"]
    with (
        BrokerProcess(tmp_path / "data", {"server.assigned.groups": "mix.*"}) as broker,
        stories(broker, ["mixed"], MIXED_PARTITIONS, tmp_path) as (feed, (story,)),
    ):
        for client in clients:
            story.start(client)
        assert sorted(len(share.partitions) for share in story.settled()) == [2, 2, 2, 3, 3]
        kafka_describes_members(broker, [story])
        assert f"{len(clients)} member(s), range, leader coordinator" in broker.log()

        broker.kill()
        broker.start()
        assert len(story.settled()) == len(clients)
        by_client = {member.client: member for member in story.members}
        story.crash(by_client["with-java"])
        assert len(story.settled()) == len(story.members)
        story.leave(by_client["with-confluent"])
        assert len(story.settled()) == len(story.members)
        count = feed.finish()
        story.handled(count)


async def test_a_transactional_producer_of_aiokafka(muster_broker: Broker) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=muster_broker.bootstrap, transactional_id="x")
    consumer = AIOKafkaConsumer(
        "of-transactions",
        bootstrap_servers=muster_broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with producer, consumer:
        for value in (b"first", b"aborted", b"last"):
            await producer.begin_transaction()
            await producer.send_and_wait("of-transactions", value)
            if value == b"aborted":
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        assert [(await consumer.getone()).value for _ in range(2)] == [b"first", b"last"]
