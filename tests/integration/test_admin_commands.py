"""An admin's everyday commands compared with Kafka's own tools, and on muster: the same offsets, settings and files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main as command
from muster.client.admin.admin import Admin
from muster.clock import wall_clock_ms
from muster.model import TopicPartition
from tests.support.faces import Cluster, until, until_known
from tests.support.peers import run_kafka_class

pytestmark = pytest.mark.slow

GROUP_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
HOUR_MS = 3_600_000


on_kafka = pytest.mark.parametrize("cluster", ["kafka"], indirect=True)


class Commands:
    """`muster` on a cluster. Most commands run in this process, which avoids starting another one."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output, or standard error if the expected exit code is not 0."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = command.main([*words, "--bootstrap", self.bootstrap])
        assert ended == code, err.getvalue()
        return out.getvalue() if code == 0 else err.getvalue()

    def run(self, *words: str, code: int = 0, stdin: int = subprocess.DEVNULL, text: str | None = None) -> str:
        """The same in a separate process: for commands that handle signals, or read standard input."""
        whole = [sys.executable, "-m", "muster", *words, "--bootstrap", self.bootstrap]
        with subprocess.Popen(
            whole,
            stdin=stdin if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, err = process.communicate(text, timeout=300)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out if code == 0 else err

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def muster(cluster: Cluster) -> Commands:
    return Commands(cluster.bootstrap)


def plan(text: str) -> set[tuple[str, ...]]:
    """The lines of an exported plan, in any order."""
    return {tuple(row) for row in csv.reader(text.splitlines()) if row}


def prepared(cluster: Cluster, muster: Commands, now_ms: int) -> str:
    """A topic of three partitions whose records are an hour apart, the youngest an hour old: 0 to 19 in the first, 8 of
    which are deleted; 0 to 4 in the second; none in the third. The group is at 10 in the first, and after the end in
    the second."""
    topic = cluster.topic(3)
    lines = [{"value": "x", "partition": 0, "timestamp": now_ms - (20 - n) * HOUR_MS} for n in range(20)]
    lines += [{"value": "x", "partition": 1, "timestamp": now_ms - (5 - n) * HOUR_MS} for n in range(5)]
    muster.run("produce", topic, "--json", text="".join(json.dumps(line) + "\n" for line in lines))
    muster("records", "delete", f"{topic}:0", "--before", "8")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_consumer_group_offsets(cluster.group, {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 9})
    return topic


@on_kafka
def test_offsets_are_reset_to_where_kafkas_tool_resets_them(cluster, muster, tmp_path):
    now_ms = wall_clock_ms()
    topic = prepared(cluster, muster, now_ms)
    exported = tmp_path / "plan.csv"
    exported.write_text(f"{topic},0,3\n{topic},1,99\n{topic},2,0\n")
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000+02:00", time.gmtime((now_ms - 2.5 * HOUR_MS) / 1_000))
    every, committed = ["--topic", topic], ["--all-topics"]
    forms = [
        ["--to-earliest", *every],
        ["--to-latest", "--topic", f"{topic}:0,2"],
        ["--to-current", *every],
        ["--to-offset", "9", *every],
        ["--shift-by", "-1", *committed],
        ["--to-datetime", at, *every],
        ["--by-duration", "PT2H30M", *every],
        ["--from-file", str(exported)],
    ]

    def kafkas(form: list[str]) -> set[tuple[str, ...]]:
        words = ["--bootstrap-server", cluster.bootstrap, "--group", cluster.group, "--reset-offsets", *form]
        done = run_kafka_class(GROUP_TOOL, *words, "--export", "--dry-run", "--timeout", "300000")
        return plan("".join(line for line in done.stdout.splitlines(keepends=True) if line.startswith(topic)))

    with ThreadPoolExecutor(2) as threads:
        expected = list(threads.map(kafkas, forms))
    assert all(expected)
    found = [plan(muster("groups", "reset-offsets", cluster.group, *form, "--export")) for form in forms]
    assert found == expected
    assert found[0] == {(topic, "0", "8"), (topic, "1", "0"), (topic, "2", "0")}


def test_a_plan_is_made_looked_at_and_carried_out(cluster, muster, tmp_path):
    now_ms = wall_clock_ms()
    topic, group = prepared(cluster, muster, now_ms), cluster.group

    def committed() -> dict[int, int]:
        rows = muster.json("groups", "describe", group)[group]["offsets"]
        return {row["partition"]: row["current_offset"] for row in rows}

    shown = muster("groups", "reset-offsets", group, "--topic", topic, "--by-duration", "3h30m")
    assert shown.splitlines()[1].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert [line.split()[2:] for line in shown.splitlines()[2:]] == [["0", "17"], ["1", "2"], ["2", "0"]]
    assert committed() == {0: 10, 1: 9}, "it was only shown"
    backup = tmp_path / "backup.csv"
    backup.write_text(muster("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export"))
    done = muster.json("groups", "reset-offsets", group, "--topic", f"{topic}:1,2", "--to-earliest", "--execute")
    assert [(line["partition"], line["current_offset"], line["new_offset"]) for line in done] == [
        (1, 9, 0),
        (2, None, 0),
    ]
    assert committed() == {0: 10, 1: 0, 2: 0}
    other = f"{group}-other"
    both = muster("groups", "reset-offsets", group, other, "--topic", f"{topic}:0", "--to-latest", "--export")
    assert plan(both) == {(group, topic, "0", "20"), (other, topic, "0", "20")}
    muster("groups", "reset-offsets", group, "--from-file", str(backup), "--execute")
    assert committed() == {0: 10, 1: 5, 2: 0}, "9 was behind the end"
    muster("groups", "delete-offsets", group, "--topic", f"{topic}:0", "--topic", f"{topic}:2")
    assert committed() == {1: 5}


def test_offsets_that_cannot_be_reset(cluster: Cluster, muster: Commands) -> None:
    topic = cluster.topic(2)
    with cluster.consumer("sync") as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
        words = ["groups", "reset-offsets", cluster.group, f"{cluster.group}-new", "--topic", topic, "--to-latest"]
        reported = muster(*words, "--execute", code=1)
        assert reported == (
            f"muster: group {cluster.group} is Stable: its offsets can be reset only after all members have left."
            " Nothing was changed.\n"
        )
        reported = muster("groups", "delete-offsets", cluster.group, "--topic", f"{topic}:0", code=1)
        assert reported.count("\n") == 1
    assert f"{cluster.group}-new" not in muster("groups", "list")

    def refused(*words: str) -> str:
        return muster("groups", "reset-offsets", cluster.group, *words, "--execute", code=1)

    assert refused("--topic", topic, "--topic", "not-there", "--to-latest") == (
        "muster: topic not-there: UNKNOWN_TOPIC_OR_PARTITION. Nothing was changed.\n"
    )
    assert refused("--topic", f"{topic}:0,2", "--to-latest") == (
        f"muster: partition {topic}-2 does not exist: the topic has 2 partitions. Nothing was changed.\n"
    )
    other = cluster.topic(1)
    assert refused("--topic", other, "--shift-by", "1") == (
        f"muster: group {cluster.group}: {other}-0 has no committed offset to shift. Nothing was changed.\n"
    )


def test_records_are_deleted_by_a_file_or_not_at_all(cluster, muster, tmp_path):
    topic = cluster.written(10, partitions=2)
    wanted = [{"topic": topic, "partition": 0, "offset": 2}, {"topic": topic, "partition": 1, "offset": 6}]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    reported = muster("records", "delete", "--from-file", str(file), code=1)
    assert reported == f"muster: {topic}-1 ends at 5, before offset 6. Nothing was deleted.\n"
    assert muster.run("consume", topic, "--from-beginning", "--until-end").count("\n") == 10
    wanted[1]["offset"] = -1
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    reported = muster("records", "delete", "--offset-json-file", str(file))
    assert reported == f"partition: {topic}-0\tlow_watermark: 2\npartition: {topic}-1\tlow_watermark: 5\n"
    found = muster.json("records", "delete", topic, "--before", "4")
    assert found == [
        {"topic": topic, "partition": 0, "low_watermark": 4},
        {"topic": topic, "partition": 1, "low_watermark": 5},
    ]
    assert muster("records", "delete", topic, "not-there", "--all", code=1).endswith("Nothing was deleted.\n")


def test_reading_alone_commits_to_no_group(cluster, muster, tmp_path):
    """A group.id in the settings file belongs to the program that the file was written for."""
    topic = cluster.written(3, partitions=1)
    file = tmp_path / "client.properties"
    file.write_text(f"group.id={cluster.group}\n")
    reported = muster.run("consume", topic, "--from-beginning", "--until-end", "--command-config", str(file))
    assert reported.count("\n") == 3
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.list_consumer_group_offsets(cluster.group) == {}


@pytest.mark.parametrize("words", ["groups describe", "lag --group"])
def test_an_output_that_is_closed_is_skipped(shared_muster, words: str):
    """As a shell's `>&-` leaves it: the caller may only want the exit code."""
    with Admin(bootstrap_servers=shared_muster.bootstrap) as admin:
        group = f"closed-{uuid.uuid4()}"
        topic = Cluster(shared_muster.bootstrap).topic(1)
        admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 0})
    with contextlib.redirect_stdout(None):
        assert command.main([*words.split(), group, "--bootstrap", shared_muster.bootstrap]) == 0


