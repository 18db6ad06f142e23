"""`muster serve`: runs a broker until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from muster.broker.broker import Broker
from muster.broker.config import FSYNC_POLICIES, BrokerConfig, listener, load, parse_listener
from muster.broker.group_server import GroupServer
from muster.broker.groups.events import EventFile
from muster.broker.operators.garbage import Garbage
from muster.cli.logs import add_log_level, set_up_server_log
from muster.errors import ConfigError
from muster.metrics.exposition import check_installed, check_port
from muster.version import __version__

if TYPE_CHECKING:
    from muster.broker.cluster.zookeeper_cluster import ZooKeeperCluster
    from muster.zookeeper.session.session import ZooKeeperSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster serve`."""
    add_listener(parser, 9092)
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder for the logs of topics and groups (default muster-data)"
    )
    parser.add_argument(
        "--fsync", choices=FSYNC_POLICIES, help="when records are synced to disk (default interval: within a second)"
    )
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="join the cluster of brokers on this ZooKeeper (default: standalone)",
    )
    parser.add_argument("--broker-id", type=int, metavar="N", help="this broker's ID in its cluster (default 1)")
    parser.add_argument(
        "--draft-listener", metavar="HOST:PORT", help="also listen for members that speak the draft protocol"
    )
    add_sources(parser)


def add_listener(parser: argparse.ArgumentParser, port: int, purpose: str = "") -> None:
    """The options for where to listen; `purpose` says what the port is for."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    where = f"port to listen on {purpose}".rstrip()
    parser.add_argument("--port", type=int, help=f"{where}; 0 picks a free one (default {port})")
    parser.add_argument("--advertised-host", metavar="HOST", help="host that clients connect to (default: --host)")


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The options for other settings, and for what is reported."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE.toml", help="TOML file of settings: quoted keys in the table [broker]"
    )
    parser.add_argument(
        "-o",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, by its Kafka name (repeatable)",
    )
    parser.add_argument("--events", type=Path, metavar="FILE", help="append group events to this file, as JSON lines")
    add_metrics_port(parser)
    add_log_level(parser, "INFO")


def add_metrics_port(parser: argparse.ArgumentParser) -> None:
    """The options for where metrics are served."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve /metrics for Prometheus, and /healthz; 0 picks a free port",
    )
    parser.add_argument("--metrics-host", metavar="HOST", help="address to serve metrics on (default: --host)")


class MetricsAddress(NamedTuple):
    """Where metrics are served."""

    host: str
    port: int


def metrics_address(arguments: argparse.Namespace, config: BrokerConfig) -> MetricsAddress | None:
    """Where metrics are served; None for nowhere.

    Raises:
        ConfigError: the port is out of range, or prometheus_client is not installed.
    """
    if arguments.metrics_port is None:
        if arguments.metrics_host is not None:
            raise ConfigError("--metrics-host needs --metrics-port")
        return None
    check_port(arguments.metrics_port)
    check_installed()
    return MetricsAddress(arguments.metrics_host or config.listener[0], arguments.metrics_port)


def run(arguments: argparse.Namespace) -> int:
    """Run the broker; returns 0 when a signal stops it, 1 when its disk fails."""
    set_up_server_log(arguments)
    config = settings(arguments)
    metrics = metrics_address(arguments, config)
    listener = event_file(arguments.events) if arguments.events is not None else None
    allow_many_files()
    return asyncio.run(serve(config, listener, metrics))


def event_file(path: Path) -> EventFile:
    """The file that group events are appended to."""
    try:
        return EventFile(path)
    except OSError as error:
        raise ConfigError(f"--events {path}: cannot write to this file: {error.strerror}") from None


def settings(arguments: argparse.Namespace) -> BrokerConfig:
    """The settings from the command line, the environment and the file."""
    config = load(arguments.config, os.environ, arguments.overrides)
    take_listeners(config, arguments)
    config.set("log.dirs", arguments.data_dir or config.text("log.dirs"))
    if arguments.broker_id is not None:
        config.set("node.id", arguments.broker_id, "--broker-id")
    if arguments.zookeeper is not None:
        config.set("zookeeper.connect", arguments.zookeeper, "--zookeeper")
    if arguments.fsync is not None:
        config.set("fsync", arguments.fsync)
    return config


