"""The conditions of waits, and what a group still lacks for each.

A group is the JSON object that `Control.view` returns: state, members with their partitions, committed offsets, log
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.errors import ConfigError

View = Mapping[str, Any]
"""A group: state, generation, members, offsets, ends, partitions (how many each topic has)."""


def missing(view: View, wait: Mapping[str, Any]) -> str | None:
    """What is missing for a wait's condition; None if the condition holds.

    Raises:
        ConfigError: the condition is unknown, or has a field that it does not accept.
    """
    known = _CONDITIONS.get(wait.get("until", ""))
    if known is None:
        raise ConfigError(f"until={wait.get('until')!r} is not a condition: choose from {', '.join(_CONDITIONS)}")
    check, allowed = known
    extra = wait.keys() - allowed - {"until", "group", "timeout_ms"}
    if extra:
        raise ConfigError(
            f"{', '.join(sorted(extra))}: until={wait['until']!r} takes {', '.join(allowed) or 'nothing'}"
        )
    return check(view, wait)


def _stable(view: View, wait: Mapping[str, Any]) -> str | None:
    if view["state"] == "Dead":
        return "the group does not exist yet: its consumer joins when it is polled"
    if view["state"] != "Stable":
        return f"the group is {view['state']}, not Stable"
    least = wait.get("generation", 0)
    return f"generation {view['generation']}, not yet {least}" if view["generation"] < least else None


def _assigned(view: View, wait: Mapping[str, Any]) -> str | None:
    unstable = _stable(view, {})
    if unstable:
        return unstable
    wanted, members = wait.get("members"), len(view["members"])
    if not members or wanted not in (None, members):
        return f"the group has {members} member(s), not {wanted or 'at least 1'}"
    owned: dict[str, set[int]] = {}
    for member in view["members"]:
        for topic, partitions in member["partitions"].items():
            owned.setdefault(topic, set()).update(partitions)
    topics = wait.get("topics") or list(owned)
    if not topics:
        return "no member has a partition: do the subscribed topics exist?"
    for topic in topics:
        count = view["partitions"].get(topic, 0)
        if not count:
            return f"there is no topic {topic}"
        free = sorted(set(range(count)) - owned.get(topic, set()))
        if free:
            return f"no member has partition(s) {', '.join(map(str, free))} of {topic}"
    return None


def _committed(view: View, wait: Mapping[str, Any]) -> str | None:
    topic, wanted = wait["topic"], wait["offsets"]
    offsets = view["offsets"].get(topic, {})
    if isinstance(wanted, int):
        total = sum(offsets.values())
        return None if total >= wanted else f"{total} of {wanted} records of {topic} are committed"
    behind = [
        f"partition {p} at {offsets.get(p, 'no offset')}, not {least}"
        for p, least in wanted.items()
        if offsets.get(p, -1) < least
    ]
    return f"committed in {topic}: {'; '.join(behind)}" if behind else None


def _lag_zero(view: View, wait: Mapping[str, Any]) -> str | None:
    topics = [wait["topic"]] if wait.get("topic") else sorted(view["ends"])
    if not topics:
        return "the group has committed nothing, and no partition is assigned to it"
    behind = []
    for topic in topics:
        if topic not in view["ends"]:
            return f"the group has committed nothing in {topic}, and none of its partitions is assigned to it"
        for partition in map(str, range(view["partitions"][topic])):
            end = view["ends"][topic].get(partition)
            committed = view["offsets"].get(topic, {}).get(partition)
            if end is None:
                behind.append(
                    f"{topic} {partition}: its end is unknown, because it has no leader or another broker leads it"
                )
            elif end and (committed is None or committed < end):
                behind.append(f"{topic} {partition}: {'nothing' if committed is None else committed} of {end}")
    return f"committed: {'; '.join(behind[:5])}{' …' if len(behind) > 5 else ''}" if behind else None


def _empty(view: View, wait: Mapping[str, Any]) -> str | None:
    return f"{len(view['members'])} member(s) have not left" if view["members"] else None


_CONDITIONS: dict[str, tuple[Callable[[View, Mapping[str, Any]], str | None], set[str]]] = {
    "assigned": (_assigned, {"members", "topics"}),
    "stable": (_stable, {"generation"}),
    "committed": (_committed, {"topic", "offsets"}),
    "lag_zero": (_lag_zero, {"topic"}),
    "empty": (_empty, set()),
}
"""By name: the check, and the fields that it takes."""
