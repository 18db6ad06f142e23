"""`muster topics`, `groups`, `produce` and `consume` as users run them, on muster and on Apache Kafka."""

from __future__ import annotations

import array
import fcntl
import json
import signal
import subprocess
import sys
import termios
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faces import Cluster, read, rest, until, until_known
from tests.support.peers import free_ports, run_kafka_class

pytestmark = pytest.mark.slow

GROUP_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PATIENT = ("--timeout", "300000")
"""For the requests of Kafka's tool, which otherwise have five seconds."""


def command(*arguments: str, bootstrap: str) -> list[str]:
    return [sys.executable, "-m", "muster", *arguments, "--bootstrap", bootstrap]


def muster(*arguments: str, bootstrap: str, stdin: str = "", code: int = 0) -> str:
    """Standard output; a wrong exit code is reported with standard error."""
    found = subprocess.run(
        command(*arguments, bootstrap=bootstrap), input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == code, found.stderr
    assert "Traceback" not in found.stderr
    return found.stdout if code == 0 else found.stderr


def test_topics(cluster):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    at = {"bootstrap": cluster.bootstrap}
    created = muster("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=7", **at)
    assert created == f"Created topic {topic}.\n"
    until_known(cluster.bootstrap, topic, 2)
    assert "TOPIC_ALREADY_EXISTS" in muster("topics", "create", topic, code=1, **at)
    muster("topics", "create", topic, "--if-not-exists", **at)
    assert topic in muster("topics", "list", **at).splitlines()
    described = muster("topics", "describe", topic, **at).splitlines()
    assert described[0].startswith(f"Topic: {topic}\tTopicId: ")
    assert "retention.ms=7" in described[0]
    assert described[2] == f"\tTopic: {topic}\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1"
    found = json.loads(muster("topics", "describe", topic, "--json", **at))
    assert [part["partition"] for part in found[topic]["partitions"]] == [0, 1]
    other = f"{topic}-other"
    muster("topics", "create", other, **at)
    until_known(cluster.bootstrap, other, 1)
    reported = muster("topics", "delete", topic, "not-there", other, code=1, **at)
    assert reported == "muster: topic not-there does not exist. Nothing was deleted; --if-exists ignores it.\n"
    reported = muster("topics", "delete", topic, "__consumer_offsets", code=1, **at)
    assert "__consumer_offsets" in reported
    assert "Nothing was deleted" in reported
    assert {topic, other} <= set(muster("topics", "list", **at).splitlines())
    deleted = muster("topics", "delete", topic, other, "not-there", "--if-exists", **at)
    assert set(deleted.splitlines()) == {f"Deleted topic {topic}.", f"Deleted topic {other}."}
    until_known(cluster.bootstrap, topic, 0)
    assert muster("topics", "delete", topic, "--if-exists", **at) == ""


def test_what_goes_in_comes_out(cluster):
    topic = cluster.topic(2)
    at = {"bootstrap": cluster.bootstrap}
    muster("produce", topic, "--key-separator", ":", "-H", "from=test", "--partition", "1", stdin="a:1\nb:2\n", **at)
    line = {"key": None, "value": "three", "headers": {"h": "x"}, "partition": 1, "timestamp": 5}
    muster("produce", topic, "--json", "--compression", "zstd", stdin=json.dumps(line), **at)
    alone = ("consume", topic, "--from-beginning")
    shown = muster(*alone, "--max-messages", "3", "--format", r"%o %k=%s %h\n", **at)
    assert shown == "0 a=1 from=test\n1 b=2 from=test\n2 =three h=x\n"
    found = json.loads(
        muster("consume", topic, "--partition", "1", "--offset", "2", "--max-messages", "1", "--json", **at)
    )
    assert found == {"topic": topic, "offset": 2} | line | {"headers": [["h", "x"]]}
    assert muster(*alone, "--partition", "0", "--timeout-ms", "300", **at) == ""


def test_a_group_continues_where_it_was(cluster):
    topic = cluster.topic(1)
    at = {"bootstrap": cluster.bootstrap}
    muster("produce", topic, stdin="1\n2\n3\n", **at)
    member = ("consume", topic, "--group", cluster.group, "--from-beginning", "--max-messages")
    assert muster(*member, "2", **at) == "1\n2\n"
    assert muster(*member, "1", **at) == "3\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_group(cluster, number):
    topic = cluster.topic(1)
    at = {"bootstrap": cluster.bootstrap}
    muster("produce", topic, stdin="1\n", **at)
    arguments = command("consume", topic, "--group", cluster.group, "--from-beginning", **at)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert errors == ""
    found = json.loads(muster("groups", "describe", cluster.group, "--json", **at))[cluster.group]
    assert found["state"] == "Empty", "it has left, and not only expired"
    assert found["offsets"][0]["lag"] == 0, "and it has committed"


@pytest.mark.parametrize("options", ["", "--members", "--members --verbose", "--state", "--offsets --verbose"])
def test_groups_look_as_in_kafkas_own_tool(cluster, options):
    topics = [cluster.topic(3), cluster.topic(2)]
    for topic in topics:
        cluster.produce(topic, 6, partitions=2)
    at = {"bootstrap": cluster.bootstrap}
    quiet = {"enable_auto_commit": False, "partition_assignment_strategy": ("range",)}
    with (
        cluster.consumer("sync", client_id="one", **quiet) as one,
        cluster.consumer("sync", client_id="two", group_instance_id="static", **quiet) as two,
    ):
        for consumer in (one, two):
            consumer.subscribe(topics)

        def step():
            one.poll(50)
            two.poll(50)

        until(
            lambda: len(one.assignment()) + len(two.assignment()) == 5 and one.assignment() and two.assignment(), step
        )
        one.commit()
        tool = [*PATIENT, "--bootstrap-server", cluster.bootstrap, "--describe", "--group", cluster.group]
        # The members have to be polled while commands look at them.
        theirs = run_kafka_class(GROUP_TOOL, *tool, *options.split())
        assert theirs.returncode == 0, theirs.stderr
        ours = muster("groups", "describe", cluster.group, *options.split(), **at)
    # Kafka's tool shows members in arbitrary order.
    assert sorted(ours.splitlines()) == sorted(theirs.stdout.splitlines())


def test_lists_of_groups_look_as_in_kafkas_own_tool(cluster):
    topic = cluster.topic(1)
    at = {"bootstrap": cluster.bootstrap}
    muster("produce", topic, stdin="1\n", **at)
    muster("consume", topic, "--group", cluster.group, "--from-beginning", "--max-messages", "1", **at)
    for options in (["--state"], ["--type"], ["--type", "--state", "Empty"], []):
        theirs = run_kafka_class(GROUP_TOOL, *PATIENT, "--bootstrap-server", cluster.bootstrap, "--list", *options)
        ours = muster("groups", "list", *options, **at)
        mine = [line for line in ours.splitlines() if cluster.group in line or line.startswith("GROUP")]
        assert [line.split() for line in mine] == [
            line.split() for line in theirs.stdout.splitlines() if cluster.group in line or line.startswith("GROUP")
        ]
    listed = json.loads(muster("groups", "list", "--json", **at))
    assert cluster.group in {found["group_id"] for found in listed}
    assert muster("groups", "delete", cluster.group, **at) == f"Deleted group {cluster.group}.\n"
    assert "GROUP_ID_NOT_FOUND" in muster("groups", "describe", cluster.group, code=1, **at)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("consume", "not-there"), "topic not-there does not exist: create it with `muster topics create`"),
        (("consume", "t", "--group", "g", "--partition", "0"), "cannot be combined with --group"),
        (("consume", "t", "--group", ""), "group_id is empty"),
        (("consume", "t", "--max-messages", "-1"), "--max-messages -1: must be at least 0"),
        (("consume", "t", "--timeout-ms", "-1"), "--timeout-ms -1: must be at least 0"),
        (("groups", "describe"), "name the groups, or use --all"),
        (("topics", "create", "t", "--config", "retention"), "expected KEY=VALUE"),
        (("topics", "delete", "t", "__consumer_offsets"), "__consumer_offsets is an internal topic"),
        (("topics", "list", "-o", "request.timeout=1"), "did you mean request_timeout_ms"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(shared_muster, arguments, sentence):
    assert sentence in muster(*arguments, bootstrap=shared_muster.bootstrap, code=1)


def test_an_unreachable_broker_is_reported_with_its_address():
    (port,) = free_ports(1)
    at = {"bootstrap": f"127.0.0.1:{port}"}
    with ThreadPoolExecutor() as at_once:  # each takes all of its time
        listing = [
            at_once.submit(muster, *arguments, "--timeout-ms", "10000", code=1, **at)
            for arguments in (("topics", "list"), ("groups", "list"))
        ]
        writing = at_once.submit(muster, "produce", "t", "-o", "max.block.ms=10000", stdin="x\n", code=1, **at)
    for reported in listing:
        assert f"no connection to 127.0.0.1:{port}: refused; is a broker listening there?" in reported.result()
        assert "choose another cluster with --bootstrap" in reported.result()
    assert f"no connection to 127.0.0.1:{port}: refused" in writing.result()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that is always full")
def test_a_full_disk_behind_standard_output_is_reported_in_a_sentence(shared_muster):
    with Path("/dev/full").open("w") as full:
        arguments = command("topics", "list", "--json", bootstrap=shared_muster.bootstrap)
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (1, "muster: No space left on device\n")


def test_a_closed_pipe_ends_it_quietly(shared_muster):
    cluster = Cluster(shared_muster.bootstrap)
    topic = cluster.written(5000, partitions=1)
    arguments = command("consume", topic, "--from-beginning", bootstrap=cluster.bootstrap)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.wait(300)


def test_a_closed_pipe_ends_it_on_a_quiet_topic(shared_muster):
    cluster = Cluster(shared_muster.bootstrap)
    topic = cluster.written(3, partitions=1)
    arguments = command("consume", topic, "--from-beginning", "--group", cluster.group, bootstrap=cluster.bootstrap)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
        process.stdout.close()  # and nothing more is ever written to the topic
        assert process.wait(300) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("ending", ["its reader goes", "a signal"])
def test_a_group_commits_what_has_been_written(shared_muster, ending):
    """A pipe cannot hold everything that was polled."""
    cluster = Cluster(shared_muster.bootstrap)
    topic = cluster.written(30_000, partitions=1)
    arguments = command("consume", topic, "--group", cluster.group, "--from-beginning", bootstrap=cluster.bootstrap)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        fd = process.stdout.fileno()
        room = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        until(lambda: waiting_in(fd) > room // 2, rest)
        if ending == "a signal":
            process.send_signal(signal.SIGINT)
            written = process.stdout.read().count(b"\n")
            assert written < 30_000
        else:
            process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(300)
    found = json.loads(muster("groups", "describe", cluster.group, "--json", bootstrap=cluster.bootstrap))
    [committed] = [offset["current_offset"] for offset in found[cluster.group]["offsets"]]
    if ending == "a signal":
        assert committed == written
    else:
        assert room // 2 // len("30000\n") <= committed < 30_000


def waiting_in(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_members_are_polled_by_others_too(cluster):
    """A consumer with another face in the same group as `muster consume`."""
    topic = cluster.topic(2)
    at = {"bootstrap": cluster.bootstrap}
    cluster.produce(topic, 10, partitions=2)
    with cluster.consumer("sync") as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        arguments = command("consume", topic, "--group", cluster.group, **at)
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            until(lambda: len(consumer.assignment()) == 1, lambda: consumer.poll(50))
            process.send_signal(signal.SIGINT)
            until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(50))
            process.wait(300)
