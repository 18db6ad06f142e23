"""The command `muster`: finds the sub-command and runs it.

A sub-command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`. Only the one that runs is
imported, to keep startup fast. An error is one sentence on standard error, with exit code 1; a wrong
command line exits with 2, Ctrl-C with 130, and SIGTERM during `consume` with 143.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NamedTuple

from muster.errors import MusterError
from muster.version import __version__


class Command(NamedTuple):
    """A sub-command: the module that holds it and its line in the help."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "serve": Command("muster.cli.servers.serve", "run a broker"),
    "coordinator": Command(
        "muster.cli.servers.coordinator", "coordinate groups for an Apache Kafka cluster on ZooKeeper"
    ),
    "cluster": Command(
        "muster.cli.servers.cluster", "run ZooKeeper and several brokers on this machine, to try out a cluster"
    ),
    "test-broker": Command(
        "muster.cli.servers.for_tests", "run a broker for tests, with faults to inject and a clock to set"
    ),
    "topics": Command("muster.cli.administer.topics", "create, list, describe, alter and delete topics"),
    "groups": Command(
        "muster.cli.administer.groups", "list, describe and delete groups; manage their offsets and members"
    ),
    "configs": Command("muster.cli.administer.configs", "show and change settings of topics, brokers and groups"),
    "records": Command("muster.cli.administer.records", "delete the oldest records of partitions"),
    "transactions": Command(
        "muster.cli.administer.transactions", "list and describe transactions; find and abort those that hang"
    ),
    "log-dirs": Command("muster.cli.administer.log_dirs", "show how much disk space partitions use"),
    "health": Command("muster.cli.observe.health", "check a cluster's health, in one line"),
    "lag": Command("muster.cli.observe.lag", "show the lag of groups, or serve it to Prometheus"),
    "doctor": Command("muster.cli.observe.doctor", "explain why groups rebalanced, what that cost and what to change"),
    "produce": Command("muster.cli.stream.produce", "write lines from standard input to a topic"),
    "consume": Command("muster.cli.stream.consume", "read topics, standalone or as a member of a group"),
    "history": Command("muster.cli.observe.history", "write the history of groups to Parquet tables, with Spark"),
    "completion": Command("muster.cli.completion", "print a shell completion script"),
    "demo": Command("muster.cli.demo", "run the demo pipeline on real data and check its results"),
    "compare": Command("muster.cli.compare", "run the same workload under each scheme of group coordination"),
}

_PROG = "muster"
_DURATIONS = ("--by-duration", "--by-period")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.platform == "win32":
        print("muster runs on Linux and macOS. On Windows, use it inside WSL.", file=sys.stderr)
        return 1
    _escape_unencodable()
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except MusterError as error:
        print(f"muster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:  # holds the signal's number if it was not SIGINT
        return 128 + int((*interrupt.args, signal.SIGINT)[0])
    except BrokenPipeError:
        give_up_output()  # the reader has closed the output
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"muster: {where}{error.strerror or error}", file=sys.stderr)
        give_up_output()
        return 1


def _run(arguments: list[str]) -> int:
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser = _parser(name)
    parsed = parser.parse_args(_joined(arguments))
    if parsed.command is None:
        parser.print_help()
        return 2
    module = importlib.import_module(COMMANDS[parsed.command].module)
    if "command_config" in parsed:
        importlib.import_module("muster.cli.common").read_connection(parsed)
    return int(module.run(parsed))


def _joined(arguments: list[str]) -> list[str]:
    """Join a negative duration to its option with `=`: argparse would mistake `-PT1H` for an option."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] in _DURATIONS and word.upper().startswith("-P"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _escape_unencodable() -> None:
    """Escape what the output's encoding cannot express: names of groups may contain any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def give_up_output() -> None:
    """Drop unwritten output: at exit Python would try to write it again, and complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all commands."""
    return _parser(*COMMANDS)


def _parser(*names: str | None) -> argparse.ArgumentParser:
    """The parser of all commands; only the named ones get their arguments."""
    parser = argparse.ArgumentParser(prog=_PROG, description="Kafka consumer groups for Python and Spark.")
    parser.add_argument("--version", action="version", version=f"{_PROG} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(command, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if command in names:
            importlib.import_module(module).add_arguments(sub)
    return parser


if __name__ == "__main__":
    sys.exit(main())
