"""Asking before what cannot be undone.

A command asks where a person can answer: standard input is a terminal. A script's is not, and there the command goes
on, as Kafka's own tools do. `--yes` asks nothing anywhere.
"""

from __future__ import annotations

import argparse
import sys

from muster.errors import MusterError


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option that answers beforehand."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask; without a terminal nothing is asked")


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Return if it is to be done. The question goes to standard error, so that output stays what was asked for.

    Raises:
        MusterError: the person did not say yes.
    """
    if arguments.yes or sys.stdin is None or not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)  # the input ended on the question's line
    if answer.strip().lower() not in ("y", "yes"):
        raise MusterError("nothing was changed: the answer was not yes")


def some(names: list[str], most: int = 5) -> str:
    """Names for a question, not all of a hundred."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
