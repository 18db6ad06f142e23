"""A report as a run of the demo would give it: made up but for the delays, which are the real ones."""

from __future__ import annotations

from muster.demo.flights import QUICK_FLIGHTS, airlines, flights, truth
from muster.demo.report import DelayRow, DemoReport, Figure, Outage, OwnershipSpan, Rebalance

START = 1_700_000_000_000
MEMBERS = ("python-1", "python-2", "python-3", "spark", "python-4")
# Of each partition: the owners and from which second on they own it; "" is nobody.
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


def sample() -> DemoReport:
    """The report of a run in which all went well."""
    facts, names = truth(flights(QUICK_FLIGHTS)), airlines()
    return DemoReport(
        group="delays",
        carriers=[DelayRow(names[code], row.flights, row.mean_minutes) for code, row in facts.by_carrier.items()],
        hours=[DelayRow(str(hour), row.flights, row.mean_minutes) for hour, row in sorted(facts.by_hour.items())],
        spans=spans(),
        rebalances=[
            Rebalance(START, 3_200, 1, "four members joined the empty group"),
            Rebalance(START + 22_900, 640, 2, "python-4 joined"),
            Rebalance(START + 23_800, 310, 3, "partitions given up by python-1 and python-3 find their new owners"),
            Rebalance(START + 50_000, 420, 4, "python-1's session ended 6.0 s after its last heartbeat (killed)"),
            Rebalance(START + 62_000, 500, 5, "python-3 left: the consumer was closed"),
        ],
        outages=[Outage(START + 72_400, START + 74_300, "broker killed and started again")],
        figures={
            "events produced": Figure(QUICK_FLIGHTS, True, "the first flights of the source file"),
            "distinct events handled": Figure(QUICK_FLIGHTS, True),
            "duplicates": Figure(412, True, "all inside windows that at-least-once allows"),
            "lost": Figure(0, True),
            "rebalances": Figure(5),
            "wall time": Figure("88.0 s"),
            "records handled out of order": Figure(0, True, "within one ownership of one partition"),
            "delay by carrier": Figure("16 carriers", True, "equal to the truth computed from the file"),
            "delay by hour": Figure("20 hours", True, "equal to the truth computed from the file"),
        },
        headline=("events produced", "distinct events handled", "duplicates", "lost", "rebalances", "wall time"),
        members=MEMBERS,
        footer="muster 0.1.0, Python 3.11, PySpark 4.3, 8 partitions, cooperative-sticky",
    )
