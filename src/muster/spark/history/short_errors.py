"""Spark's errors as one sentence: Spark writes pages, with the sentence somewhere in them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from muster.errors import MusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_SENTENCE = re.compile(r"^(?:[\w.]+\.)?\w*Error: (.+)$", re.MULTILINE)

_NO_REASON = re.compile(r"^\[STREAM_FAILED\].*terminated with exception:\s*(SQLSTATE|$)", re.MULTILINE)
"""The connection to a process broke, which Java reports without a message."""

_CALLING = "An error occurred while calling "
"""How py4j reports any error in Java; the actual error follows it."""
_JAVA = re.compile(r"^(?:Caused by)?: (?:[\w.$]+: )?(.+)$", re.MULTILINE)

PROCESS_GONE = "a Python process of Spark ended unexpectedly; the next run continues where this one stopped"
JAVA_GONE = "Spark's Java process ended or is unreachable; the next run continues where this one stopped"


def with_short_errors(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise a Spark error as one sentence.

    Raises:
        MusterError: Spark raised an error (the last Python error in it, otherwise its first line), or is gone.
    """
    try:
        return call()
    except (PySparkException, Py4JJavaError) as error:
        raise MusterError(sentence(str(error))) from error
    except (Py4JError, ConnectionError) as error:
        raise MusterError(JAVA_GONE) from error


def sentence(text: str) -> str:
    """The sentence in the text of a Spark error."""
    found = [each for each in _SENTENCE.findall(text) if not each.startswith(_CALLING)]
    if not found and _CALLING in text:
        found = _JAVA.findall(text[text.rindex(_CALLING) :])  # the last is the cause of all before it
    if not found and _NO_REASON.search(text):
        return PROCESS_GONE
    return str(found[-1] if found else text.strip().partition("\n")[0])


def hush(spark: SparkSession) -> None:
    """Keep Spark's helpers in this process from logging pages of errors: they are reported as sentences."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4js)
    server: Any = spark.sparkContext._accumulatorServer
    server.handle_error = lambda *_: None


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """By path: py4j has its own loggers, but does not always use them."""
    return Path(record.pathname).parent.name != "py4j"
