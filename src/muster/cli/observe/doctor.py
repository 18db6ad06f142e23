"""`muster doctor`: why groups rebalanced, what that cost and what to change, from records that the cluster keeps
anyway."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.cli.common import (
    DEFAULT_BOOTSTRAP,
    add_connection,
    add_timeout,
    check_groups,
    client_settings,
    print_json,
    reaching,
    spark_options,
)
from muster.cli.logs import set_up_log
from muster.cli.times import positive_ms
from muster.client.admin.admin import Admin
from muster.client.config import AdminConfig
from muster.errors import ConfigError, MusterError

if TYPE_CHECKING:
    from muster.history.doctor import HistoryEngine
    from muster.history.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster doctor`."""
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="only this group (repeatable)")
    parser.add_argument("--since", type=positive_ms, metavar="TIME", help="only the last TIME: 90s, 2h, 1d12h")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--html", metavar="FILE", help="write an HTML page to this file")
    parser.add_argument(
        "--from",
        dest="folders",
        action="append",
        default=[],
        metavar="FOLDER",
        help="read a broker's data directory, or copied segments of __consumer_offsets, instead of a cluster",
    )
    parser.add_argument(
        "--sample",
        type=positive_ms,
        metavar="TIME",
        help="watch the groups for this long instead of reading their history",
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "small", "spark"),
        default="auto",
        help="small: in this process; spark: for large topics; auto (the default): by the topic's size",
    )
    add_connection(parser)
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine the groups and print the report."""
    _check(arguments)
    if find_spec("pyarrow") is None:
        raise MusterError("muster doctor needs pyarrow: pip install 'muster-kafka[arrow]'")
    report = _examine(arguments)
    if arguments.json:
        from muster.history.show.json_report import as_json

        print_json(as_json(report))
    elif arguments.html:
        from muster.history.show.page import render

        _write(Path(arguments.html).resolve(), render(report))
        print(f"wrote {arguments.html}")
    else:
        from muster.cli.observe.doctor_tables import print_report

        print_report(report)
    return 0


def _write(path: Path, text: str) -> None:
    """Write a page atomically: an earlier one stays until the new one is complete. A pipe or device is written
    directly."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    part = _part_of(path)
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _check(arguments: argparse.Namespace) -> None:
    check_groups(arguments.group)
    if arguments.folders and arguments.sample is not None:
        raise ConfigError("doctor: --from and --sample cannot be combined: a folder cannot be watched")
    if arguments.folders and arguments.bootstrap != DEFAULT_BOOTSTRAP:
        raise ConfigError("doctor: --from and --bootstrap cannot be combined: read a folder or a cluster")
    if arguments.engine == "spark" and arguments.sample is not None:
        raise ConfigError("doctor: --sample and --engine spark cannot be combined: omit --engine")
    if arguments.engine == "spark" and len(arguments.folders) > 1:
        raise ConfigError("doctor: --engine spark reads only one folder: use --from once")
    if arguments.html:
        _check_page(Path(arguments.html))


def _check_page(path: Path) -> None:
    """Fail early, before reading everything, if the page cannot be written."""
    if not path.parent.is_dir():
        raise ConfigError(f"doctor: --html {path}: folder {path.parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"doctor: --html {path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        return
    part = _part_of(path.resolve())
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise ConfigError(f"doctor: --html {path}: cannot write to folder {part.parent}: {error.strerror}") from None


def _part_of(path: Path) -> Path:
    return path.with_name(f".muster-{os.getpid()}.part")


def _examine(arguments: argparse.Namespace) -> Report:
    from muster.history import doctor
    from muster.history.sources.live import ReaderConfig

    selection = doctor.Selection(frozenset(arguments.group), arguments.since)
    if arguments.folders:
        folders = [Path(folder) for folder in arguments.folders]
        only = arguments.folders[0] if len(folders) == 1 else None
        return doctor.read_folder(folders, selection, _engine(arguments, folder=only)).report()
    timeout_ms = arguments.timeout_ms
    # If a broker does not answer, this leaves time to ask another, or for its partitions to get another leader.
    settings = {"default.api.timeout.ms": timeout_ms, "request.timeout.ms": max(1, timeout_ms // 3)}
    settings |= client_settings(arguments, ReaderConfig)
    config = ReaderConfig.of(settings)
    engine = _engine(arguments, bootstrap=arguments.bootstrap, options=spark_options(arguments))
    set_up_log(arguments)
    with reaching(arguments.bootstrap), Admin(asdict(config.narrowed(AdminConfig))) as admin:
        return doctor.read_cluster(admin, config, selection, arguments.sample, _notify, engine).report()


def _engine(arguments: argparse.Namespace, **source: Any) -> HistoryEngine:
    from muster.cli.observe.doctor_engine import ChosenEngine

    return ChosenEngine(arguments.engine, _notify, **source)


def _notify(sentence: str) -> None:
    print(f"muster: {sentence}", file=sys.stderr, flush=True)
