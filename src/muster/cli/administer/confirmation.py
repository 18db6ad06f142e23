"""Asks for confirmation before a change that cannot be undone.

A command asks only if a person can answer, that is, if standard input is a terminal. In a script it proceeds without
asking, as Kafka's own tools do. With `--yes` it never asks.
"""

from __future__ import annotations

import argparse
import sys

from muster.errors import MusterError


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option that answers in advance."""
    parser.add_argument(
        "--yes", "-y", action="store_true", help="do not ask for confirmation (never asked without a terminal)"
    )


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Return if the answer is yes. The question goes to standard error, to keep standard output clean.

    Raises:
        MusterError: the answer was not yes.
    """
    if arguments.yes or sys.stdin is None or not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)  # the input ended without a line break
    if answer.strip().lower() not in ("y", "yes"):
        raise MusterError("nothing was changed: the answer was not yes")


def some(names: list[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
