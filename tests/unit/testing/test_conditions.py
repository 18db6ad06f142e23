"""What a wait expects of a group, and what it reports as missing."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import ConfigError
from muster.testing.rules.conditions import missing


def member(**partitions: list[int]) -> dict[str, Any]:
    return {"member_id": "m", "client_id": "c", "host": "h", "instance_id": None, "partitions": partitions}


def group(
    *members: dict[str, Any],
    state: str = "Stable",
    offsets: dict[str, dict[str, int]] | None = None,
    ends: dict[str, dict[str, int]] | None = None,
) -> dict[str, Any]:
    partitions = {"a": 2, "b": 1}
    found = {"state": state, "generation": 4, "members": list(members), "partitions": partitions}
    return {**found, "offsets": offsets or {}, "ends": ends or {}}


BOTH = (member(a=[0]), member(a=[1]))
AT_5 = {"a": {"0": 5, "1": 0}}


@pytest.mark.parametrize(
    ("view", "wait", "text"),
    [
        (group(*BOTH), {"until": "assigned"}, None),
        (group(*BOTH), {"until": "assigned", "members": 2}, None),
        (group(*BOTH), {"until": "assigned", "members": 3}, "2 member(s), not 3"),
        (group(*BOTH), {"until": "assigned", "members": 1}, "2 member(s), not 1"),
        (group(), {"until": "assigned"}, "0 member(s), not at least 1"),
        (group(*BOTH, state="PreparingRebalance"), {"until": "assigned"}, "PreparingRebalance, not Stable"),
        (group(member(a=[0])), {"until": "assigned"}, "no member has partition(s) 1 of a"),
        (group(member()), {"until": "assigned"}, "no member has a partition"),
        (group(*BOTH), {"until": "assigned", "topics": ["a", "b"]}, "no member has partition(s) 0 of b"),
        (group(*BOTH), {"until": "assigned", "topics": ["c"]}, "there is no topic c"),
        (group(*BOTH), {"until": "stable"}, None),
        (group(*BOTH), {"until": "stable", "generation": 4}, None),
        (group(*BOTH), {"until": "stable", "generation": 5}, "generation 4, not yet 5"),
        (group(state="Empty"), {"until": "stable"}, "Empty, not Stable"),
        (group(state="Dead"), {"until": "stable"}, "does not exist yet"),
        (group(offsets=AT_5), {"until": "committed", "topic": "a", "offsets": 5}, None),
        (group(offsets=AT_5), {"until": "committed", "topic": "a", "offsets": 6}, "5 of 6 records of a"),
        (group(), {"until": "committed", "topic": "a", "offsets": 1}, "0 of 1 records of a"),
        (group(offsets=AT_5), {"until": "committed", "topic": "a", "offsets": {"0": 5}}, None),
        (group(offsets=AT_5), {"until": "committed", "topic": "a", "offsets": {"0": 6}}, "partition 0 at 5, not 6"),
        (group(), {"until": "committed", "topic": "a", "offsets": {"1": 0}}, "partition 1 at no offset, not 0"),
        (group(offsets=AT_5, ends=AT_5), {"until": "lag_zero"}, None),
        (group(offsets={"a": {"0": 5}}, ends=AT_5), {"until": "lag_zero"}, None),
        (group(offsets=AT_5, ends={"a": {"0": 6, "1": 0}}), {"until": "lag_zero"}, "a 0: 5 of 6"),
        (group(ends={"a": {"0": 6}}), {"until": "lag_zero"}, "a 0: nothing of 6"),
        (group(offsets=AT_5, ends={"a": {"0": 5}}), {"until": "lag_zero"}, "a 1: its end is unknown"),
        (group(), {"until": "lag_zero"}, "has committed nothing, and no partition is assigned to it"),
        (group(ends=AT_5, offsets=AT_5), {"until": "lag_zero", "topic": "b"}, "nothing in b"),
        (group(), {"until": "empty"}, None),
        (group(member()), {"until": "empty"}, "1 member(s) have not left"),
    ],
)
def test_what_is_missing(view: dict[str, Any], wait: dict[str, Any], text: str | None) -> None:
    found = missing(view, {"group": "g", "timeout_ms": 5, **wait})
    assert (found is None) if text is None else (found is not None and text in found), found


def test_what_is_not_a_wait_is_refused() -> None:
    with pytest.raises(ConfigError, match="'asigned' is not a condition"):
        missing(group(), {"until": "asigned", "group": "g"})
    with pytest.raises(ConfigError, match="member: until='assigned' takes"):
        missing(group(), {"until": "assigned", "group": "g", "member": 2})
    with pytest.raises(KeyError):
        missing(group(), {"until": "committed", "group": "g"})