def test_topics_are_given_partitions_all_or_none(cluster, muster):
    own = muster("topics", "alter", "__consumer_offsets", "--partitions", "99", code=1)
    assert (
        own == "muster: __consumer_offsets is an internal topic: with more partitions, brokers would look for its data "
        "in the wrong ones.\n"
    )
    assert muster.json("topics", "alter", "not-there", "--partitions", "2", "--if-exists") == {}
    one, two = cluster.topic(1), cluster.topic(3)
    reported = muster("topics", "alter", one, two, "--partitions", "2", code=1)
    assert reported.endswith("muster: no topic was changed\n")
    assert f"topic {two}: INVALID_PARTITIONS" in reported
    until_known(cluster.bootstrap, one, 1)
    assert muster("topics", "alter", one, "not-there", "--partitions", "2", "--if-exists") == (
        f"Topic {one} has 2 partitions.\n"
    )
    until_known(cluster.bootstrap, one, 2)
    assert muster.json("topics", "alter", one, "--partitions", "4") == {one: None}


def test_members_are_removed(cluster, muster):
    topic = cluster.topic(2)
    with cluster.consumer("sync", group_instance_id="one") as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
        reported = muster("groups", "remove-members", cluster.group, "--instance", "one", "--member", "two", code=1)
        assert reported.startswith(f"muster: group {cluster.group}: member two: UNKNOWN_MEMBER_ID")

        def members() -> list[Any]:
            described: list[Any] = muster.json("groups", "describe", cluster.group)[cluster.group]["members"]
            return described

        until(lambda: bool(members()), lambda: consumer.poll(50))
        found = muster.json("groups", "remove-members", cluster.group, "--all", "--reason", "moved")
        assert found == [{"member_id": "", "group_instance_id": "one", "error": None}]


