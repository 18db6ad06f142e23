"""What Spark says about an error, as one sentence: it is pages long, with the sentence somewhere in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from muster.errors import MusterError

T = TypeVar("T")

_SENTENCE = re.compile(r"^(?:[\w.]+\.)?\w*Error: (.+)$", re.MULTILINE)


def said(call: Callable[[], T]) -> T:
    """What the call returns.

    Raises:
        MusterError: Spark raised something; the last error of Python in it, else its first line.
    """
    try:
        return call()
    except (PySparkException, Py4JJavaError) as error:
        raise MusterError(sentence(str(error))) from error


def sentence(text: str) -> str:
    """What is to be told of an error of Spark's."""
    found = _SENTENCE.findall(text)
    return str(found[-1] if found else text.strip().partition("\n")[0])
