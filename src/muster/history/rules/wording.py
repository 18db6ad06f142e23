"""How the history's sentences name things: members, durations, lists, values for a settings file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.history.model import Member

_SHOWN = 3
_LONG = 80


def named(member: Member) -> str:
    """A member as an operator knows it: by client id, instance id and host, not by the id that Kafka generated."""
    static = f", instance {member.instance_id}" if member.instance_id else ""
    return f"{member.client_id!r} at {member.host.lstrip('/')}{static}"


def shortened(name: str) -> str:
    """A group's name as it is shown: Kafka accepts names of thousands of characters."""
    return name if len(name) <= _LONG else f"{name[: _LONG - 1]}…"


def listed(items: Iterable[str]) -> str:
    """The first few distinct items, each with its number of occurrences, and how many more there are."""
    found = tuple(items)
    if len(found) == 1:  # nearly always
        return found[0]
    counts = Counter(found)
    shown = [item if times == 1 else f"{item} ({times} times)" for item, times in list(counts.items())[:_SHOWN]]
    if len(counts) > _SHOWN:
        shown.append(f"{len(counts) - _SHOWN} more")
    if len(shown) < 2:
        return shown[0] if shown else "a member"
    mark = "; " if any(", " in item for item in shown) else ", "
    return f"{mark.join(shown[:-1])} and {shown[-1]}"


def count(number: int, noun: str) -> str:
    """`1 time`, `3 times`, `10,000 times`."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(milliseconds: int) -> str:
    """A duration for people: 850 ms, 12.4 s, 3.5 min, 2.0 h, 4.2 days."""
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    for unit, size, below in (("s", 1_000, 120_000), ("min", 60_000, 7_200_000), ("h", 3_600_000, 172_800_000)):
        if milliseconds < below:
            return f"{milliseconds / size:.1f} {unit}"
    return f"{milliseconds / 86_400_000:.1f} days"


def settings_value(milliseconds: int) -> str:
    """A time for a settings file: rounded up to two digits, so that it reads like a deliberate value."""
    digits = max(0, len(str(max(milliseconds, 1))) - 2)
    step = 10**digits
    return str(-(-milliseconds // step) * step)
