"""`muster test-broker`: a broker for tests, with a control port for faults, groups and time."""

from __future__ import annotations

import argparse
import asyncio

from muster.broker.broker import Broker
from muster.broker.config import BrokerConfig
from muster.cli.servers import serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster test-broker`: those of `muster serve`, and of the control port."""
    serve.add_arguments(parser)
    parser.add_argument("--control-port", type=int, default=0, metavar="PORT", help="the control port (default: any)")
    parser.add_argument("--seed", type=int, default=0, help="of faults that strike with a probability (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Run the broker; returns the exit code."""
    serve.set_up_log(arguments)
    config = serve.settings(arguments)
    serve.allow_many_files()
    return asyncio.run(_run(config, arguments.control_port, arguments.seed))


async def _run(config: BrokerConfig, control_port: int, seed: int) -> int:
    from muster.testing.control import Control
    from muster.testing.control_port import ControlPort
    from muster.testing.disk import TroubledDisk

    disk = TroubledDisk()
    broker = Broker(config, disk, among=serve.cluster_of(config))
    control = Control(broker, disk, seed)
    port = ControlPort(control.ask, control_port)

    def ready(broker: Broker) -> str:
        control.attach()
        port.start()
        return f"{serve.ready_line(broker)}\ncontrol on 127.0.0.1:{port.port}, token {port.token}"

    return await serve.until_stopped(broker, ready)
