"""Which partitions a batch read has, for a cluster given as a table."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import ConfigError
from muster.spark.source.batch import find_partitions
from muster.spark.source.options import parse_options

THERE = {"flights": [0, 1], "flights-old": [0], "old-flights": [0]}


class Table:
    """The part of a cluster that `find_partitions` uses."""

    def topics(self, names: Any = None) -> dict[str, list[int]]:
        return THERE if names is None else {name: THERE[name] for name in names}


def found(**given: str) -> list[tuple[str, int]]:
    options = parse_options({"bootstrap": "a:1"} | given, streaming=False)
    cluster: Any = Table()
    return [(place.topic, place.partition) for place in find_partitions(cluster, options)]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("flights", {"flights"}),
        ("flights.*", {"flights", "flights-old"}),
        (".*flights.*", {"flights", "flights-old", "old-flights"}),
        ("light", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, topics: set[str]) -> None:
    assert {topic for topic, _ in found(subscribePattern=pattern)} == topics


def test_named_partitions_have_to_be_there() -> None:
    assert found(assign='{"flights":[1]}', mode="assign") == [("flights", 1)]
    with pytest.raises(ConfigError, match="assign names flights-2, which does not exist"):
        found(assign='{"flights":[2]}', mode="assign")
    assert found(subscribe="flights,old-flights") == [("flights", 0), ("flights", 1), ("old-flights", 0)]