def test_log_directories(cluster, muster):
    topic = cluster.written(10, partitions=2)
    [broker] = muster.json("log-dirs", "describe", "--topic", topic)["brokers"]
    assert [part["partition"] for part in broker["logDirs"][0]["partitions"]] == [f"{topic}-0", f"{topic}-1"]
    assert all(part["size"] > 0 for part in broker["logDirs"][0]["partitions"])
    lines = muster("log-dirs", "describe", "--broker", str(broker["broker"]), "--topic", topic).splitlines()
    assert [line.split("\t")[2] for line in lines[1:]] == [f"{topic}-0", f"{topic}-1"]
    assert "no broker has partitions of not-there" in muster("log-dirs", "describe", "--topic", "not-there", code=1)
    assert "broker 99: BROKER_NOT_AVAILABLE" in muster("log-dirs", "describe", "--broker", "99", code=1)


def test_leaders_and_replicas(cluster, muster):
    topic = cluster.topic(2)
    assert muster("topics", "elect-leaders", topic) == f"No election needed: {topic}-0, {topic}-1.\n"
    assert muster("topics", "elect-leaders", "--yes", "--unclean", f"{topic}:1") == f"No election needed: {topic}-1.\n"
    assert muster("topics", "elect-leaders") == "No partition needs an election.\n"
    assert muster.json("topics", "elect-leaders", f"{topic}:0")[f"{topic}-0"]["error"] == "ELECTION_NOT_NEEDED"
    reported = muster("topics", "elect-leaders", f"{topic}:9", code=1)
    assert reported == f"muster: partition {topic}-9: UNKNOWN_TOPIC_OR_PARTITION: No such partition as {topic}-9\n"
    assert muster("topics", "reassign", topic, "--replicas", "1") == (
        f"Started the reassignment of {topic}-0.\nStarted the reassignment of {topic}-1.\n"
    )
    reported = muster("topics", "reassign", f"{topic}:0", "--replicas", "1,9", code=1)
    assert f"muster: partition {topic}-0: INVALID_REPLICA_ASSIGNMENT: The manual partition assignment" in reported
    reported = muster("topics", "reassign", f"{topic}:1", "--cancel", code=1)
    assert reported.startswith(f"muster: partition {topic}-1: NO_REASSIGNMENT_IN_PROGRESS")
    for wrong in ("one", "1,", "9" * 5_000):
        assert "write broker IDs as 1,2,3" in muster("topics", "reassign", topic, "--replicas", wrong, code=1)
    assert muster("topics", "reassign", "not-there", "--cancel", code=1) == (
        "muster: topic not-there: UNKNOWN_TOPIC_OR_PARTITION\n"
    )
    assert muster("topics", "reassignments", topic) == "No partition reassignments found.\n"
    assert muster.json("topics", "reassignments", topic) == {}


