"""Random requests to muster and to Apache Kafka 4.2: the answers are the same, field by field, except for what
docs/reference/compatibility.md lists.

A failure shows the seed, and all requests up to the first whose answers differ.
`MUSTER_FIRST_SEED=… MUSTER_SEEDS=1` replays that seed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.protocol import messages as m
from tests.support.allowed_differences import ALLOWED
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.differential import LONG_MOMENT_S, Play, play_all
from tests.support.faces import until_known
from tests.support.peers import GROUP_PARTITIONS, KafkaBroker
from tests.support.random_groups import RandomGroup
from tests.support.random_records import RandomRecords
from tests.support.random_transactions import RandomTransactions, until_transactions_are_served, wear_out
from tests.support.scale import fresh_seeds, seeds

pytestmark = pytest.mark.slow

Both = tuple[str, str]
"""The addresses of muster and of Kafka."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"


def topic_of(*bootstraps: str) -> str:
    """A topic of two partitions on each of the brokers."""
    name = f"random-{uuid.uuid4().hex[:8]}"
    for bootstrap in bootstraps:
        with RawClient(bootstrap) as client:
            made = client.ask(m.CreateTopicsRequest([m.CreatableTopic(name, 2, 1)], 20_000), 7)
            assert made.topics[0].error_code == 0, made
        until_known(bootstrap, name, 2)
    return name


@pytest.fixture(scope="module")
def muster_and_kafka(tmp_path_factory: pytest.TempPathFactory, transactional_kafka: KafkaBroker) -> Iterator[Both]:
    """Groups share partitions of `__consumer_offsets` in muster as they do in Kafka; both brokers serve all of them."""
    same = {"offsets.topic.num.partitions": GROUP_PARTITIONS}
    with BrokerProcess(tmp_path_factory.mktemp("muster") / "data", same) as broker:
        both = broker.bootstrap, transactional_kafka.bootstrap
        for bootstrap in both:
            until_transactions_are_served(bootstrap)
        yield both


@pytest.mark.soak
def test_groups_are_answered_as_by_kafka(shared_muster: BrokerProcess, kafka_broker: KafkaBroker) -> None:
    both = shared_muster.bootstrap, kafka_broker.bootstrap
    topic = topic_of(*both)
    wrong = play_all([*seeds(40), *fresh_seeds(20)], lambda seed: RandomGroup(seed, topic), both).wrong
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.soak
def test_records_topics_and_settings_are_answered_as_by_kafka(
    shared_muster: BrokerProcess, kafka_broker: KafkaBroker
) -> None:
    both = shared_muster.bootstrap, kafka_broker.bootstrap
    wrong = play_all([*seeds(40), *fresh_seeds(20)], RandomRecords, both).wrong
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.soak
@pytest.mark.slow(40)
def test_transactions_are_answered_as_by_kafka(muster_and_kafka: Both) -> None:
    """Ten thousand requests; `MUSTER_SEEDS=10000` makes it a million."""
    wrong = play_all([*seeds(70), *fresh_seeds(30)], RandomTransactions, muster_and_kafka).wrong
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.soak
@pytest.mark.slow(30)
def test_the_last_epochs_of_a_producer_id_are_answered_as_by_kafka(muster_and_kafka: Both) -> None:
    for seed in seeds(1):
        worn = f"worn-{seed}-{uuid.uuid4().hex[:8]}"
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(wear_out, muster_and_kafka, [worn] * 2))
        different = Play(RandomTransactions(seed, [worn]), muster_and_kafka, LONG_MOMENT_S).run()
        assert different is None, f"seed {seed}\n{different}"


def test_a_difference_is_shown_with_the_requests_that_lead_to_it(shared_muster: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "other", {"offset.metadata.max.bytes": 0}) as other:
        both = shared_muster.bootstrap, other.bootstrap
        topic = topic_of(*both)
        played = (play_all([seed], lambda seed: RandomGroup(seed, topic), both).wrong for seed in range(20))
        [wrong] = next(filter(None, played))
    first, *lines = wrong.splitlines()
    asked = [line for line in lines if not line.startswith("the answer to")]
    assert re.fullmatch(r"seed \d+", first)
    assert re.fullmatch(r"\w+: v\d+ \w+Request\(.*", asked[0])
    assert "OffsetCommitRequest" in asked[-1]
    assert "error_code: ours 'NONE', Kafka's 'OFFSET_METADATA_TOO_LARGE'" in lines[-1]


def test_what_may_differ_is_what_the_page_says() -> None:
    section = PAGE.read_text().split("### Single answers\n")[1].split("\n#")[0]
    bullets = [" ".join(bullet.split()) for bullet in section.split("\n- ")[1:]]
    assert bullets == [each.sentence for each in ALLOWED]
