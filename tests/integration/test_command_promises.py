"""What commands guarantee to scripts: the exit code when one of several things fails, and what `consume` commits."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from muster import Admin, Consumer, NewTopic, Producer
from muster.cli import main as command
from muster.client.core.admin.admin import ConfigResource, ConfigResourceType, TopicDescription
from muster.model import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.slow

RECORDS = 4


class Stage:
    """Create topics of two partitions with records in the first, and groups that have committed there."""

    def __init__(self, bootstrap: str, admin: Admin, ends: ExitStack) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.ends = ends
        self.base = self.topic()

    def name(self) -> str:
        return f"promise-{uuid.uuid4().hex[:8]}"

    def topic(self) -> str:
        topic = self.name()
        self.admin.create_topics([NewTopic(topic, 2)])
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%d" % number, partition=0)
        return topic

    def group(self) -> str:
        group = self.name()
        self.admin.alter_consumer_group_offsets(group, {TopicPartition(self.base, 0): 1})
        return group

    def joined(self, group: str) -> None:
        """Keep a member in the group until the test ends."""
        consumer = self.ends.enter_context(
            Consumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
        )
        consumer.subscribe([self.base])
        while not consumer.assignment():
            consumer.poll(100)

    def committed(self, group: str, topic: str | None = None) -> int | None:
        found = self.admin.list_consumer_group_offsets(group, raise_errors=False).get(
            TopicPartition(topic or self.base, 0)
        )
        return found.offset if isinstance(found, OffsetAndMetadata) else None

    def partitions(self, topic: str) -> int:
        found = self.admin.describe_topics([topic], raise_errors=False)[topic]
        return len(found.partitions) if isinstance(found, TopicDescription) else 0

    def has_group(self, group: str) -> bool:
        return group in {found.group_id for found in self.admin.list_consumer_groups()}

    def begin(self, topic: str) -> int:
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            return consumer.beginning_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]

    def retention(self, topic: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource]
        return found["retention.ms"].value

    def run(self, words: str) -> int:
        return command.main([*words.split(), "--bootstrap", self.bootstrap])


@pytest.fixture
def stage(shared_muster):
    with ExitStack() as ends, Admin(bootstrap_servers=shared_muster.bootstrap) as admin:
        yield Stage(shared_muster.bootstrap, admin, ends)


Done = Callable[[Stage, str], object]

SEVERAL: dict[str, tuple[str, Callable[[Stage], str], Callable[[Stage], str], Done | None, bool]] = {
    # command: its words, a valid thing, one that fails, whether the valid one is done, and done next to a failure
    "topics create": ("topics create {}", Stage.name, Stage.topic, lambda s, t: s.partitions(t) > 0, True),
    "topics describe": ("topics describe {}", Stage.topic, Stage.name, None, True),
    "topics alter": (
        "topics alter {} --partitions 3 --yes",
        Stage.topic,
        Stage.name,
        lambda s, t: s.partitions(t) == 3,
        False,
    ),
    "topics delete": ("topics delete {} --yes", Stage.topic, Stage.name, lambda s, t: s.partitions(t) == 0, False),
    "groups describe": ("groups describe {}", Stage.group, Stage.name, None, True),
    "groups delete": ("groups delete {} --yes", Stage.group, Stage.name, lambda s, g: not s.has_group(g), True),
    "configs describe": ("configs describe topics {}", Stage.topic, Stage.name, None, True),
    "configs alter": (
        "configs alter topics {} --set retention.ms=86400000 --yes",
        Stage.topic,
        Stage.name,
        lambda s, t: s.retention(t) == "86400000",
        False,
    ),
    "records delete": (
        "records delete {} --all --yes",
        Stage.topic,
        Stage.name,
        lambda s, t: s.begin(t) == RECORDS,
        False,
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("order", ["good", "good bad", "bad good", "bad"])
def test_one_failure_among_several_is_a_failure(
    stage: Stage, capsys: pytest.CaptureFixture[str], name: str, order: str
):
    words, make_good, make_bad, done, beside = SEVERAL[name]
    named = {"good": make_good(stage), "bad": make_bad(stage)}
    code = stage.run(words.format(" ".join(named[which] for which in order.split())))
    reported = capsys.readouterr()
    assert code == (1 if "bad" in order else 0), reported.err
    assert ("bad" not in order) or named["bad"] in reported.err
    if "good" in order:
        if done is None:
            assert named["good"] in reported.out
        else:
            assert bool(done(stage, named["good"])) == (beside or "bad" not in order)


@pytest.mark.parametrize("order", ["good", "good bad", "bad good", "bad"])
def test_a_group_without_lag_is_not_one_that_is_missing(stage: Stage, capsys: pytest.CaptureFixture[str], order: str):
    named = {"good": stage.group(), "bad": stage.name()}
    code = stage.run("lag " + " ".join(f"--group {named[which]}" for which in order.split()))
    reported = capsys.readouterr()
    assert code == (1 if "bad" in order else 0)
    assert ("good" in order) == (named["good"] in reported.out)
    assert ("bad" in order) == (named["bad"] in reported.err)


@pytest.mark.parametrize("words", ["reset-offsets {} --to-earliest --execute --yes", "delete-offsets {} --yes"])
@pytest.mark.parametrize("scope", ["{topic}:0", "{topic}:0 {topic}:7", "{topic}:7 {topic}:0", "{missing} {topic}:0"])
def test_offsets_of_all_partitions_or_none(stage: Stage, words: str, scope: str):
    group = stage.group()
    places = scope.format(topic=stage.base, missing=stage.name()).split()
    code = stage.run("groups " + words.format(group) + "".join(f" --topic {place}" for place in places))
    assert code == (0 if len(places) == 1 else 1)
    assert stage.committed(group) == (1 if code else None if words.startswith("delete") else 0)


def test_a_plan_names_its_partitions_whatever_the_scope(stage: Stage, tmp_path, capsys: pytest.CaptureFixture[str]):
    """Does what `kafka-consumer-groups` does."""
    group, other = stage.group(), stage.topic()
    plan = tmp_path / "plan.csv"
    plan.write_text(f'"{stage.base}",0,3\n"{other}",0,2\n')
    for scope in (f"--topic {other}", "--all-topics", ""):
        assert stage.run(f"groups reset-offsets {group} --from-file {plan} {scope} --execute --yes") == 0
        assert [stage.committed(group, topic) for topic in (stage.base, other)] == [3, 2]
        assert ("are ignored" in capsys.readouterr().err) == bool(scope)
    assert stage.run(f"groups reset-offsets {group} --by-duration -PT1H --topic {other} --execute --yes") == 0
    assert stage.committed(group, other) == RECORDS


# --- changes between the check and the operation ---------------------------------------------------------------------


def grow(stage: Stage, topic: str) -> None:
    stage.admin.create_partitions({topic: 5})


def gone(stage: Stage, topic: str) -> None:
    stage.admin.delete_topics([topic])


MEANWHILE: dict[str, tuple[str, str, Callable[[Stage], str], Callable[[Stage, str], None], Done]] = {
    # command: its words, the module that asks for confirmation, things, what happens to one, whether a thing is done
    "groups reset-offsets": (
        "groups reset-offsets {} --all-topics --to-offset 3 --execute",
        "group_offsets",
        Stage.group,
        Stage.joined,
        lambda stage, group: stage.committed(group) == 3,
    ),
    "groups delete": ("groups delete {}", "groups", Stage.group, Stage.joined, lambda s, group: not s.has_group(group)),
    "topics alter": ("topics alter {} --partitions 3", "topics", Stage.topic, grow, lambda s, t: s.partitions(t) == 3),
    "topics delete": ("topics delete {}", "topics", Stage.topic, gone, lambda s, topic: s.partitions(topic) == 0),
}


@pytest.mark.parametrize("name", MEANWHILE)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_is_refused_in_the_end_is_a_failure_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, at: int
):
    """While the command waits for confirmation, another admin or a member changes one of the three first."""
    words, module, make, happens, done = MEANWHILE[name]
    things = [make(stage) for _ in range(3)]
    monkeypatch.setattr(f"muster.cli.administer.{module}.confirm", lambda *_: happens(stage, things[at]))
    assert stage.run(words.format(" ".join(things))) == 1
    assert things[at] in capsys.readouterr().err
    assert all(done(stage, thing) for number, thing in enumerate(things) if number != at)


# --- what `muster consume` commits -----------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[list[str], signal.Signals | None, int, int]] = {
    # how it ends: arguments, the signal, the exit code, how many records are written
    "Ctrl-C": ([], signal.SIGINT, 130, RECORDS),
    "SIGTERM": ([], signal.SIGTERM, 143, RECORDS),
    "--max-messages": (["--max-messages", "3"], None, 0, 3),
    "--timeout-ms": (["--timeout-ms", "10000"], None, 0, RECORDS),
}

COMMITS: dict[str, tuple[list[str], bool]] = {
    "by default": ([], True),
    "auto commit is on": (["-o", "enable.auto.commit=true"], True),
    "auto commit is off": (["-o", "enable.auto.commit=false"], False),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("commits", COMMITS)
def test_reading_in_a_group_commits_what_is_written_and_only_if_auto_commit_is_on(
    stage: Stage, ending: str, commits: str
):
    (options, number, code, written), (settings, is_committed) = ENDINGS[ending], COMMITS[commits]
    group = stage.name()
    words = ["consume", stage.base, "--group", group, "--from-beginning", *options, *settings]
    whole: list[Any] = [sys.executable, "-m", "muster", *words, "--bootstrap", stage.bootstrap]
    with subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(written)] == [f"{at}\n" for at in range(written)]
        if number is not None:
            process.send_signal(number)
        assert process.stdout.read() == ""
        assert (process.wait(300), process.stderr.read()) == (code, "")
    assert stage.committed(group) == (written if is_committed else None)
