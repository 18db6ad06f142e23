"""`muster history --follow` over groups that live, killed and stopped in every way: schedules from seeds.

`make test` runs a fixed one; `make soak SCHEDULES=12` draws that many. Run one again with `MUSTER_FIRST_SEED=17 make
soak SCHEDULES=1 ARGS="-k history_soak"`. The results are shown at the end of the run.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import pytest

from tests.support import scale
from tests.support.brokers import BrokerProcess
from tests.support.history_schedules import Schedule, Step, draw, judge, some
from tests.support.history_soak import carry_out
from tests.support.peers import KafkaBroker

pytestmark = [pytest.mark.slow(85), pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]

KILLED = Schedule(
    seed=-1,
    peer="muster",
    short=False,
    master="local[2]",
    groups=("range", "static"),
    ending="follow",
    beside="small",
    steps=(Step("kill", "batch", 0.1),),
)
SCHEDULES = [KILLED, *map(draw, scale.schedules(0))]

LOG_PARTITIONS = "5"


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory):
    """Apache Kafka that may be killed; started when it is first used."""
    with contextlib.ExitStack() as held:
        yield cache(lambda: held.enter_context(KafkaBroker(tmp_path_factory.mktemp("kafka"))))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"seed{schedule.seed}")
def test_the_job_writes_what_the_topic_says_and_each_row_once(
    schedule, own_kafka, tmp_path: Path, request, record_property
):
    with contextlib.ExitStack() as held:
        if schedule.peer == "muster":
            settings = {"offsets.topic.num.partitions": LOG_PARTITIONS}
            broker = held.enter_context(BrokerProcess(tmp_path / "data", settings))
        else:
            broker = own_kafka()
        facts, story = carry_out(schedule, tmp_path, broker, lambda: request.getfixturevalue("spark"))
    outcome = judge(facts)
    ends = ", ".join(end.how for end in facts.ends)
    kind = f"{schedule.peer}, {', '.join(schedule.groups)}: {ends}"
    record_property("soak", f"history, seed {schedule.seed} ({kind}): {outcome.records} records, {outcome.rows} rows")
    assert outcome.wrong == [], "\n".join([some(outcome.wrong), str(schedule), *story, *map(str, facts.ends)])
