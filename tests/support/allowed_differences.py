"""Where muster's answers may differ from those of Apache Kafka 4.2: the rules for comparing random requests.

Each entry is a sentence of docs/reference/compatibility.md, word for word, with its rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from muster.protocol import admin_messages as a
from muster.protocol import messages as m

Rule = Callable[[Any, int, Any, Any], bool]
"""Whether a difference between two answers is this one: from the request, its version, muster's answer and Kafka's."""


class Allowed(NamedTuple):
    """One difference."""

    sentence: str
    applies: Rule


def _merged(topics: list[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for topic in topics:
        found.setdefault((topic["name"], topic.get("topic_id")), []).extend(topic["partitions"])
    return {key: sorted(partitions, key=repr) for key, partitions in found.items()}


def _named_twice(request: Any, version: int, ours: Any, theirs: Any) -> bool:
    return isinstance(request, (m.OffsetCommitRequest, a.OffsetDeleteRequest)) and (
        _merged(ours["topics"]) == _merged(theirs["topics"])
    )


ALLOWED = [
    Allowed(
        "A topic that an OffsetCommit or OffsetDelete names twice is answered twice; Kafka answers it once if it "
        "refuses any partition of the request.",
        _named_twice,
    )
]
