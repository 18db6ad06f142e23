"""Record what consumer groups leave in `__consumer_offsets` while scripted things happen to them.

    python -m tests.history.record [--cluster kafka|muster|cluster3] [--at-once N] [--out DIR] [--list] [NAME…]
    python -m tests.history.record --stories N --seed S [--kafka 3.9.1] [--at-once N] [--out DIR]
    python -m tests.history.record --incidents [--cluster cluster3] [--at-once N] [--out DIR] [NAME…]

plays the scenarios whose names match (`crash-*`), with real clients on a cluster of its own, and writes each to
tests/history/corpus/NAME.json.gz (on muster NAME.muster.json.gz). The file has the rows of the topic, the ends of the
consumed topics and their ids, the brokers' settings of groups, what was done, when, and as which cause (`truth`), times
in which no rebalance was expected (`quiet`), what the brokers logged about the group at that time (`broker_log`), and
muster's own events about it (`events`).

The second form plays the stories of the seeds S to S+N-1 (tests/history/stories), on Kafka 4.2 or on an older release,
and writes them to tests/history/corpus/stories; the third plays the hand-written ones (stories/incidents.py), on three
brokers those in which coordinators move. A story has what was done (`acts`), but no causes. It ends where the group
first rebalanced while nothing was done, because the machine was too busy.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gzip
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from muster.clock import wall_clock_ms
from tests.history.scenarios import offset_plays as offset_plays  # imported so that its scripts are in PLAYS
from tests.history.scenarios import other_plays as other_plays
from tests.history.scenarios import unseen_cluster_plays as unseen_cluster_plays
from tests.history.scenarios import unseen_deploy_plays as unseen_deploy_plays
from tests.history.scenarios import unseen_later_plays as unseen_later_plays
from tests.history.scenarios import unseen_plays as unseen_plays
from tests.history.scenarios.cluster_plays import Alone, Nodes
from tests.history.scenarios.operator_client import Operator, OperatorError
from tests.history.scenarios.plays import PLAYS, Play
from tests.history.scenarios.road import Road
from tests.history.scenarios.stage import Stage, StageError
from tests.history.scenarios.witnesses import as_json, events_of, group_of, rows_of, said_of
from tests.history.stories.draw import ALONE, THEMES, Story, draw
from tests.history.stories.incidents import CONNECT, COORDINATORS, INCIDENTS
from tests.history.stories.play import Player
from tests.history.stories.witness import doubts as doubts_of_story
from tests.history.stories.witness import undoubted
from tests.support.brokers import BrokerProcess
from tests.support.old_kafka import LastZooKeeperKafkaBroker
from tests.support.peers import KAFKA_VERSION, KafkaBroker, KafkaCluster, free_ports
from tests.support.zookeepers import ZooKeeperServer

CORPUS = Path(__file__).parent / "corpus"
STORIES = CORPUS / "stories"

TIMES = {
    "group.initial.rebalance.delay.ms": "2000",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
}
OF_KAFKA = {
    **TIMES,
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "5000",
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "false",
}
OF_STORIES = {
    **OF_KAFKA,
    "group.consumer.session.timeout.ms": "20000",
    "group.consumer.min.session.timeout.ms": "10000",
    "offsets.retention.minutes": "10080",
}
LOUD = ["-Dgroups.log=INFO"]
FEWEST_ACTS = 4
"""A story that ended earlier, because the machine was too busy, is not kept."""
PREPARES = "reparing to rebalance"
REBALANCES = ("Stabilized group", "Bumped group epoch")
QUIET_KEYS = ("group", "at_ms", "until_ms", "about")


@dataclass
class Running:
    """A cluster, the data folder to read from, and its brokers' logs."""

    kind: str
    bootstrap: str
    operator: Operator
    data: Path
    """The folder to read `__consumer_offsets` from; if there are several brokers, that of the one that is never
    killed."""
    logs: Callable[[], list[str]]
    settings: dict[str, str]
    nodes: Nodes | Alone | Restarted | None = None
    road: Road | None = None


