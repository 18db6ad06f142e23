"""`muster coordinator`: coordinates groups for Apache Kafka's brokers on ZooKeeper, until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING

from muster.broker.config import SETTINGS, BrokerConfig, listener, load
from muster.cli.logs import set_up_server_log
from muster.cli.servers import serve
from muster.errors import ConfigError
from muster.version import __version__

if TYPE_CHECKING:
    from muster.broker.coordinator_process import CoordinatorServer
    from muster.broker.groups.events import EventFile

PORT = 9192
DRAFTS_PORT = 9193
"""Not 9092, which Kafka's broker uses, likely on the same machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster coordinator`."""
    parser.add_argument("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="the ZooKeeper of Kafka's brokers (required)")
    parser.add_argument(
        "--coordinator-id",
        type=int,
        metavar="N",
        help="ID of this coordinator, unique among coordinators and brokers (required)",
    )
    parser.add_argument(
        "--draft-listener",
        metavar="HOST:PORT",
        help=f"address for members, which speak the draft protocol (default 127.0.0.1:{DRAFTS_PORT})",
    )
    serve.add_listener(parser, PORT, "for admin clients")
    serve.add_sources(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the coordinator; returns 0 when a signal stops it, 1 when it cannot continue."""
    set_up_server_log(arguments)
    config = settings(arguments)
    metrics = serve.metrics_address(arguments, config)
    listener = serve.event_file(arguments.events) if arguments.events is not None else None
    serve.allow_many_files()
    return asyncio.run(_coordinate(config, listener, metrics))


def settings(arguments: argparse.Namespace) -> BrokerConfig:
    """The settings from the command line, the environment and the file."""
    for override in arguments.overrides:
        _check_meaning(override)
    config = load(arguments.config, os.environ, arguments.overrides)
    if not config.is_set("listeners"):
        config.set("listeners", listener("127.0.0.1", PORT))
    if not config.is_set("draft.listener"):
        host = arguments.host or config.listener[0]
        config.set("draft.listener", listener(host, DRAFTS_PORT))
    if arguments.coordinator_id is not None:
        config.set("node.id", arguments.coordinator_id, "--coordinator-id")
    if arguments.zookeeper is not None:
        config.set("zookeeper.connect", arguments.zookeeper, "--zookeeper")
    serve.take_listeners(config, arguments)
    if not config["zookeeper.connect"]:
        raise ConfigError("--zookeeper HOST:PORT[/CHROOT] is required: the ZooKeeper of Kafka's brokers")
    if not config.is_set("node.id"):
        raise ConfigError("--coordinator-id N is required: an ID that no other coordinator and no Kafka broker has")
    return config


def _check_meaning(override: str) -> None:
    from muster.broker.coordinator_process import SETTINGS as MEANINGFUL

    name = override.partition("=")[0].strip()
    if name in SETTINGS and name not in MEANINGFUL:
        raise ConfigError(f"-o {override}: {name} does not apply to a coordinator, which has groups but no topics")


async def _coordinate(config: BrokerConfig, events: EventFile | None, metrics: serve.MetricsAddress | None) -> int:
    session = serve.session(config, "a coordinator", create_chroot=False)
    from muster.broker.coordinator_process import CoordinatorServer, KafkaFollower

    coordinator = CoordinatorServer(config, KafkaFollower(config, session), events)
    return await serve.until_stopped(coordinator, ready_line, metrics)


def ready_line(coordinator: CoordinatorServer) -> str:
    """The line printed when members may join."""
    draft, kafka = coordinator.cluster.draft_node, coordinator.cluster.cluster_id
    assert draft is not None
    found = f"Kafka cluster {kafka}" if kafka else "no Kafka cluster yet"
    members = f"members on {draft.host}:{draft.port}"
    return f"muster {__version__} ready on {coordinator.bootstrap} (coordinator {draft.node_id}, {found}, {members})"
