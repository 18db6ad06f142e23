"""Scripts of groups that are not plain consumers: Kafka Streams with both of its protocols, a schema registry."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.history.scenarios.clients import MEMBERS, QUICK, Flavour
from tests.history.scenarios.operator_client import OperatorError
from tests.history.scenarios.plays import BOTH, play
from tests.history.scenarios.registry import RegistryNode
from tests.history.scenarios.stage import Group, Stage, until
from tests.support.peers import PEERS, fetched_jars, java_command

STREAMS_VERSION = "4.2.0"
_SETTINGS = ("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "metadata.max.age.ms")


@play([Flavour("java", "classic")], clusters=BOTH)
def streams_app(stage: Stage, flavour: Flavour) -> None:
    """Two instances of Kafka Streams with the classic protocol; the second is killed."""
    group = stage.group(flavour)
    group.protocol_type = "consumer"
    source, sink = stage.topic("t"), stage.topic("out", idle=True)
    with stage.happens(group, "started", "an instance starts"):
        first = _app(stage, group, "a1", source, sink)
        until(lambda: group.seen_members() == 1, "one instance is there")
        stage.go_on(4)
    with stage.happens(group, "joined", "a second instance starts"):
        second = _app(stage, group, "a2", source, sink)
        until(lambda: group.seen_members() == 2, "two instances are there")
        stage.go_on(4)
    stage.go_on(4)
    with stage.happens(group, "session_expired", "the second instance gets SIGKILL"):
        second.kill()
        until(lambda: group.seen_members() == 1, "one instance is left")
        stage.go_on(4)
    first.kill()


@play([Flavour("java", "streams")])
def streams_group(stage: Stage, flavour: Flavour) -> None:
    """Two instances of Kafka Streams with its own protocol (KIP-1071); the rules do not cover it, but its records are
    counted."""
    group = stage.group(flavour)
    group.protocol_type = "streams"
    source, sink = stage.topic("t"), stage.topic("out", idle=True)
    with stage.quiet(group, "two instances of a streams group come, and one is closed"):
        apps = [_app(stage, group, name, source, sink, "group.protocol=streams") for name in ("a1", "a2")]
        until(lambda: _streams_members(stage, group) == 2, "two instances are there")
        stage.go_on(8)
        assert apps[1].stdin is not None
        apps[1].stdin.close()
        apps[1].wait(120)
        stage.go_on(4)


def _streams_members(stage: Stage, group: Group) -> int:
    try:
        return int(stage.operator.ask("streams_members", group=group.name)["members"])
    except OperatorError:  # it does not exist yet
        return 0


def _app(stage: Stage, group: Group, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start an instance. Its program is compiled only when it is started, because nothing else needs its jars."""
    jars = f"{fetched_jars('streams', STREAMS_VERSION)}/*"
    source, sink, *more = arguments
    settings = {
        "application.id": group.name,
        "client.id": name,
        "bootstrap.servers": stage.bootstrap,
        "commit.interval.ms": QUICK["auto.commit.interval.ms"],
        "state.dir": str(stage.folder / f"{group.name}-{name}"),
        **({} if more else {f"consumer.{key}": QUICK[key] for key in _SETTINGS}),
    }
    options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", jars]
    program = str(Path(MEMBERS) / "streams" / "StreamsApp.java")
    given = [f"{key}={value}" for key, value in settings.items()]
    with (stage.folder / f"{group.name}-{name}.err").open("w") as errors:
        process = subprocess.Popen(
            [*java_command(options), program, source, sink, *given, *more],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
        )
    stage.processes.append(process)
    return process


@play([Flavour("muster", "sr")], clusters=BOTH)
def registry(stage: Stage, flavour: Flavour) -> None:
    """Three nodes of a schema registry, whose group has no topics; one is killed, one is stopped."""
    group = stage.group(flavour)
    group.protocol_type = "sr"
    with stage.happens(group, "started", "a node starts"):
        nodes = [RegistryNode(stage.bootstrap, group.name, "r1")]
        until(lambda: group.seen_members() == 1, "one node is there")
    for name in ("r2", "r3"):
        with stage.happens(group, "joined", f"{name} starts"):
            nodes.append(RegistryNode(stage.bootstrap, group.name, name))
            until(lambda: group.seen_members() == len(nodes), "it is there")
    stage.go_on(8)
    with stage.happens(group, "session_expired", "r3 gets SIGKILL", also=["left"]):
        nodes.pop().stop(leaves=False)
        until(lambda: group.seen_members() == 2, "two nodes are left")
    stage.go_on(8)
    with stage.happens(group, "left", "r2 is stopped", also=["session_expired"]):
        nodes.pop().stop(leaves=True)
        until(lambda: group.seen_members() == 1, "one node is left")
    nodes.pop().stop(leaves=False)
