"""What is requested from brokers for a query's progress: the age of records, and the group."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from muster.model import TopicPartition
from muster.spark.progress.group_watch import GroupWatch
from tests.support.faces import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_age_of_what_is_not_read_and_the_members_of_the_group(cluster, queries):
    topic = cluster.written(20, partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    query = queries(topic, maxOffsetsPerTrigger=8)
    until(lambda: query.running is not None, query.trigger)
    query.finish()
    until(lambda: query.running is not None, query.trigger)
    behind = query.member.unread()
    assert {partition: tuple(claim) for partition, claim in behind.items()} == {zero: (4, 10), one: (4, 10)}
    watch = GroupWatch(query.options.fetch_settings(), cluster.group)
    watch.notice(behind)
    until(lambda: "members" in watch.seen(0), lambda: time.sleep(0.05))
    # Record 4 of partition 0 is the ninth, with a time of 9 s; record 4 of partition 1 has 10 s.
    found = watch.seen(60_000)
    assert found.pop("groupState") in ("Stable", "PreparingRebalance", "CompletingRebalance")
    assert found == {"lagSeconds": {zero: 51.0, one: 50.0}, "maxLagSeconds": 51.0, "members": 1}
    standing = query.member.group_progress()
    assert standing.pop("generation") >= 1
    assert standing == {"group": cluster.group, "rebalances": 0, "committedBatch": 1}


def test_the_doctor_knows_a_query_that_was_started_again(cluster, queries):
    topic = cluster.topic(2)
    for start in (0, 20):
        cluster.produce(topic, 20, partitions=2, start=start)
        query = queries(topic)
        until(lambda: len(query.sink()) == start + 20, query.run)  # noqa: B023 - called here
        name = query.member._claims.name
        query.stop()
    words = ["doctor", "--group", cluster.group, "--engine", "small", "--json", "--bootstrap", cluster.bootstrap]
    done = subprocess.run([sys.executable, "-m", "muster", *words], capture_output=True, text=True, check=False)
    reported = [line for row in json.loads(done.stdout)["rebalances"] for line in row["evidence"] if "Spark" in line]
    on = "it continued as another member: it was restarted, or had been removed from the group in between."
    assert reported == [
        f"Spark query {name} left as a member after finishing batch 1; {on}",
        f"Spark query {name} left as a member after finishing batch 2; it did not commit again soon.",
    ]
