"""`muster cluster up`: ZooKeeper and several brokers on this machine, to try out a cluster, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from muster.broker.config import load
from muster.cli.common import pairs
from muster.cli.main import give_up_output
from muster.errors import ConfigError
from muster.local import jars
from muster.local.broker import LocalBroker
from muster.local.cluster import LocalCluster, check_kazoo
from muster.local.java import find_java
from muster.local.ports import LOOPBACK
from muster.local.server import LocalServer
from muster.metrics.exposition import check_installed

DEFAULT_PORT = 9092
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_SETTINGS = ("advertised.listeners", "listeners", "log.dirs", "node.id", "zookeeper.connect")
"""Settings that differ between the brokers of a cluster."""
_FETCHING = "downloading ZooKeeper (once)"
_LOOK_EVERY_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster cluster`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "start ZooKeeper and brokers on this machine, until Ctrl-C"
    up = actions.add_parser("up", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    up.add_argument("--brokers", type=int, default=3, metavar="N", help="number of brokers (default 3)")
    up.add_argument(
        "--zookeeper-servers",
        type=int,
        choices=(1, 3),
        default=1,
        help="number of ZooKeeper servers; 3 form an ensemble (default 1)",
    )
    up.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder for all data, which is kept (default: a temporary one)"
    )
    up.add_argument(
        "--port-base",
        type=int,
        default=DEFAULT_PORT,
        metavar="PORT",
        help=f"port of the first broker; the others and ZooKeeper take the next ones; 0 picks free ports (default "
        f"{DEFAULT_PORT})",
    )
    up.add_argument(
        "--metrics-port",
        type=int,
        default=0,
        metavar="PORT",
        help="serve metrics: the first broker on this port, the others on the next ones",
    )
    up.add_argument(
        "-o",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for every broker, by its Kafka name (repeatable)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the cluster; returns when a signal stops it (0), or when no broker or no ZooKeeper server is left (1)."""
    settings = _check(arguments)
    signals = StopSignals()
    with signals, _folder(arguments.data_dir) as folder:
        _find_zookeeper()
        cluster = LocalCluster(
            folder,
            arguments.brokers,
            arguments.zookeeper_servers,
            port_base=arguments.port_base,
            metrics_port_base=arguments.metrics_port,
            settings=settings,
            say=_say,
        )
        signals.on_second = cluster.kill
        with cluster:
            code = _run_until_stopped(cluster, kept=arguments.data_dir is not None)
        _say_last("stopped")
    return code


class StopSignals:
    """The first stop signal interrupts the work in progress. Further ones do not disturb the clean shutdown, except
    that `on_second` may shorten it."""

    def __init__(self) -> None:
        self.on_second: Callable[[], None] = lambda: None
        self._asked = False
        self._before = {number: signal.getsignal(number) for number in STOPPING}

    def __enter__(self) -> None:
        for number in STOPPING:
            if number is not signal.SIGHUP or self._before[number] is not signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            raise KeyboardInterrupt(number)
        self.on_second()


def _check(arguments: argparse.Namespace) -> dict[str, str]:
    """Check the arguments before anything is started; returns the settings for every broker."""
    if arguments.brokers < 1:
        raise ConfigError(f"--brokers {arguments.brokers}: must be at least 1")
    last = arguments.port_base + arguments.brokers + arguments.zookeeper_servers - 1
    if not 0 <= arguments.port_base <= last <= 65_535:
        raise ConfigError(f"--port-base {arguments.port_base}: ports must be 1 to 65535, and the last would be {last}")
    if arguments.metrics_port:
        if not 0 < arguments.metrics_port <= 65_536 - arguments.brokers:
            raise ConfigError(f"--metrics-port {arguments.metrics_port}: the brokers' ports must be 1 to 65535")
        check_installed()
    check_kazoo()
    settings = pairs(arguments.settings, "-o")
    for name in OWN_SETTINGS:
        if name in settings:
            raise ConfigError(f"-o {name}: cannot be set, since it differs for each broker")
    load(overrides=arguments.settings)
    return settings


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--data-dir {given}: cannot create or use this folder: {error.strerror}") from None
        yield given
    else:
        with tempfile.TemporaryDirectory(prefix="muster-cluster-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def _find_zookeeper() -> None:
    """Download ZooKeeper if needed, with an indeterminate progress bar: Maven does not say how much there is."""
    find_java("ZooKeeper")
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn(_FETCHING), BarColumn(), TextColumn("{task.completed} files, {task.fields[name]}"))
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("", total=None, name="")

    def downloaded(name: str) -> None:
        if name:
            progress.update(task, advance=1, name=name)
        elif console.is_terminal:
            progress.start()
        else:
            console.print(_FETCHING)

    try:
        jars.zookeeper_classpath(downloaded)
    finally:
        if progress.live.is_started:  # stopping one that has not started prints an empty line
            progress.stop()


def _print_addresses(cluster: LocalCluster, *, kept: bool) -> None:
    for server in (*cluster.zookeepers, *cluster.brokers.values()):
        _say(f"{server.name}: {server.address}, process {server.pid}, log {server.log_file}")
    first = cluster.brokers[1].address
    for broker in cluster.brokers.values():
        if broker.metrics_port is not None:
            _say(f"{broker.name}: metrics on http://{LOOPBACK}:{broker.metrics_port}/metrics")
    _say(f"bootstrap.servers={cluster.bootstrap}")
    _say(f"zookeeper.connect={cluster.zookeeper}")
    _say(f"try: muster topics create flights --partitions 6 --bootstrap {first}")
    _say(f"data in {cluster.folder}{'' if kept else ' (removed at the end)'}; Ctrl-C stops all")


def _run_until_stopped(cluster: LocalCluster, *, kept: bool) -> int:
    try:
        _print_addresses(cluster, kept=kept)
        _watch(cluster)
    except KeyboardInterrupt:
        _say_last("stopping: the brokers first, then ZooKeeper")
        return 0
    return 1


def _watch(cluster: LocalCluster) -> None:
    """Report each server that exits; returns when no broker or no ZooKeeper server is left."""
    ended: set[LocalServer] = set()
    while True:
        for server in cluster.servers:
            if server not in ended and server.ending is not None:
                ended.add(server)
                _say(_exit_message(server))
        for what, servers in (("broker", cluster.brokers.values()), ("ZooKeeper server", cluster.zookeepers)):
            if ended.issuperset(servers):
                _say(f"no {what} is left: stopping")
                return
        time.sleep(_LOOK_EVERY_S)


def _exit_message(server: LocalServer) -> str:
    text = f"{time.strftime('%H:%M:%S')} {server.name} ended with {server.ending}; its log is {server.log_file}"
    if isinstance(server, LocalBroker):
        text += f"; restart it with: muster {shlex.join(server.arguments())}"
    return text


def _say(line: str) -> None:
    print(line, flush=True)


def _say_last(line: str) -> None:
    """Print a line during the shutdown. It is dropped if the terminal has been closed."""
    try:
        _say(line)
    except OSError:
        give_up_output()