def take_listeners(config: BrokerConfig, arguments: argparse.Namespace) -> None:
    """Apply the command line's addresses."""
    host, port = config.listener
    if arguments.port is not None and not 0 <= arguments.port <= 65_535:
        raise ConfigError(f"--port {arguments.port}: must be 0 to 65535")
    if arguments.host is not None or arguments.port is not None:
        port = port if arguments.port is None else arguments.port
        config.set("listeners", listener(arguments.host or host, port))
    if arguments.advertised_host is not None:
        _, advertised_port = parse_listener("advertised.listeners", str(config["advertised.listeners"] or "x:0"))
        config.set("advertised.listeners", listener(arguments.advertised_host, advertised_port))
    if arguments.draft_listener is not None:
        config.set("draft.listener", arguments.draft_listener, "--draft-listener")
    _ = config.advertised, config.draft_listener  # raises before the folder is touched


def allow_many_files() -> None:
    """Raise the limit on open files as far as the system allows: each connection and each segment takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cluster_of(config: BrokerConfig) -> ZooKeeperCluster | None:
    """The cluster that the broker joins; None for a standalone broker."""
    if not config["zookeeper.connect"]:
        return None
    found = session(config, "a cluster on ZooKeeper", create_chroot=True)
    from muster.broker.cluster.zookeeper_cluster import ZooKeeperCluster

    return ZooKeeperCluster(config, found)


def session(config: BrokerConfig, what: str, *, create_chroot: bool) -> ZooKeeperSession:
    """A session with the ZooKeeper of `zookeeper.connect`. If kazoo is missing, the error says that `what` needs it."""
    try:
        from muster.zookeeper.session.session import ZooKeeperSession
    except ModuleNotFoundError as error:
        if error.name != "kazoo":
            raise
        raise ConfigError(f"{what} needs kazoo: pip install 'muster-kafka[zookeeper]'") from None

    timeout_ms = config.integer("zookeeper.session.timeout.ms")
    return ZooKeeperSession(config.text("zookeeper.connect"), timeout_ms=timeout_ms, create_chroot=create_chroot)


async def serve(config: BrokerConfig, listener: EventFile | None = None, metrics: MetricsAddress | None = None) -> int:
    """Run a broker until SIGINT or SIGTERM, or until its disk fails; returns the exit code. `listener` receives group
    events.

    One line on standard output reports that it is ready.
    """
    return await until_stopped(Broker(config, on_event=listener, zookeeper=cluster_of(config)), ready_line, metrics)


S = TypeVar("S", bound=GroupServer)


async def until_stopped(shell: S, ready: Callable[[S], str], metrics: MetricsAddress | None = None) -> int:
    """Run a server until a signal stops it or it cannot continue; returns the exit code. `metrics` are served from
    before its start until after its end.
    """
    if metrics is None:
        return await _until_stopped(shell, lambda: ready(shell))
    from muster.broker.monitor import Monitor

    port = Monitor(shell, *metrics).port
    port.start()
    try:
        return await _until_stopped(shell, lambda: _with_metrics(ready(shell), port.address))
    finally:
        await asyncio.to_thread(port.stop)


def _with_metrics(line: str, address: str) -> str:
    return f"{line.removesuffix(')')}, metrics on {address})"


async def _until_stopped(shell: GroupServer, ready: Callable[[], str]) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    # Sent when a terminal closes, or to make a daemon reread its settings: neither is a reason to stop.
    loop.add_signal_handler(signal.SIGHUP, _hung_up)
    if not await _started(shell, stopped):
        return 0
    try:
        garbage = Garbage()
        garbage.take_over()
        shell.on_rest = garbage.collect_if_due
        print(ready(), flush=True)
        ends = [asyncio.ensure_future(event.wait()) for event in (stopped, *shell.ends)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        logging.getLogger("muster.broker").info("stopping")
        return 1 if any(event.is_set() for event in shell.ends) else 0
    finally:
        await shell.stop()


async def _started(shell: GroupServer, stopped: asyncio.Event) -> bool:
    """Start it; False if a signal came first. Starting may wait, for example for a session with the same ID to
    expire."""
    starting, stopping = asyncio.ensure_future(shell.start()), asyncio.ensure_future(stopped.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    logging.getLogger("muster.broker").info("stopping before startup completed")
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


def _hung_up() -> None:
    logging.getLogger("muster.broker").info("SIGHUP ignored: settings are read only at startup")


def ready_line(broker: Broker) -> str:
    """The line printed when clients may connect."""
    folder, draft = broker.config.data_dir, broker.cluster.draft_node
    drafts = f", drafts on {draft.host}:{draft.port}" if draft is not None else ""
    cluster_id = broker.cluster.cluster_id
    return f"muster {__version__} ready on {broker.bootstrap} (cluster {cluster_id}, data in {folder}{drafts})"
