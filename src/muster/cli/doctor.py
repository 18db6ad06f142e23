"""`muster doctor`: why groups rebalanced, what that costs and what to change, from what the cluster keeps anyway."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.common import DEFAULT_BOOTSTRAP, add_connection, add_timeout, open_admin, print_json
from muster.client.config import addresses
from muster.errors import ConfigError, MusterError

if TYPE_CHECKING:
    from muster.history.report import Report

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d|w)")


def duration_ms(text: str) -> int:
    """`90s`, `2h`, `1d12h` in milliseconds, for argparse."""
    if not text or _LENGTH.sub("", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: write 90s, 15m, 2h or 1d12h")
    return int(sum(float(number) * _UNITS_MS[unit] for number, unit in _LENGTH.findall(text)))


def _positive_ms(text: str) -> int:
    found = duration_ms(text)
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster doctor`."""
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="only this group (repeatable)")
    parser.add_argument("--since", type=duration_ms, metavar="TIME", help="only what happened since: 90s, 2h, 1d12h")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--html", metavar="FILE", help="write one page of HTML")
    parser.add_argument(
        "--from",
        dest="folders",
        action="append",
        default=[],
        metavar="FOLDER",
        help="read a broker's data directory, or copied segments of __consumer_offsets, in place of a cluster",
    )
    parser.add_argument(
        "--sample", type=_positive_ms, metavar="TIME", help="watch the groups for so long; their history is not read"
    )
    parser.add_argument(
        "--engine", choices=("small", "spark"), default="small", help="small: in this process; spark: for large topics"
    )
    add_connection(parser)
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Look, and print what was found."""
    _check(arguments)
    if find_spec("pyarrow") is None:
        raise MusterError("the doctor needs pyarrow, which is not installed: pip install 'muster-kafka[arrow]'")
    report = _look(arguments)
    if arguments.since is not None:
        report = report.since(report.until_ms - arguments.since)
    if arguments.json:
        from muster.history.shown import as_json

        print_json(as_json(report))
    elif arguments.html:
        from muster.history.page import render

        Path(arguments.html).write_text(render(report), encoding="utf-8")
        print(f"wrote {arguments.html}")
    else:
        from muster.cli.doctor_tables import print_report

        print_report(report)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.folders and arguments.sample is not None:
        raise ConfigError("doctor: a folder cannot be watched: give --from or --sample")
    if arguments.folders and arguments.bootstrap != DEFAULT_BOOTSTRAP:
        raise ConfigError("doctor: give --from to read a folder or --bootstrap to read a cluster, not both")
    if arguments.engine == "spark" and arguments.sample is not None:
        raise ConfigError("doctor: groups are watched by the small engine: leave --engine out")
    if arguments.engine == "spark" and len(arguments.folders) > 1:
        raise ConfigError("doctor: Spark reads one folder")
    if arguments.html:
        folder = Path(arguments.html).parent
        if not folder.is_dir():
            raise ConfigError(f"doctor: --html {arguments.html}: there is no folder {folder}")


def _look(arguments: argparse.Namespace) -> Report:
    from muster.history import look

    groups = frozenset(arguments.group)
    if arguments.engine == "spark":
        return _by_spark(arguments, groups)
    if arguments.folders:
        return look.at_folder([Path(folder) for folder in arguments.folders], groups)
    bootstrap = addresses("bootstrap_servers", arguments.bootstrap)
    with open_admin(arguments) as admin:
        return look.at_cluster(admin, bootstrap, groups, arguments.sample, _tell)


def _tell(sentence: str) -> None:
    print(f"muster: {sentence}", file=sys.stderr, flush=True)


def _by_spark(arguments: argparse.Namespace, groups: frozenset[str]) -> Report:
    """The same tables, made by Spark: nothing of it is imported elsewhere."""
    from muster.cli.doctor_spark import report

    return report(arguments.bootstrap, arguments.folders[0] if arguments.folders else None, groups)