def test_health(cluster, muster):
    cluster.topic(2)
    assert muster("health").startswith("healthy: 1 broker, ")
    found = muster.json("health")
    assert (found["healthy"], found["leaderless"], found["under_replicated"]) == (True, [], [])


@on_kafka
def test_settings_as_kafkas_tool_shows_them(cluster, muster):
    topic, other = cluster.topic(1), cluster.topic(1)
    reported = muster("configs", "alter", "topics", topic, "not-there", "--set", "segment.ms=99999", code=1)
    assert reported.endswith("muster: nothing was changed\n")
    muster(
        "configs", "alter", "topics", topic, other, "--set", "segment.ms=99999", "--append", "cleanup.policy=compact"
    )
    muster("configs", "alter", "topics", topic, "--delete", "segment.ms", "--dry-run")
    muster("configs", "alter", "topics", topic, "--delete", "retention.ms")
    words = ["--bootstrap-server", cluster.bootstrap, "--entity-type", "topics", "--entity-name", topic, "--describe"]

    def own() -> dict[str, str]:
        return {
            name: entry["value"] for name, entry in muster.json("configs", "describe", "topics", topic)[topic].items()
        }

    until(lambda: set(own()) == {"segment.ms", "cleanup.policy"}, lambda: None)
    reported = run_kafka_class("kafka.admin.ConfigCommand", *words).stdout.splitlines()[1:]
    assert dict(line.split()[0].split("=") for line in reported) == own()
    muster("configs", "alter", "groups", cluster.group, "--set", "consumer.heartbeat.interval.ms=6000")
    until(lambda: f"group {cluster.group}\n" in muster("configs", "list", "groups"), lambda: None)
    assert muster("configs", "describe", "groups", cluster.group).splitlines()[1:] == [
        "  consumer.heartbeat.interval.ms=6000"
    ]
    assert "INVALID_CONFIG" in muster("configs", "alter", "topics", topic, "--set", "segment.ms=x", code=1)
    reported = muster("configs", "describe", "brokers", "99", code=1)
    assert reported == "muster: broker 99 is not in the cluster now; its brokers are 1\n"


