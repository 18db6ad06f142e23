"""A report as a run of the demo would produce it: made up except for the delays, which are the real ones."""

from __future__ import annotations

from functools import cache

from muster.demo.course import Course, Outage
from muster.demo.data.events import Delays
from muster.demo.data.flights import QUICK_FLIGHTS, airlines, flights
from muster.demo.judge.outcome import WEATHER
from muster.demo.show.picture import STAGES, Box
from muster.demo.show.report import DelayRow, DemoReport, Figure, OwnershipSpan, ShownRebalance

START = 1_700_000_000_000
MEMBERS = ("python-1", "python-2", "python-3", "spark", "python-4")
# For each partition: the owners and the second from which they own it; "" is nobody.
OWNERS = {
    0: [("python-1", 3.2), ("", 44.0), ("python-3", 50.4), ("spark", 62.5)],
    1: [("python-1", 3.2), ("python-4", 24.1), ("spark", 50.4)],
    2: [("python-2", 3.2)],
    3: [("python-2", 3.2), ("python-4", 62.5)],
    4: [("python-3", 3.2), ("", 62.0), ("python-2", 62.5)],
    5: [("python-3", 3.2), ("python-4", 24.1)],
    6: [("spark", 3.2)],
    7: [("spark", 3.2), ("python-3", 50.4), ("", 62.0), ("spark", 62.5)],
}
END = 88.0


def spans() -> list[OwnershipSpan]:
    found = []
    for partition, owners in OWNERS.items():
        ends = [start for _, start in owners[1:]] + [END]
        for (member, start), end in zip(owners, ends, strict=True):
            if member:
                found.append(OwnershipSpan(partition, member, START + int(start * 1000), START + int(end * 1000)))
    return found


def course(outage: Outage) -> Course:
    """Two queries with batches, one of them with a watermark; a group that fell behind and caught up."""
    found = Course(outages=[outage])
    for number in range(20):
        day = f"2013-01-{1 + number:02}T00:00:00.000Z"
        for query, watermark in (("windows", day), ("check", None)):
            numbers = {"query": query, "batch": number, "rows": 1_500, "took_ms": 900, "dropped": 0, "state_rows": 600}
            newest = f"2013-01-{10 + number:02}T00:00:00.000Z" if watermark else None
            found.on_batch(START + 4_000 * number, {**numbers, "watermark": watermark, "newest": newest})
        found.on_lags(START + 4_000 * number, {"flights-windows": 900 * (number % 5), "flights-reader": 0})
    return found


@cache
def sample() -> DemoReport:
    """The report of a run in which everything went well."""
    names = airlines()
    facts: dict[str, Delays] = {}
    for flight in flights(QUICK_FLIGHTS):
        facts.setdefault(str(flight.row["carrier"]), Delays()).add(flight.row["dep_delay"])
    outage = Outage(START + 72_400, START + 74_300, "broker killed and started again")
    return DemoReport(
        group="delays",
        boxes={name: Box(name, ["14 batches", "30,000 records/s"]) for name in STAGES},
        course=course(outage),
        carriers=[DelayRow(names[code], row.flights, row.mean_minutes) for code, row in facts.items()],
        weeks=[DelayRow(f"{week:02}", 5_000, 3.0 + week % 7) for week in range(1, 54)],
        weather=[DelayRow(kind, 4_000, 5.0 + number) for number, kind in enumerate(WEATHER)],
        spans=spans(),
        rebalances=[
            ShownRebalance(START, 3_200, 1, "four members joined the empty group"),
            ShownRebalance(START + 22_900, 640, 2, "python-4 joined"),
            ShownRebalance(
                START + 23_800, 310, 3, "partitions given up by python-1 and python-3 find their new owners"
            ),
            ShownRebalance(START + 50_000, 420, 4, "python-1's session ended 6.0 s after its last heartbeat (killed)"),
            ShownRebalance(START + 62_000, 500, 5, "python-3 left: the consumer was closed"),
        ],
        outages=[outage],
        figures={
            "events produced": Figure(QUICK_FLIGHTS, True, "the first flights of the source file"),
            "distinct events handled": Figure(QUICK_FLIGHTS, True),
            "duplicates": Figure(412, True, "all inside windows that at-least-once allows"),
            "lost": Figure(0, True),
            "rebalances": Figure(5),
            "wall time": Figure("88.0 s"),
            "records handled out of order": Figure(0, True, "within one ownership of one partition"),
            "delay by carrier": Figure("16 carriers", True, "equal to the truth computed from the file"),
            "windows in the table": Figure(1_104, True, "each correct"),
        },
        headline=("events produced", "distinct events handled", "duplicates", "lost", "rebalances", "wall time"),
        members=MEMBERS,
        footer="muster 0.1.0, Python 3.11, PySpark 4.3, 8 partitions, cooperative-sticky",
    )
