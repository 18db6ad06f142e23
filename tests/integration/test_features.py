"""The finalized features of muster and of Apache Kafka 4.2, changed by UpdateFeatures, and what follows from that."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster import Consumer
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.admin_messages import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import NEVER_KILLED, KafkaBroker, run_kafka_class
from tests.support.zookeepers import ZooKeeperServer

TRANSACTIONS = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3
PATIENCE_S = 300


class Update(NamedTuple):
    """A request: levels with kinds of changes."""

    levels: list[tuple[str, int, int]]
    validate_only: bool = False

    def request(self) -> UpdateFeaturesRequest:
        keys = [FeatureUpdateKey(name, level, False, kind) for name, level, kind in self.levels]
        return UpdateFeaturesRequest(60_000, keys, self.validate_only)


UPDATES = [
    Update([]),
    Update([(TRANSACTIONS, 2, UPGRADE)]),
    Update([(TRANSACTIONS, 3, UPGRADE)]),
    Update([(TRANSACTIONS, -1, SAFE)]),
    Update([(TRANSACTIONS, 1, UPGRADE)]),
    Update([(TRANSACTIONS, 1, 0)]),
    Update([(TRANSACTIONS, 1, 9)]),
    Update([("no.such.version", 1, UPGRADE)]),
    Update([("no.such.version", 0, SAFE)]),
    Update([(TRANSACTIONS, 1, SAFE)], validate_only=True),
    Update([(TRANSACTIONS, 1, SAFE)]),
    Update([(TRANSACTIONS, 2, SAFE)]),
    Update([(TRANSACTIONS, 0, UNSAFE)]),
    Update([(TRANSACTIONS, 2, UPGRADE), (TRANSACTIONS, 1, UPGRADE)]),
    Update([(TRANSACTIONS, 2, UPGRADE), ("no.such.version", 1, UPGRADE)]),
    Update([(TRANSACTIONS, 2, UPGRADE)]),
]


def finalized(client: RawClient) -> tuple[dict[str, tuple[int, int]], int]:
    """The levels that ApiVersions has for `transaction.version`, and the features' epoch."""
    reported = client.ask(m.ApiVersionsRequest("test", "1"), 4)
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in reported.finalized_features}
    return {name: found for name, found in levels.items() if name == TRANSACTIONS}, reported.finalized_features_epoch


def answer(client: RawClient, update: Update, version: int) -> Any:
    reported = client.ask(update.request(), version)
    text = re.sub(r"controller \d+", "controller N", reported.error_message or "")
    results = [(each.feature, each.error_code, each.error_message) for each in reported.results]
    return reported.error_code, text, sorted(results), finalized(client)[0]


def answers(ours: RawClient, theirs: RawClient, update: Update, version: int) -> tuple[Any, Any]:
    """muster's answer and Kafka's: Kafka's controller answers, and its broker learns of the change a moment later."""
    found, expected = answer(ours, update, version), answer(theirs, update, version)
    deadline = time.monotonic() + PATIENCE_S
    while expected[-1] != found[-1] and time.monotonic() < deadline:
        expected = *expected[:-1], finalized(theirs)[0]
    return found, expected


def updates(version: int) -> list[Update]:
    """The updates that this version of the request can express."""
    said = [each for each in UPDATES if not each.validate_only and all(kind == UPGRADE for *_, kind in each.levels)]
    return UPDATES if version else said


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "muster") as broker:
        yield broker


@pytest.mark.slow
def test_features_are_updated_as_by_kafka(tmp_path: Path, muster: BrokerProcess) -> None:
    with KafkaBroker(tmp_path / "kafka", NEVER_KILLED) as kafka:
        ours, theirs = RawClient(muster.bootstrap), RawClient(kafka.bootstrap)
        for version in range(3):
            for update in updates(version):
                found, expected = answers(ours, theirs, update, version)
                assert found == expected, (version, update)
        for client in (ours, theirs):
            client.close()


