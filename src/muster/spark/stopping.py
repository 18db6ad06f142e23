"""Stopping a query while Python writes a batch.

Spark distinguishes a stop from an error by the text of what foreachBatch raises, with a regular expression
(StreamExecution.PROXY_ERROR). On the long text of a Py4JJavaError that expression overflows Java's stack: the query's
thread ends with an error, and Ctrl-C prints a thousand lines. So an interrupted batch raises exactly the text that
Spark expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

P = ParamSpec("P")

_STOPPED = re.compile(
    r"java\.lang\.InterruptedException|java\.io\.InterruptedIOException|ClosedByInterruptException"
    r"|cancelled part of cancelled job group|SPARK_JOB_CANCELLED"
)


class Interrupted(Exception):  # noqa: N818 - not an error
    """A query was stopped during a batch."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: java.lang.InterruptedException"
        )


def stoppable(write: Callable[P, Any]) -> Callable[P, None]:
    """Make a function for foreachBatch raise `Interrupted` if the query is stopped while it runs."""

    @wraps(write)
    def written(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(*args, **kwargs)
        except (Py4JJavaError, PySparkException) as error:
            if _STOPPED.search(str(error)):
                raise Interrupted from None
            raise

    return written
