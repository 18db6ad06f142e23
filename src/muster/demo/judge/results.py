"""Compares the pipeline's results with the truth, record by record. Pure: rows come in as dictionaries.

Whatever is killed, the pipeline promises: every record that was sent is in its topic; each window of the table and of
the compacted topic has exactly the good flights of its day; each good flight is joined with its hour's weather once;
each late or damaged flight is a dead letter with its fault. Dead letters are written at least once: if a batch was
written again after a kill, a letter may occur twice, which is counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from muster.demo.data.events import WEATHER, DayWindow, Delays, Truth

_ID = re.compile(r'\{"id":(\d+),')


@dataclass(frozen=True, slots=True)
class Compared:
    """The errors, as one sentence each, and how many records occurred more than once."""

    right: int
    wrong: tuple[str, ...] = ()
    repeated: int = 0


def flight_id(value: str) -> int | None:
    """The ID of a flight's record, even if it is truncated."""
    found = _ID.match(value)
    return int(found[1]) if found else None


def sent(values: Mapping[tuple[int, int], str], flights: int) -> Compared:
    """The topic of the flights: `values` by partition and offset. Each id once, rising within a partition."""
    wrong, last = [], dict[int, int]()
    times: Counter[int | None] = Counter()
    for (partition, offset), value in sorted(values.items()):
        found = flight_id(value)
        times[found] += 1
        if found is None:
            wrong.append(f"the record {partition}:{offset} has no id")
            continue
        if found < last.get(partition, -1):
            wrong.append(f"flight {found} follows {last[partition]} in partition {partition}")
        last[partition] = found
    wrong += [f"flight {number} is not in the topic" for number in range(flights) if number not in times]
    wrong += [f"flight {number} was never sent" for number in times if number is not None and number >= flights]
    return Compared(len(times), tuple(wrong), times.total() - len(times))


def windows(rows: Iterable[Mapping[str, Any]], truth: Truth) -> Compared:
    """The table, or the last values of the compacted topic: each window once, with the flights of its day."""
    found: dict[DayWindow, Delays] = {}
    repeated, wrong = 0, []
    for row in rows:
        window = date.fromisoformat(row["day"]), row["origin"], row["carrier"]
        repeated += window in found
        found[window] = Delays(row["flights"], row["departed"], row["minutes"])
    for window in sorted(found.keys() | truth.windows.keys()):
        got, due = found.get(window), truth.windows.get(window)
        if got != due:
            wrong.append(f"{' '.join(map(str, window))}: {got} instead of {due}")
    return Compared(len(found), tuple(wrong), repeated)


def last_values(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The contents of a compacted topic: each key's last record, key and value as one row."""
    last: dict[str, Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda each: (each["partition"], each["offset"])):
        last[record["key"]] = record
    return [json.loads(key) | json.loads(record["value"]) for key, record in last.items() if record["value"]]


def joined(rows: Sequence[Mapping[str, Any]], truth: Truth) -> Compared:
    """The flights with their weather: each flight with known weather occurs once, with its delay and the weather of its
    hour."""
    expected = truth.joined()
    times = Counter(row["id"] for row in rows)
    wrong = [f"flight {number} lacks its weather" for number in sorted(expected.keys() - times.keys())]
    wrong += [f"flight {number} should not be there" for number in sorted(times.keys() - expected.keys())]
    for row in rows:
        got = tuple(row.get(name) for name in ("dep_delay", *WEATHER))
        if got != expected.get(row["id"], got):
            wrong.append(f"flight {row['id']} has delay and weather {got} instead of {expected[row['id']]}")
    wrong += [f"flight {number} is there {count} times" for number, count in sorted(times.items()) if count > 1]
    return Compared(len(times), tuple(wrong), times.total() - len(times))


def dead(records: Iterable[Mapping[str, Any]], truth: Truth) -> Compared:
    """The dead letters: each late or damaged flight, with its fault."""
    faults: dict[int | None, set[str]] = {}
    letters = 0
    for record in records:
        letters += 1
        faults.setdefault(flight_id(record["value"]), set()).add(record["headers"]["fault"])
    wrong = [
        f"flight {number}: {', '.join(sorted(faults.get(number, ()))) or 'no letter'} instead of {fault}"
        for number, fault in truth.dead.items()
        if faults.get(number) != {fault}
    ]
    wrong += [f"flight {number} should not be a dead letter" for number in faults if number not in truth.dead]
    return Compared(len(faults), tuple(wrong), letters - len(faults))