def _two_listeners(port: int, controller: int, behind: int, road: int) -> dict[str, str]:
    """The broker's settings for a second listener, to which clients connect through the road's port."""
    own = f"PLAINTEXT://127.0.0.1:{port}"
    return {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{own},ROAD://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"{own},ROAD://127.0.0.1:{road}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,ROAD:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[Running]:
    """Start a cluster of this kind, and an operator for it."""
    if kind == "kafka":
        port, controller, behind, road_port = free_ports(4)
        settings = {**OF_KAFKA, **_two_listeners(port, controller, behind, road_port)}
        with (
            KafkaBroker(folder / "kafka", settings, port, java_options=LOUD) as broker,
            Road(road_port, behind) as road,
            Operator(broker.bootstrap) as operator,
        ):
            data = broker.folder / "data"
            yield Running(kind, broker.bootstrap, operator, data, lambda: [broker.log], OF_KAFKA, road=road)
    elif kind == "cluster3":
        cluster = KafkaCluster(folder / "kafka", 3, OF_KAFKA, java_options=LOUD)
        with cluster, Operator(cluster.bootstrap) as operator:
            nodes = Nodes(cluster, operator, int(TIMES["offsets.topic.num.partitions"]))
            yield Running(
                kind, cluster.bootstrap, operator, cluster.node(1).folder / "data", nodes.logs, OF_KAFKA, nodes
            )
    else:
        settings = {**TIMES, "auto.create.topics.enable": "false"}
        with BrokerProcess(folder / "muster", settings) as process, Operator(process.bootstrap) as operator:
            yield Running(kind, process.bootstrap, operator, process.folder, list, TIMES, Alone(process))


@dataclass
class Restarted:
    """The only broker; it can be killed and started again, which begins a new log."""

    broker: KafkaBroker | LastZooKeeperKafkaBroker
    earlier_logs: list[str] = field(default_factory=list)

    def kill(self, _: int) -> None:
        """SIGKILL it."""
        self.earlier_logs.append(self.broker.log)
        self.broker.kill()

    def restart(self, _: int) -> None:
        """Start it again."""
        self.broker.start()

    def logs(self) -> list[str]:
        """Everything that it has logged."""
        return [*self.earlier_logs, self.broker.log]


@contextlib.contextmanager
def running_three_for_stories(folder: Path) -> Iterator[Running]:
    """Start three brokers whose coordinators move in a story."""
    cluster = KafkaCluster(folder / "kafka", 3, OF_STORIES, java_options=LOUD)
    with cluster, Operator(cluster.bootstrap) as operator:
        nodes = Nodes(cluster, operator, int(TIMES["offsets.topic.num.partitions"]))
        data = cluster.node(1).folder / "data"
        yield Running(KAFKA_VERSION, cluster.bootstrap, operator, data, nodes.logs, OF_STORIES, nodes)


@contextlib.contextmanager
def running_for_stories(version: str, folder: Path) -> Iterator[Running]:
    """Start one broker of this release, without a road."""
    with contextlib.ExitStack() as held:
        broker: KafkaBroker | LastZooKeeperKafkaBroker
        if version == KAFKA_VERSION:
            broker = held.enter_context(KafkaBroker(folder / "kafka", OF_STORIES, java_options=LOUD))
        else:
            zookeeper = held.enter_context(ZooKeeperServer(folder / "zookeeper"))
            broker = LastZooKeeperKafkaBroker(
                folder / "kafka", zookeeper.chroot(), settings=OF_STORIES, version=version
            )
            held.enter_context(broker)
        operator = held.enter_context(Operator(broker.bootstrap))
        alone = Restarted(broker)
        yield Running(version, broker.bootstrap, operator, broker.folder / "data", alone.logs, OF_STORIES, nodes=alone)


def record_story(story: Story, where: Running, folder: Path) -> dict[str, Any]:
    """Play a story; returns what is kept of it."""
    stage = Stage(story.name, where.bootstrap, where.operator, folder, where.nodes)
    player = Player(stage, story)
    try:
        try:
            player.play()
        except (StageError, OperatorError) as error:  # usually the machine is too busy: what was played so far counts
            print(f"{story.name} ends early: {str(error)[:300]}", file=sys.stderr, flush=True)
        until_ms = wall_clock_ms()
        topics = stage.ends()
    finally:
        stage.close()
    prefix = f"{story.name}."
    group = f"{prefix}{'s' if story.theme == 'sink' else 'g'}"
    rows = [row for row in rows_of(where.data, prefix) if row[2] <= until_ms and group_of(row[4]) == group]
    played = {
        "story": story.name,
        "seed": story.seed,
        "theme": story.theme,
        "kafka": where.kind,
        "traffic": story.traffic,
        "commit": story.commit,
        "config": story.config,
        "cast": player.cast,
        "acts": player.acts,
        "settings": _told_to_rules(where.settings),
        "topics": topics,
        "topic_ids": stage.topic_ids,
        "records": [as_json(row) for row in rows],
        "broker_log": [line for line in said_of(where.logs(), prefix) if line["group"] == group],
    }
    kept = undoubted(played)
    if len(kept["acts"]) < FEWEST_ACTS:
        raise StageError(f"only {len(kept['acts'])} acts of {story.name} are certain")
    return kept


def _told_to_rules(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name.startswith(("group.", "offsets."))}


def record(played: Play, where: Running, folder: Path, config: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Play a scenario; returns what is kept of it. `config`: settings of the members in addition to those of the
    script."""
    stage = Stage(played.name, where.bootstrap, where.operator, folder, where.nodes)
    stage.config.update(config or {})
    stage.road = where.road
    try:
        played.script(stage, played.flavour)
        topics = stage.ends()
    finally:
        stage.close()
    prefix = f"{played.name}."
    said = said_of(where.logs(), prefix)
    truth = [told for told in stage.truth if not told.pop("if_logged", False) or _rebalanced(said, told)]
    calm = [told for told in stage.truth if told not in truth]
    kept = {
        "scenario": played.name,
        "cluster": where.kind,
        "about": (played.script.__doc__ or "").strip(),
        "settings": _told_to_rules(where.settings),
        "topics": topics,
        "topic_ids": stage.topic_ids,
        "records": [as_json(row) for row in rows_of(where.data, prefix)],
        "truth": truth,
        "quiet": [*stage.calm, *({key: told[key] for key in QUIET_KEYS} for told in calm)],
        "broker_log": said,
    }
    if where.kind == "muster":
        kept["events"] = events_of(where.data, prefix)
    return kept


def _rebalanced(said: list[dict[str, Any]], told: Mapping[str, Any]) -> bool:
    """Whether the coordinators logged a complete rebalance of the group during this time: a frozen one may begin a
    rebalance when it resumes, and then learn that it is no longer the coordinator."""
    return any(
        line["group"] == told["group"]
        and told["at_ms"] <= line["at_ms"] <= told["until_ms"]
        and any(text in line["text"] for text in REBALANCES)
        for line in said
    )


def write(kept: dict[str, Any], folder: Path) -> Path:
    """Write a file of the corpus, always the same for the same content."""
    folder.mkdir(exist_ok=True, parents=True)
    suffix = "" if kept.get("cluster") != "muster" else ".muster"
    path = folder / f"{kept.get('scenario', kept.get('story'))}{suffix}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0))
    return path


def doubts(kept: dict[str, Any]) -> list[str]:
    """Rebalances outside the scripted windows, from the brokers' log or events: the machine was too busy, or a script
    is not exact."""
    windows = [(told["at_ms"] - 50, told["until_ms"] + 50) for told in kept["truth"]]
    began = [(said["at_ms"], said["text"]) for said in kept["broker_log"] if PREPARES in said["text"]]
    starts = [told for told in kept.get("events", ()) if told["event"] == "RebalanceStarted"]
    began += [(told["at_ms"], f"{told['cause']}: {told['reason']}") for told in starts]
    return [f"{at_ms} {text}" for at_ms, text in began if not any(begin <= at_ms <= end for begin, end in windows)]


Made: TypeAlias = dict[str, Any]


def _recorded(
    names: Sequence[str], one: Callable[[int], Made], told: Callable[[Made], list[str]], at_once: int, out: Path
) -> list[str]:
    """Record all of these, some at a time. Returns the names of those that failed."""
    failed: list[str] = []

    def attempt(at: int) -> None:
        try:
            kept = one(at)
        except Exception:
            failed.append(names[at])
            print(f"FAILED {names[at]}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            return
        said = told(kept)
        if said and "story" in kept:
            failed.append(names[at])
            print("\n  ".join([f"NOT KEPT {names[at]}", *said]), file=sys.stderr, flush=True)
            return
        path = write(kept, out)
        about = f"{path.name}: {len(kept['records'])} records, {path.stat().st_size} bytes"
        print("\n  ".join([about, *said]), flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(attempt, range(len(names))))
    return failed


def main() -> int:
    """Play what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="names of scenarios or stories, such as `crash-*`; all by default"
    )
    parser.add_argument("--cluster", choices=("kafka", "muster", "cluster3"), default="kafka")
    parser.add_argument("--at-once", type=int, default=2, help="scenarios that are played at the same time")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder for the files")
    parser.add_argument("--list", action="store_true", help="list the names")
    parser.add_argument("--stories", type=int, default=0, metavar="N", help="play this many stories")
    parser.add_argument("--incidents", action="store_true", help="play the hand-written stories")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the first story's seed")
    parser.add_argument(
        "--kafka", default=KAFKA_VERSION, metavar="VERSION", help="the release that stories are played on"
    )
    parser.add_argument(
        "--theme", default="", choices=sorted({**THEMES, **ALONE}), help="instead of the one that each seed draws"
    )
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="scenes-"))
    failed = _stories(asked, folder) if asked.stories or asked.incidents else _scenarios(asked, folder)
    if not failed:
        shutil.rmtree(folder)
    return len(failed)


