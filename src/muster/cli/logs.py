"""What commands log on standard error: a server's lines, and what clients report to the other commands."""

from __future__ import annotations

import argparse
import logging
import sys

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def add_log_level(parser: argparse.ArgumentParser, default: str) -> None:
    """The option for how much is logged on standard error."""
    parser.add_argument(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        default=default,
        help=f"log level, on standard error (default {default})",
    )


def set_up_log(arguments: argparse.Namespace) -> None:
    """Log reports of clients in the format of the commands' own messages."""
    logging.basicConfig(level=arguments.log_level, format="muster: %(message)s", stream=sys.stderr)


def set_up_server_log(arguments: argparse.Namespace) -> None:
    """Log on standard error, each line with its time and its level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logging.basicConfig(level=arguments.log_level, handlers=[handler])
    log_quickly()


def log_quickly() -> None:
    """Make logging look up only what `LOG_FORMAT` shows: finding a line's origin costs as much as writing the line."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


class LineFormatter(logging.Formatter):
    """Each message becomes one line of printable text, even if clients use names with other characters."""

    MOST = 2_000
    """Maximum characters of a message: IDs may be long."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (as logging names it)
        """The line of a record."""
        text = record.message
        if len(text) > self.MOST:
            text = f"{text[: self.MOST]}… ({len(text) - self.MOST} more characters)"
        if not text.isprintable():
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        record.message = text
        return super().formatMessage(record)
