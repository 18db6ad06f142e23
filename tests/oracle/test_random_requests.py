"""Random requests to muster and to Apache Kafka 4.2: the answers are the same, field by field, but for what
docs/reference/compatibility.md says.

A failure shows the seed, and all requests up to the first whose answers differ.
`MUSTER_FIRST_SEED=… MUSTER_SEEDS=1` plays that seed again.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from muster.protocol import messages as m
from tests.support.allowed_differences import ALLOWED
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.differential import play_all
from tests.support.peers import KafkaBroker
from tests.support.random_groups import RandomGroup
from tests.support.random_records import RandomRecords
from tests.support.scale import fresh_seeds, seeds

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"


def topic_of(*bootstraps: str) -> str:
    """A topic of two partitions on each of the brokers."""
    name = f"random-{uuid.uuid4().hex[:8]}"
    for bootstrap in bootstraps:
        with RawClient(bootstrap) as client:
            made = client.ask(m.CreateTopicsRequest([m.CreatableTopic(name, 2, 1)], 20_000), 7)
            assert made.topics[0].error_code == 0, made
    return name


@pytest.mark.soak
def test_groups_are_answered_as_by_kafka(shared_muster: BrokerProcess, kafka_broker: KafkaBroker) -> None:
    both = shared_muster.bootstrap, kafka_broker.bootstrap
    topic = topic_of(*both)
    wrong = play_all([*seeds(100), *fresh_seeds(50)], lambda seed: RandomGroup(seed, topic), both)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.soak
def test_records_topics_and_settings_are_answered_as_by_kafka(
    shared_muster: BrokerProcess, kafka_broker: KafkaBroker
) -> None:
    wrong = play_all([*seeds(100), *fresh_seeds(50)], RandomRecords, (shared_muster.bootstrap, kafka_broker.bootstrap))
    assert not wrong, "\n\n".join(wrong)


def test_a_difference_is_shown_with_the_requests_that_lead_to_it(shared_muster: BrokerProcess, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "other", {"offset.metadata.max.bytes": 0}) as other:
        both = shared_muster.bootstrap, other.bootstrap
        topic = topic_of(*both)
        wrong = play_all(range(20), lambda seed: RandomGroup(seed, topic), both)
    first, *lines = wrong[0].splitlines()
    asked = [line for line in lines if not line.startswith("the answer to")]
    assert re.fullmatch(r"seed \d+", first)
    assert re.fullmatch(r"\w+: v\d+ \w+Request\(.*", asked[0])
    assert "OffsetCommitRequest" in asked[-1]
    assert "error_code: ours 'NONE', Kafka's 'OFFSET_METADATA_TOO_LARGE'" in lines[-1]


def test_what_may_differ_is_what_the_page_says() -> None:
    section = PAGE.read_text().split("### Single answers\n")[1].split("\n#")[0]
    bullets = [" ".join(bullet.split()) for bullet in section.split("\n- ")[1:]]
    assert bullets == [each.sentence for each in ALLOWED]
