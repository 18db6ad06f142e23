"""Which queries the tests restart: those whose Python process Spark has not waited for, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.spark_query import Stream

LATE = "[X] Python worker failed to connect back."


class Ended:
    """A query that has ended with an error."""

    def __init__(self, error: str, progress: dict[str, Any] | None) -> None:
        self.lastProgress = progress
        self._error = StreamingQueryException(error)

    def exception(self) -> StreamingQueryException:
        return self._error

    def awaitTermination(self, _timeout_s: float | None) -> bool:
        raise self._error


@pytest.mark.parametrize(
    ("error", "progress", "once", "begun"),
    [
        (LATE, None, False, 4),
        (LATE, None, True, 1),
        (LATE, {"batchId": 0}, False, 1),
        ("the records of t-0 are lost", None, False, 1),
    ],
)
@pytest.mark.parametrize("asked", [Stream.wait, Stream.look])
def test_a_query_is_begun_again(
    asked: Any, error: str, progress: dict[str, Any] | None, once: bool, begun: int
) -> None:
    queries: list[Ended] = []

    def begin() -> Ended:
        queries.append(Ended(error, progress))
        return queries[-1]

    stream = Stream(begin)
    stream.once = once
    with pytest.raises(StreamingQueryException):
        any(asked(stream) for _ in range(10))
    assert len(queries) == begun