def _stories(asked: argparse.Namespace, folder: Path) -> list[str]:
    seeds = range(asked.seed, asked.seed + asked.stories)
    patterns = asked.names or ["*"]
    drawn = [draw(seed, older=asked.kafka != KAFKA_VERSION, theme=asked.theme) for seed in seeds]
    if asked.incidents:
        drawn = list(COORDINATORS if asked.cluster == "cluster3" else (*INCIDENTS, *CONNECT))
    stories = [each for each in drawn if any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns)]
    names = [story.name for story in stories]
    if asked.list:
        print("\n".join(names))
        return []
    three = asked.incidents and asked.cluster == "cluster3"
    with running_three_for_stories(folder) if three else running_for_stories(asked.kafka, folder) as where:
        return _recorded(
            names,
            lambda at: record_story(stories[at], where, folder),
            doubts_of_story,
            1 if three else asked.at_once,
            asked.out or STORIES,
        )


def _scenarios(asked: argparse.Namespace, folder: Path) -> list[str]:
    patterns = asked.names or ["*"]
    plays = [
        each
        for each in PLAYS
        if asked.cluster in each.clusters and any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns)
    ]
    names = [each.name for each in plays]
    if asked.list:
        print("\n".join(names))
        return []
    ends_brokers = asked.cluster == "cluster3" or any(name.startswith("coordinator-") for name in names)
    at_once = 1 if ends_brokers else asked.at_once
    with running(asked.cluster, folder) as where:
        return _recorded(names, lambda at: record(plays[at], where, folder), doubts, at_once, asked.out or CORPUS)


if __name__ == "__main__":
    sys.exit(main())
