"""What Spark says about an error, as one sentence: it is pages long, with the sentence somewhere in them."""

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
"""The connection to a process broke, which Java tells without a word."""

_CALLING = "An error occurred while calling "
"""What py4j says of any error in Java; what went wrong stands behind it."""
_JAVA = re.compile(r"^(?:Caused by)?: (?:[\w.$]+: )?(.+)$", re.MULTILINE)

PROCESS_GONE = "a Python process of Spark's has ended in the midst of its work; what is written goes on where it was"
JAVA_GONE = "Spark's Java process has ended, or cannot be reached; what is written goes on where it was"


def said(call: Callable[[], T]) -> T:
    """What the call returns.

    Raises:
        MusterError: Spark raised something; the last error of Python in it, else its first line. Or it is gone.
    """
    try:
        return call()
    except (PySparkException, Py4JJavaError) as error:
        raise MusterError(sentence(str(error))) from error
    except (Py4JError, ConnectionError) as error:
        raise MusterError(JAVA_GONE) from error


def sentence(text: str) -> str:
    """What is to be told of an error of Spark's."""
    found = [each for each in _SENTENCE.findall(text) if not each.startswith(_CALLING)]
    if not found and _CALLING in text:
        found = _JAVA.findall(text[text.rindex(_CALLING) :])  # the last is the cause of all before it
    if not found and _NO_REASON.search(text):
        return PROCESS_GONE
    return str(found[-1] if found else text.strip().partition("\n")[0])


def hush(spark: SparkSession) -> None:
    """Have what serves Spark in this process tell no errors in pages of its own: they come as sentences."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4js)
    server: Any = spark.sparkContext._accumulatorServer
    server.handle_error = lambda *_: None


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """It has loggers of its own, and does not always use them."""
    return Path(record.pathname).parent.name != "py4j"
