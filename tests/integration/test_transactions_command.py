"""`muster transactions` and the admin's calls about transactions compared with `kafka-transactions.sh`, on Apache Kafka
and on muster: the same tables, and the same end of a transaction that hangs.

These brokers do not verify transactions. So a batch that no coordinator knows about begins one, as producers' batches
could on older brokers.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from muster.client.admin.admin import Admin
from muster.client.admin.async_admin import AsyncAdmin
from muster.client.config import ClientConfig
from muster.client.core.admin.transactions import AbortTransactionSpec, TransactionDescription
from muster.client.plain.fetch import FetchSettings
from muster.errors import AdminError, ErrorCode, KafkaError
from muster.history.doctor import Selection, read_folder
from muster.history.model import Lag, Limits
from muster.history.rows import to_table
from muster.model import TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark.history.folding import find
from muster.spark.history.packed import to_bytes
from tests.integration.test_admin_commands import Commands
from tests.integration.test_transactions_match_kafka import ready
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import KafkaBroker, run_kafka_class
from tests.support.transaction_sides import TransactionSide

pytestmark = pytest.mark.slow(60)

TOOL = "org.apache.kafka.tools.TransactionsCommand"
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@dataclass
class World:
    """A broker with transactional ids in every state, and hanging transactions."""

    bootstrap: str
    client: RawClient
    looks_once: bool
    data: Path
    """The broker's data directory."""
    topic: str = "payments"
    sides: dict[str, TransactionSide] = field(default_factory=dict)
    hanging: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        ready(self.client, self.topic)
        if self.looks_once:
            self._wait_for_the_look()
        for state in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort"):
            for tv2 in (False, True):
                self.sides[f"{state}-{2 if tv2 else 1}"] = self.side(f"{state}-{2 if tv2 else 1}").to(state, tv2)
        self.hanging = self.hang(self.topic)

    def _wait_for_the_look(self) -> None:
        """A new coordinator of muster's checks once for hanging transactions, and ends them."""
        assert not self.side("looked for").produce(9, (12_345_679, 0), partition=0, sequence=0).error_code
        place = TopicPartition(self.topic, 0)
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            while end_of(admin, place) < end_of(admin, place, "read_uncommitted"):
                pass

    def side(self, name: str, topic: str = "") -> TransactionSide:
        side = TransactionSide(self.client, topic or self.topic, name)
        side.timeout_ms = 900_000  # on a busy machine a JVM may take a minute
        return side

    def hang(self, topic: str) -> dict[str, int]:
        """Begin transactions that hang in a topic's partition 1, and return their offsets: of a new producer, of one
        that has had a transaction of either version, and of one that no coordinator knows."""
        begins = {}
        for name in ("new", "tv1", "tv2"):
            side = self.sides[f"{topic}-{name}"] = self.side(f"{topic}-{name}", topic)
            side.begin() if name == "new" else side.to("CompleteCommit", name == "tv2")
            while (found := side.produce(9, partition=1, sequence=0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                pass  # partition 0 already has a leader
            assert not found.error_code, (name, found.error_code)
            begins[name] = found.base_offset
        begins["no id"] = self.side("nobody's", topic).produce(9, (12_345_678, 3), partition=1).base_offset
        return begins

    def tool(self, *words: str) -> tuple[str, str]:
        done = run_kafka_class(TOOL, "--bootstrap-server", self.bootstrap, *words, timeout_s=300)
        return done.stdout, done.stderr


@pytest.fixture(scope="module", params=["muster", "kafka"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("unverified") / "broker"
    with contextlib.ExitStack() as stack:
        broker: BrokerProcess | KafkaBroker
        if request.param == "muster":
            broker = stack.enter_context(BrokerProcess(folder, UNVERIFIED))
        else:
            request.getfixturevalue("java")
            broker = stack.enter_context(KafkaBroker(folder, UNVERIFIED))
        looks_once = request.param == "muster"
        data = folder if looks_once else folder / "data"
        world = World(broker.bootstrap, stack.enter_context(RawClient(broker.bootstrap)), looks_once, data)
        world.prepare()
        yield world


@pytest.fixture
def muster(world: World) -> Commands:
    return Commands(world.bootstrap)


@pytest.fixture
def admin(world: World) -> Iterator[Admin]:
    with Admin(bootstrap_servers=world.bootstrap) as made:
        yield made


def rows(text: str) -> list[str]:
    """The lines of a table; rows in the order of a hash table are sorted, and durations are masked."""
    head, *lines = text.splitlines()
    if "TransactionDurationMs" in head:
        lines = [re.sub(r"(\t\d{13}\s*\t)\d+(\s*\t)", r"\1…\2", line) for line in lines]
        head, *lines = (re.sub(" +", " ", line) for line in (head, *lines))
    return [head, *sorted(lines)]


def test_the_tables_are_those_of_kafkas_tool(world: World, muster: Commands) -> None:
    partition = ("--topic", world.topic, "--partition")
    forms = [
        ("list",),
        ("list", "--transactional-id-pattern", "Complete.*-[12]"),
        ("list", "--duration-filter", "3600000"),
        ("describe", "--transactional-id", "Ongoing-2"),
        ("describe", "--transactional-id", "Empty-1"),
        ("describe", "--transactional-id", "CompleteAbort-1"),
        ("describe-producers", *partition, "0"),
        ("describe-producers", *partition, "1", "--broker-id", "1"),
        ("find-hanging", "--topic", world.topic),
        ("find-hanging", "--broker-id", "1"),
        ("find-hanging", *partition, "0", "--max-transaction-timeout", "0"),
    ]
    with ThreadPoolExecutor(2) as threads:
        theirs = list(threads.map(lambda form: rows(world.tool(*form)[0]), forms))
    ours = [rows(muster("transactions", *form)) for form in forms]
    for form, one, other in zip(forms, ours, theirs, strict=True):
        assert one == other, form
    assert len(theirs[0]) > 10
    assert len(theirs[1]) == 5
    assert all("\tEmpty" in line for line in theirs[2][1:]), "as if they had begun in 1970"
    assert len(theirs[2]) > 3
    assert len(theirs[8]) == 5
    assert len(theirs[9]) >= 5, "and those hanging in other tests' topics"


def test_what_is_wrong_is_one_sentence(world: World, muster: Commands) -> None:
    def said(*words: str) -> str:
        return muster("transactions", *words, code=1)

    assert "TRANSACTIONAL_ID_NOT_FOUND" in said("describe", "--transactional-id", "none")
    for pattern in ("(", "Complete(?=.*)", "(C)\\1", "C++", "(C{2}){1001}"):
        assert "INVALID_REGULAR_EXPRESSION" in said("list", "--transactional-id-pattern", pattern)
    assert "--topic or --broker-id" in said("find-hanging")
    assert "--partition needs --topic" in said("find-hanging", "--partition", "0", "--broker-id", "1")
    assert "BROKER_NOT_AVAILABLE" in said("describe-producers", "--topic", "x", "--partition", "0", "--broker-id", "9")
    assert "choose from Empty" in said("list", "--state", "Open")
    place = ("--topic", world.topic, "--partition", "1")
    assert "name the transaction" in said("abort", *place)
    assert "needs --producer-epoch" in said("abort", *place, "--producer-id", "1")
    assert "begins at offset 999" in said("abort", *place, "--start-offset", "999")
    wrong = ("--producer-id", "12345678", "--producer-epoch", "2", "--coordinator-epoch", "0")
    assert "INVALID_PRODUCER_EPOCH" in said("abort", *place, *wrong)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in said("force-terminate", "--transactional-id", "none")
    assert "none" not in muster("transactions", "list"), "an id that does not exist is not created"


def test_json(world: World, muster: Commands) -> None:
    listed = muster.json("transactions", "list", "--state", "ongoing,empty", "--state", "CompleteAbort")
    assert {"Empty", "Ongoing", "CompleteAbort"} == {each["state"] for each in listed}
    (one,) = muster.json("transactions", "list", "--producer-id", str(world.sides["Ongoing-1"].producer_id))
    assert one["transactional_id"] == "Ongoing-1"
    described = muster.json("transactions", "describe", "--transactional-id", "Ongoing-2")["Ongoing-2"]
    assert (described["state"], described["partitions"]) == ("Ongoing", [[world.topic, 0]])
    assert described["duration_ms"] >= 0
    hanging = muster.json("transactions", "find-hanging", "--topic", world.topic)
    names = {each["start_offset"]: each["transactional_id"] for each in hanging}
    assert names == {
        world.hanging["new"]: "payments-new",
        world.hanging["tv1"]: "payments-tv1",
        world.hanging["tv2"]: "payments-tv2",
        world.hanging["no id"]: None,
    }


async def test_outcomes(world: World) -> None:
    async with AsyncAdmin(bootstrap_servers=world.bootstrap) as admin:
        found = await admin.describe_transactions(["Ongoing-1", "none"], raise_errors=False)
        known, missing = found["Ongoing-1"], found["none"]
        assert isinstance(known, TransactionDescription)
        assert known.state == "Ongoing"
        assert isinstance(missing, KafkaError)
        assert missing.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        with pytest.raises(AdminError):
            await admin.describe_transactions(["none"])
        place = TopicPartition(world.topic, 9)
        refused = (await admin.abort_transaction(AbortTransactionSpec(place, 1, 0), raise_errors=False))[place]
        assert refused is not None
        assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(AdminError):
            await admin.abort_transaction(AbortTransactionSpec(place, 1, 0))
        with pytest.raises(AdminError):
            await admin.fence_producers([""])


def end_of(admin: Admin, place: TopicPartition, isolation_level: str = "read_committed") -> int:
    found = admin.list_offsets({place: LATEST_TIMESTAMP}, isolation_level=isolation_level)[place]
    assert found is not None
    return found.offset


def test_what_hangs_is_ended_by_either_tool(world: World, muster: Commands, admin: Admin) -> None:
    """In the order of the log, so that each end moves the last stable offset."""
    ready(world.client, "refunds")
    hanging = sorted(world.hang("refunds").values())
    place = TopicPartition("refunds", 1)
    end = end_of(admin, place, "read_uncommitted")
    assert end_of(admin, place) == hanging[0]
    where = ("--topic", "refunds", "--partition", "1")
    said = muster("transactions", "abort", *where, "--start-offset", str(hanging[0]))
    assert re.match(r"Aborted the transaction of producer \d+, epoch \d+ in refunds-1\.", said)
    assert end_of(admin, place) == hanging[1]
    assert world.tool("abort", *where, "--start-offset", str(hanging[1])) == ("", "")
    assert end_of(admin, place) == hanging[2]
    one = json.loads(muster("transactions", "abort", *where, "--start-offset", str(hanging[2]), "--json"))
    assert (one["producer_id"], one["producer_epoch"]) == (
        world.sides["refunds-tv2"].producer_id,
        world.sides["refunds-tv2"].epoch,
    )
    ids: Any = ("--producer-id", "12345678", "--producer-epoch", "3", "--coordinator-epoch", "-1")
    muster("transactions", "abort", *where, *ids)
    assert end_of(admin, place) == end + 4
    assert muster.json("transactions", "find-hanging", "--topic", "refunds") == []


def test_producers_are_fenced(world: World, muster: Commands, admin: Admin) -> None:
    place = TopicPartition("orders", 0)
    ready(world.client, "orders")
    one, two, idle = (
        world.side(f"orders {n}", "orders").to(s, True) for n, s in enumerate(("Ongoing", "Ongoing", "Empty"))
    )
    fenced = admin.fence_producers([one.name, idle.name])
    assert fenced[one.name].producer_id == one.producer_id
    assert fenced[one.name].producer_epoch > one.epoch
    assert fenced[idle.name].producer_epoch == idle.epoch + 1
    assert one.end(True).error_code == ErrorCode.PRODUCER_FENCED
    muster("transactions", "force-terminate", "--transactionalId", two.name)
    described = admin.describe_transactions([one.name, two.name])
    assert {each.state for each in described.values()} <= {"Empty", "CompleteAbort"}
    assert end_of(admin, place) == end_of(admin, place, "read_uncommitted")


def test_the_doctor_says_which_transaction_a_group_waits_for(world: World, muster: Commands, admin: Admin) -> None:
    ready(world.client, "shipments")
    begins = world.hang("shipments")
    slow = world.side("shipments slow", "shipments").to("Ongoing", True)
    offsets = {
        TopicPartition("shipments", number): end_of(admin, TopicPartition("shipments", number)) for number in (0, 1)
    }
    admin.alter_consumer_group_offsets("readers", offsets)
    found = {each["rule"]: each for each in muster.json("doctor", "--group", "readers")["findings"]}
    first = min(begins.values())
    assert (
        f"hangs in shipments-1: shipments-new (producer {world.sides['shipments-new'].producer_id}, epoch 0)"
        in (found["hanging_transaction"]["sentence"])
    )
    command = f"muster transactions abort --topic shipments --partition 1 --start-offset {first}"
    assert command in found["hanging_transaction"]["advice"]
    assert f"a transaction of shipments slow (producer {slow.producer_id}" in found["open_transaction"]["sentence"]
    assert "hangs in" not in found["open_transaction"]["sentence"]

    settings = FetchSettings(ClientConfig(bootstrap_servers=(world.bootstrap,)))
    ends = {place: end_of(admin, place, "read_uncommitted") for place in offsets}
    rows = [
        Lag("readers", *place, 5, offset, 4, 0, ends[place], ends[place] - offset, False, None, 0, None)
        for place, offset in offsets.items()
    ]
    packed = pa.RecordBatch.from_pydict({"name": ["lag"], "data": [to_bytes(to_table(Lag, rows))]})
    by_spark = pa.Table.from_batches(find(Limits(), None, settings)(iter([packed]))).to_pylist()
    assert {each["rule"]: each["advice"] for each in by_spark} == {
        rule: each["advice"] for rule, each in found.items() if rule.endswith("_transaction")
    }

    in_folder = {each.rule: each for each in read_folder([world.data], Selection(["readers"])).report().findings}
    assert in_folder.keys() == found.keys()
    for rule in ("hanging_transaction", "open_transaction"):
        reported = (in_folder[rule].sentence, found[rule]["sentence"])
        assert len({re.sub(r"last batch was .* ago", "", sentence) for sentence in reported}) == 1, reported
        assert in_folder[rule].advice == found[rule]["advice"]
