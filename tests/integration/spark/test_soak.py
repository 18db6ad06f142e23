"""A streaming query that is killed in every way, while a producer writes and brokers go away: schedules from seeds.

`make test` runs a fixed one; `make soak SCHEDULES=50` draws that many. Run one again with `MUSTER_FIRST_SEED=17 make
soak SCHEDULES=1 ARGS="-k soak"`. The results are shown at the end of the run.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import pytest

from tests.support import scale
from tests.support.brokers import BrokerProcess
from tests.support.peers import KafkaCluster
from tests.support.schedules import Schedule, Step, draw, judge
from tests.support.spark_soak import Drivers, carry_out

pytestmark = [pytest.mark.slow(65), pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]

KILLED = Schedule(
    seed=-1,
    peer="kafka",
    mode="group",
    sink="batches",
    limits=(60, 400),
    before_s=0.2,
    behind_s=0.2,
    names_checkpoint=False,
    steps=(Step("kill_worker", 0.2), Step("kill_jvm", 0.3), Step("stop", 0.1)),
)
SCHEDULES = [KILLED, *map(draw, scale.schedules(0))]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    with Drivers(tmp_path_factory.mktemp("drivers")) as found:
        yield found


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory):
    """Three brokers of Apache Kafka that may be killed; started when they are first used."""
    with contextlib.ExitStack() as held:
        yield cache(lambda: held.enter_context(KafkaCluster(tmp_path_factory.mktemp("cluster"))))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"seed{schedule.seed}")
def test_nothing_is_lost_and_repeated_only_where_it_may_be(
    schedule, drivers, own_cluster, tmp_path: Path, request, record_property
):
    with contextlib.ExitStack() as held:
        if schedule.peer == "muster":
            brokers = held.enter_context(BrokerProcess(tmp_path / "data"))
        else:
            brokers = own_cluster() if schedule.peer == "cluster" else request.getfixturevalue("kafka_broker")
        facts, story = carry_out(schedule, tmp_path, brokers, drivers)
    outcome = judge(facts)
    kind = f"{schedule.peer}, {schedule.mode}, {schedule.sink}: {', '.join(step.do for step in schedule.steps)}"
    count = f"{outcome.records} records in {len(facts.plans)} batches"
    reported = f"{outcome.again} again to the sink, {outcome.shared} to two queries"
    record_property("soak", f"seed {schedule.seed} ({kind}): {count}, {reported}")
    assert outcome.wrong == [], "\n".join([str(schedule), *story, *map(str, facts.ends)])