@pytest.mark.slow
def test_any_broker_of_a_cluster_updates_them_for_all(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    """Answered as by Kafka; each broker in turn is asked, and all follow, including one that was down."""
    settings = {"zookeeper.connect": zookeeper.chroot(), "offsets.topic.num.partitions": 1}
    kafka = KafkaBroker(tmp_path / "kafka", NEVER_KILLED)
    one, two = (BrokerProcess(tmp_path / f"muster{n}", {**settings, "node.id": n}) for n in (1, 2))
    with ExitStack() as held:
        for broker in (kafka, one, two):
            held.enter_context(broker)
        theirs, first, second = (held.enter_context(RawClient(broker.bootstrap)) for broker in (kafka, one, two))
        asked = cycle([(first, second), (second, first)])
        for version in range(3):
            for update in updates(version):
                client, other = next(asked)
                found, expected = answers(client, theirs, update, version)
                assert found == expected, (version, update)
                while finalized(other) != finalized(client):
                    pass
        changes = finalized(first)[1]
        assert changes > 0
        two.kill()
        with RawClient(one.bootstrap) as client:
            client.ask(Update([(TRANSACTIONS, 1, SAFE)]).request(), 2)
        two.start()
        with RawClient(two.bootstrap) as client:
            assert finalized(client) == ({TRANSACTIONS: (1, 1)}, changes + 1)


@pytest.mark.slow
def test_kafkas_tool_describes_and_changes_them(muster: BrokerProcess, java: str) -> None:
    def features(*command: str) -> str:
        tool = "org.apache.kafka.tools.FeatureCommand"
        return run_kafka_class(tool, "--bootstrap-server", muster.bootstrap, *command).stdout

    line = r"Feature: transaction\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2\s+FinalizedVersionLevel: "
    assert re.search(line + r"2\s+Epoch: 0", features("describe"))
    assert "transaction.version was downgraded to 1" in features("downgrade", "--feature", "transaction.version=1")
    assert re.search(line + r"1\s+Epoch: 1", features("describe"))


def test_a_level_outlives_the_broker_and_its_epoch_grows(muster: BrokerProcess) -> None:
    client = RawClient(muster.bootstrap)
    assert finalized(client) == ({TRANSACTIONS: (2, 2)}, 0)
    client.ask(Update([(TRANSACTIONS, 1, SAFE)]).request(), 2)
    assert finalized(client) == ({TRANSACTIONS: (1, 1)}, 1)
    client.close()
    muster.kill()
    muster.start()
    client = RawClient(muster.bootstrap)
    assert finalized(client) == ({TRANSACTIONS: (1, 1)}, 1)
    client.ask(Update([(TRANSACTIONS, 0, SAFE)]).request(), 2)
    assert finalized(client) == ({}, 2)
    client.close()


def test_the_coordinator_follows_the_level(muster: BrokerProcess) -> None:
    """A record that a broker of level 0 could not read (version 1) is written from level 1 on."""
    client = RawClient(muster.bootstrap)

    def version_written(transactional_id: str) -> int:
        while client.ask(m.InitProducerIdRequest(transactional_id, 60_000, -1, -1), 5).error_code:
            pass
        with Consumer(bootstrap_servers=muster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("__transaction_state", index) for index in range(50)])
            for record in consumer:
                assert record.key is not None
                assert record.value is not None
                if record.key.endswith(transactional_id.encode()):
                    return int.from_bytes(record.value[:2], "big")
        raise AssertionError("the consumer has ended")

    assert version_written("first") == 1
    client.ask(Update([(TRANSACTIONS, 0, SAFE)]).request(), 2)
    assert version_written("second") == 0
    client.ask(Update([(TRANSACTIONS, 1, UPGRADE)]).request(), 2)
    assert version_written("third") == 1
    client.close()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"epoch": 1, "transaction.version": 7}', '{"epoch": 1, "x": 1}'])
def test_a_damaged_file_is_refused_with_its_name(muster: BrokerProcess, content: str) -> None:
    muster.kill()
    (muster.folder / "muster-features.json").write_text(content)
    with pytest.raises(AssertionError, match=r"muster-features\.json cannot be parsed.*correct or remove the file"):
        muster.start()
