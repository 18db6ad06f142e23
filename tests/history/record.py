"""Record what consumer groups leave in `__consumer_offsets` while scripted things happen to them.

    python -m tests.history.record [--cluster kafka|muster|cluster3] [--at-once N] [--out DIR] [--list] [NAME…]

plays the scenarios whose names match (`crash-*`), with real clients on a cluster of its own, and writes each to
tests/history/corpus/NAME.json.gz (on muster NAME.muster.json.gz). The file has the rows of the topic, the ends of the
consumed topics and their ids, the brokers' settings of groups, what was done when and the cause that this is (`truth`),
times in which nothing was to happen (`quiet`), what the brokers logged about the group at that time (`broker_log`), and
muster's own events of it (`events`).
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.history.scenarios import offset_plays as offset_plays  # its scripts are in PLAYS then
from tests.history.scenarios import other_plays as other_plays
from tests.history.scenarios import unseen_cluster_plays as unseen_cluster_plays
from tests.history.scenarios import unseen_deploy_plays as unseen_deploy_plays
from tests.history.scenarios import unseen_later_plays as unseen_later_plays
from tests.history.scenarios import unseen_plays as unseen_plays
from tests.history.scenarios.cluster_plays import Alone, Nodes
from tests.history.scenarios.operator_client import Operator
from tests.history.scenarios.plays import PLAYS, Play
from tests.history.scenarios.road import Road
from tests.history.scenarios.stage import Stage
from tests.history.scenarios.witnesses import as_json, events_of, rows_of, said_of
from tests.support.brokers import BrokerProcess
from tests.support.peers import KafkaBroker, KafkaCluster, free_ports

CORPUS = Path(__file__).parent / "corpus"

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
LOUD = ["-Dgroups.log=INFO"]
PREPARES = "reparing to rebalance"
REBALANCES = ("Stabilized group", "Bumped group epoch")
QUIET_KEYS = ("group", "at_ms", "until_ms", "about")


@dataclass
class Running:
    """A cluster, its data folder to read from, and what its brokers have logged."""

    kind: str
    bootstrap: str
    operator: Operator
    data: Path
    """One to read `__consumer_offsets` from; of several brokers that of the one that is never killed."""
    logs: Callable[[], list[str]]
    settings: dict[str, str]
    nodes: Nodes | Alone | None = None
    road: Road | None = None


def _two_listeners(port: int, controller: int, behind: int, road: int) -> dict[str, str]:
    """The broker's settings for a second listener, to which clients come by the road's port."""
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


def record(played: Play, where: Running, folder: Path, config: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Play a scenario, and what is to be kept of it. `config`: members' settings besides those of the script."""
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
        "settings": {name: value for name, value in where.settings.items() if name.startswith(("group.", "offsets."))},
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
    """Whether the coordinators logged a rebalance of the group, to its end, while this was done: one that stood still
    may begin one when it goes on, and then learn that it is none any more."""
    return any(
        line["group"] == told["group"]
        and told["at_ms"] <= line["at_ms"] <= told["until_ms"]
        and any(text in line["text"] for text in REBALANCES)
        for line in said
    )


def write(kept: dict[str, Any], folder: Path) -> Path:
    """Write a file of the corpus, always the same for the same content."""
    folder.mkdir(exist_ok=True)
    suffix = "" if kept["cluster"] != "muster" else ".muster"
    path = folder / f"{kept['scenario']}{suffix}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0))
    return path


def doubts(kept: dict[str, Any]) -> list[str]:
    """What the brokers' log, or their events, say of rebalances outside the scripted windows: the machine was too busy,
    or a script is not exact."""
    windows = [(told["at_ms"] - 50, told["until_ms"] + 50) for told in kept["truth"]]
    began = [(said["at_ms"], said["text"]) for said in kept["broker_log"] if PREPARES in said["text"]]
    starts = [told for told in kept.get("events", ()) if told["event"] == "RebalanceStarted"]
    began += [(told["at_ms"], f"{told['cause']}: {told['reason']}") for told in starts]
    return [f"{at_ms} {text}" for at_ms, text in began if not any(begin <= at_ms <= end for begin, end in windows)]


def main() -> int:
    """Play what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios, `crash-*` for several; all by default")
    parser.add_argument("--cluster", choices=("kafka", "muster", "cluster3"), default="kafka")
    parser.add_argument("--at-once", type=int, default=2, help="scenarios that are played at the same time")
    parser.add_argument("--out", type=Path, default=CORPUS, metavar="DIR", help="where the files go")
    parser.add_argument("--list", action="store_true", help="say what there is")
    asked = parser.parse_args()
    patterns = asked.names or ["*"]
    plays = [
        each
        for each in PLAYS
        if asked.cluster in each.clusters and any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns)
    ]
    if asked.list:
        print("\n".join(each.name for each in plays))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="scenes-"))
    failed: list[str] = []
    with running(asked.cluster, folder) as where:

        def one(each: Play) -> None:
            try:
                kept = record(each, where, folder)
            except Exception:
                failed.append(each.name)
                print(f"FAILED {each.name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                return
            path = write(kept, asked.out)
            told = f"{path.name}: {len(kept['records'])} records, {path.stat().st_size} bytes"
            print("\n  ".join([told, *doubts(kept)]), flush=True)

        ends_brokers = asked.cluster == "cluster3" or any(each.name.startswith("coordinator-") for each in plays)
        with ThreadPoolExecutor(1 if ends_brokers else asked.at_once) as pool:
            list(pool.map(one, plays))
    if not failed:
        shutil.rmtree(folder)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
