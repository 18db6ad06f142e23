"""`muster test-broker`: a broker for tests, with a control port for faults, groups and time."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading

from muster.broker.broker import Broker
from muster.broker.config import BrokerConfig
from muster.cli.logs import set_up_server_log
from muster.cli.servers import serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster test-broker`: those of `muster serve`, and of the control port."""
    serve.add_arguments(parser)
    parser.add_argument(
        "--control-port", type=int, default=0, metavar="PORT", help="the control port (default: a free one)"
    )
    parser.add_argument(
        "--stop-at-eof",
        action="store_true",
        help="stop when standard input ends, so that the broker ends with the program that started it",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed for faults that have a probability (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Run the broker; returns the exit code."""
    set_up_server_log(arguments)
    config = serve.settings(arguments)
    serve.allow_many_files()
    return asyncio.run(_run(config, arguments.control_port, arguments.seed, stop_at_eof=arguments.stop_at_eof))


async def _run(config: BrokerConfig, control_port: int, seed: int, *, stop_at_eof: bool) -> int:
    from muster.testing.control import Control
    from muster.testing.control_port import ControlPort
    from muster.testing.disk import FaultyDisk

    disk = FaultyDisk()
    broker = Broker(config, disk, zookeeper=serve.cluster_of(config))
    control = Control(broker, disk, seed)
    port = ControlPort(control.ask, control_port)

    def ready(broker: Broker) -> str:
        control.attach()
        port.start()
        if stop_at_eof:
            threading.Thread(target=_stop_at_eof, name="muster-stdin", daemon=True).start()
        return f"{serve.ready_line(broker)}\ncontrol on 127.0.0.1:{port.port}, token {port.token}"

    return await serve.until_stopped(broker, ready)


def _stop_at_eof() -> None:
    """Read standard input to its end, then stop this process as a signal would."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
