"""If a cluster does not report its limits, the defaults are used, and a remark says so."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.admin.admin import ClusterDescription
from muster.errors import KafkaTimeoutError, UnsupportedVersionError
from muster.history.model import Limits
from muster.history.sources.cluster_limits import limits_of
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import Node


class Reticent:
    """An admin client of a cluster that answers few requests."""

    def __init__(self, error: Exception, old: bool) -> None:
        self._error, self._old = error, old

    def list_topics(self, *, include_internal: bool) -> list[Any]:
        return []

    def describe_cluster(self) -> ClusterDescription:
        if self._old:
            raise self._error
        return ClusterDescription("c", 1, [Node(1, "a", 9092)])

    def describe_configs(self, _resources: Any, *, raise_errors: bool) -> Any:
        raise self._error

    def list_consumer_groups(self, *, types: list[str]) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "old", "remarks"),
    [
        (UnsupportedVersionError("the broker is of Kafka 1.1"), True, 0),
        (UnsupportedVersionError("the broker is of Kafka 3.9"), False, 0),
        (KafkaTimeoutError("gave up"), False, 2),  # it is frozen
    ],
)
def test_the_usual_limits_stand_for_what_is_not_known(error: Exception, old: bool, remarks: int) -> None:
    said = ReaderWarnings()
    admin: Any = Reticent(error, old)
    assert limits_of(admin, said) == Limits()
    assert len(said.sentences()) == remarks