@on_kafka
def test_records_by_time_and_the_last_as_kcat_prints_them(cluster, muster, kcat):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    muster("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=-1")
    until_known(cluster.bootstrap, topic, 2)
    lines = [
        {
            "key": None if n % 3 else f"k{n}",
            "value": f"v{n}" if n % 4 else None,
            "partition": n % 2,
            "timestamp": 5_000 * n,
        }
        | {"headers": [["h", "x"], ["n", None]] if n % 2 else []}
        for n in range(1, 13)
    ]
    muster.run("produce", topic, "--json", text="".join(json.dumps(line) + "\n" for line in lines))
    text = r"%t|%p|%o|%k|%K|%s|%S|%h|%T|%%|\x41\t\66\0101\q\\\n"
    for ours, begin in (
        (["--last", "2"], ["-o", "-2"]),
        (["--from-time", "1970-01-01T00:00:30.001"], ["-o", "s@30001"]),
        (["--offset=-99"], ["-o", "-99"]),
    ):
        found = muster.run("consume", topic, *ours, "--until-end", "--format", text, "--null", "NONE")
        theirs = [kcat, "-C", "-b", cluster.bootstrap, "-t", topic, *begin, "-e", "-q", "-f", text, "-Z"]
        done = subprocess.run(theirs, capture_output=True, text=True, check=True)
        assert sorted(found.splitlines()) == sorted(
            done.stdout.replace("NULL|", "NONE|").replace("=NONE|", "=NULL|").splitlines()
        )
        assert found
    assert muster.run("consume", topic, "--since", "2d", "--until-end") == ""


def test_an_offset_that_a_partition_has_not_is_the_nearest(cluster: Cluster, muster: Commands, kcat: str) -> None:
    """kcat goes to the end, and shows none of the existing records."""
    topic = cluster.written(10, partitions=2)
    muster("records", "delete", f"{topic}:0", "--before", "3")

    def found(*words: str) -> tuple[list[str], str]:
        whole = [sys.executable, "-m", "muster", "consume", topic, *words, "--until-end", "--format", r"%p-%o\n"]
        done = subprocess.run([*whole, "--bootstrap", cluster.bootstrap], capture_output=True, text=True, check=True)
        return sorted(done.stdout.split()), done.stderr.removeprefix("muster: no offset ")

    both = [f"0-{at}" for at in range(3, 5)] + [f"1-{at}" for at in range(1, 5)]
    assert found("--offset", "1") == (both, f"1: {topic}-0 begins at 3; reading from there\n")
    assert found("--offset", "99") == ([], f"99: {topic}-0 ends at 5, {topic}-1 ends at 5; reading from there\n")
    assert found("--last", "9") == (sorted([*both, "1-0"]), "")
    words = [kcat, "-C", "-b", cluster.bootstrap, "-t", topic, "-p", "0", "-o", "1", "-e"]
    theirs = subprocess.run(words, capture_output=True, text=True, check=True)
    assert theirs.stdout == ""
    assert "END" in theirs.stderr


def test_a_person_is_asked(cluster: Cluster, muster: Commands) -> None:
    """A terminal in place of a script's input."""
    topic = cluster.topic(1)

    def typed(answer: str, code: int) -> str:
        keyboard, stdin = pty.openpty()
        try:
            os.write(keyboard, answer.encode())
            return muster.run("topics", "delete", topic, stdin=stdin, code=code)
        finally:
            os.close(stdin)
            os.close(keyboard)

    reported = typed("n\n", 1)
    assert (
        reported
        == f"Delete topic {topic} with all records? [y/N] muster: nothing was changed: the answer was not yes\n"
    )
    assert topic in muster("topics", "list").splitlines()
    assert typed("y\n", 0) == f"Deleted topic {topic}.\n"
    until_known(cluster.bootstrap, topic, 0)


def test_files_that_are_not_there(muster, tmp_path: Path):
    reported = muster("groups", "reset-offsets", "g", "--from-file", str(tmp_path / "none.csv"), code=1)
    assert reported == f"muster: cannot read {tmp_path}/none.csv: No such file or directory\n"
