"""How an error of Spark's is reported: one sentence, even for processes that are gone; and how a stopped batch ends."""

from __future__ import annotations

import re
import traceback

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from muster.errors import MusterError
from muster.spark.history.short_errors import JAVA_GONE, PROCESS_GONE, sentence, with_short_errors
from muster.spark.stopping import Interrupted, stoppable

FAILED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {} SQLSTATE: XXKST\n=== Streaming Query ===\n"
)


FULL = """An error occurred while calling o213.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/o. SQLSTATE: 58030
\tat org.apache.spark.sql.Some$.thing(Some.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 19 more
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (FULL, "No space left on device"),
        (FAILED.format(f"Traceback\npy4j.protocol.Py4JJavaError: {FULL}\n\n\tat py4j.x\n"), "No space left on device"),
        (
            "An error occurred while calling o1.x.\n: java.lang.NullPointerException\n\tat a.b\n",
            "java.lang.NullPointerException",
        ),
        (FULL + "muster.errors.ConfigError: no such option\n", "no such option"),
        ("Job aborted.\npages", "Job aborted."),
        (FAILED.format("it broke") + "muster.errors.ConfigError: no such option\n", "no such option"),
        (FAILED.format("it broke"), FAILED.format("it broke").partition("\n")[0]),
        (FAILED.format(""), PROCESS_GONE),
        (FAILED.format("") + "muster.errors.KafkaError: no answer\n", "no answer"),
    ],
)
def test_sentences(text, reported):
    assert sentence(text) == reported


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (PySparkException(message="it broke"), "it broke"),
        (Py4JNetworkError("Answer from Java side is empty"), JAVA_GONE),
        (ConnectionRefusedError(111, "Connection refused"), JAVA_GONE),
        (MusterError("no broker"), "no broker"),
    ],
)
def test_what_is_raised_becomes_a_sentence(error, reported):
    def fail() -> None:
        raise error

    with pytest.raises(MusterError, match=re.escape(reported)):
        with_short_errors(fail)


SPARKS = re.compile(
    r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)(java.lang.InterruptedException|"
    r"java.io.InterruptedIOException|java.nio.channels.ClosedByInterruptException)"
)
"""The error by which Spark 4 recognizes a stopped query's batch: StreamExecution.PROXY_ERROR."""


def batch_that_fails(text: str) -> str:
    """What Spark gets for a batch whose writing has failed with this text."""

    @stoppable
    def write() -> None:
        raise PySparkException(message=text)

    with pytest.raises((Interrupted, PySparkException)) as failed:
        write()
    return "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    "text",
    [
        "[SPARK_JOB_CANCELLED] Job 64 cancelled Query windows [id = 38d363be] was stopped",
        "An error occurred while calling o1.parquet.\n: java.lang.InterruptedException\n" + "\tat x\n" * 500,
        "o1: java.nio.channels.ClosedByInterruptException",
        "Job 5 cancelled part of cancelled job group abc",
    ],
)
def test_a_batch_in_which_the_query_is_stopped_says_what_spark_looks_for_and_little_else(text):
    reported = batch_that_fails(text)
    found = SPARKS.search(reported)
    assert found is not None
    assert len(found[1]) + len(reported) - found.end() < 50


def test_any_other_error_of_a_batch_is_handed_on():
    assert "no space left" in batch_that_fails("no space left")
