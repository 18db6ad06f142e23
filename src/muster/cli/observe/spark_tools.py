"""What commands need from Spark, imported only when a command needs it."""

from __future__ import annotations

import re
import socket
from typing import Any, Final

from muster.errors import ConfigError, MusterError

_MASTER = re.compile(r"local(\[[0-9*, ]+\])?|local-cluster\[[0-9, ]+\]|(spark|k8s)://.+|yarn")
_MASTER_TIMEOUT_S = 10.0

QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL"}
"""A failure is reported in one sentence; Spark would log pages."""


def spark_tools() -> tuple[Any, Any, Any]:
    """The module muster.spark.history, a function that creates a session, and one that turns errors into sentences.

    Raises:
        MusterError: Spark is not installed; the message says how to install it.
    """
    try:
        from muster.spark import history, session
        from muster.spark.history.short_errors import hush, with_short_errors
    except ModuleNotFoundError as error:
        raise MusterError(str(error)) from None

    def quiet(*arguments: Any, **settings: Any) -> Any:
        made = session(*arguments, **settings)
        hush(made)
        return made

    return history, quiet, with_short_errors


def check_master(master: str, otherwise: str = "") -> None:
    """Check that Spark could use a master: Spark itself reports a bad one in pages of Java stack traces, and for
    `spark://` only after a minute.

    Raises:
        ConfigError: it could not; `otherwise` names an alternative to a Spark Connect session.
    """
    if master.startswith("sc://"):
        raise ConfigError(
            f"--master {master}: this job does not run over Spark Connect; name the cluster itself "
            f"(spark://HOST:PORT){otherwise}"
        )
    if not _MASTER.fullmatch(master):
        raise ConfigError(
            f"--master {master!r}: expected a master such as local[*], spark://HOST:7077, yarn or k8s://URL"
        )
    if master.startswith("spark://"):
        _reach(master)


def _reach(master: str) -> None:
    """Check that one of the masters in `spark://HOST:PORT,HOST:PORT` accepts connections."""
    problem = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_TIMEOUT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        else:
            return
    raise ConfigError(f"--master {master}: cannot connect to a Spark master there ({problem})")
