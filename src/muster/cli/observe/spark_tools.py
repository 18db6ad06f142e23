"""What commands need of Spark: nothing of it is imported before a command asks for it."""

from __future__ import annotations

import re
import socket
from typing import Any, Final

from muster.errors import ConfigError, MusterError

_MASTER = re.compile(r"local(\[[0-9*, ]+\])?|local-cluster\[[0-9, ]+\]|(spark|k8s)://.+|yarn")
_MASTER_TIMEOUT_S = 10.0

QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL"}
"""What fails is told in a sentence; Spark tells it in pages."""


def spark_tools() -> tuple[Any, Any, Any]:
    """muster.spark's history, what makes a session, and what makes sentences of errors.

    Raises:
        MusterError: Spark is not installed; the sentence says how to.
    """
    try:
        from muster.spark import history, session
        from muster.spark.history.sentences import hush, said
    except ModuleNotFoundError as error:
        raise MusterError(str(error)) from None

    def quiet(*given: Any, **settings: Any) -> Any:
        made = session(*given, **settings)
        hush(made)
        return made

    return history, quiet, said


def check_master(master: str, otherwise: str = "") -> None:
    """See that Spark could take a master: it says in pages of Java that it could not, for `spark://` after a minute.

    Raises:
        ConfigError: it could not; `otherwise` says what to do in place of a session of Spark Connect.
    """
    if master.startswith("sc://"):
        raise ConfigError(
            f"--master {master}: a client of Spark Connect cannot run this job; name the cluster itself "
            f"(spark://HOST:PORT){otherwise}"
        )
    if not _MASTER.fullmatch(master):
        raise ConfigError(
            f"--master is {master!r}; it should be such as local[*], spark://HOST:7077, yarn or k8s://URL"
        )
    if master.startswith("spark://"):
        _reach(master)


def _reach(master: str) -> None:
    """See that one of the masters that `spark://HOST:PORT,HOST:PORT` names is there."""
    problem = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_TIMEOUT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        else:
            return
    raise ConfigError(f"--master {master}: no Spark master can be reached there ({problem})")
