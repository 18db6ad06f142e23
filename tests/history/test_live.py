"""The recorder and the rules on a real Kafka: members come and go, and the causes found are the scripted ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.history.record import Running, record
from tests.history.scenarios.clients import SETTLED_BY_THE_BROKER, Flavour
from tests.history.scenarios.operator_client import Operator
from tests.history.scenarios.plays import Play, life
from tests.history.verdicts import history_of, verdicts
from tests.support.peers import KafkaBroker

pytestmark = pytest.mark.slow

FLAVOURS = [Flavour("java", "consumer"), Flavour("confluent", "cooperative")]
UNHURRIED = {"session.timeout.ms": "60000", "max.poll.interval.ms": "120000"}
"""Long enough that no member expires on a busy machine."""


def settings(played: Play) -> dict[str, str]:
    by_the_broker = SETTLED_BY_THE_BROKER if played.flavour.next_generation else ()
    return {name: value for name, value in UNHURRIED.items() if name not in by_the_broker}


def test_members_that_join_and_leave_are_reported(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Members of both protocols, at the same time."""
    with Operator(kafka_broker.bootstrap) as operator:
        where = Running(
            "kafka", kafka_broker.bootstrap, operator, kafka_broker.folder / "data", lambda: [kafka_broker.log], {}
        )
        plays = [Play(f"live-{flavour}", life, flavour, ("kafka",)) for flavour in FLAVOURS]
        with ThreadPoolExecutor(len(plays)) as pool:
            recorded = list(pool.map(lambda each: record(each, where, tmp_path, settings(each)), plays))
    for kept in recorded:
        found = list(verdicts(kept, history_of(kept).rebalances))
        assert [each.cause for each in found if each.found] == ["started", "joined", "left"]
        assert [each for each in found if not each.right] == []
