"""A report of three groups for the tests of the doctor's page: a busy one, a quiet one, one that only commits."""

from __future__ import annotations

from dataclasses import replace

from muster.history.findings import GroupView, findings
from muster.history.model import Alternative, Cause, Change, Generation, GroupKind, Lag, Member, Moved, Place, Rebalance
from muster.history.report import Report

START_MS = 1_790_000_000_000
MINUTE_MS = 60_000
CAUSES = (
    Cause.STARTED,
    Cause.JOINED,
    Cause.POLL_INTERVAL_EXCEEDED,
    Cause.JOINED,
    Cause.SESSION_EXPIRED,
    Cause.POLL_INTERVAL_EXCEEDED,
    Cause.JOINED,
    Cause.PARTITIONS_ADDED,
)


def member(name: str, *partitions: int, restarted: int = 0) -> Member:
    assignment = tuple(("orders", partition) for partition in partitions)
    host = f"/10.0.0.{len(name)}"
    return Member(f"{name}-{restarted}", name, host, None, ("orders",), None, assignment, (), 45_000, 300_000)


SHARES = (
    ((0, 1, 2, 3, 4, 5),),
    ((0, 1, 2), (3, 4, 5)),
    ((0, 1, 2, 3, 4, 5),),
    ((0, 1), (2, 3), (4, 5)),
    ((0, 1, 2), (3, 4, 5)),
    ((0, 1, 2, 3, 4, 5),),
    ((0, 1, 2), (3, 4, 5)),
    ((0, 1, 2, 6), (3, 4, 5, 7)),
)


def busy() -> tuple[list[Generation], list[Rebalance]]:
    """A group whose member `payments` is repeatedly too slow."""
    generations: list[Generation] = []
    rebalances: list[Rebalance] = []
    before: tuple[Member, ...] = ()
    for index, (cause, shares) in enumerate(zip(CAUSES, SHARES, strict=True)):
        at_ms = START_MS + index * 7 * MINUTE_MS + index * index * 11_000
        names = ("billing", "payments", "audit-with-a-rather-long-client-id")
        members = tuple(member(names[row], *share, restarted=index) for row, share in enumerate(shares))
        place = Place(3, 100 + index, at_ms, 1)
        made = Generation(
            "orders-app",
            index + 1,
            GroupKind.CLASSIC,
            at_ms,
            None,
            at_ms - 20,
            None,
            "consumer",
            "range",
            "l",
            members,
            place,
        )
        if generations:
            generations[-1] = replace(generations[-1], ended_ms=at_ms)
        generations.append(made)
        known = {each.client_id for each in before}
        here = {each.client_id for each in members}
        rebalances.append(
            Rebalance(
                group="orders-app",
                generation=index + 1,
                previous_generation=index or None,
                at_ms=at_ms,
                duration_ms=3_200 + 100 * index,
                duration_is="at most",
                members_before=len(before),
                members_after=len(members),
                joined=tuple(Change(each) for each in members if each.client_id not in known),
                left=tuple(each for each in before if each.client_id not in here),
                replaced=(),
                resubscribed=(),
                moved_partitions=tuple(Moved("orders", each, "a", "b", each == 2) for each in (2, 3)) if index else (),
                stopped=tuple(("orders", each, 5_000 + 300 * each) for each in range(6)) if index else (),
                cause=cause,
                confidence=0.9,
                evidence=("no commit of 'payments' for 312 s, its max.poll.interval.ms is 300 s",)
                if index == 2
                else (),
                alternatives=(Alternative(Cause.SESSION_EXPIRED, "the broker's line about its heartbeat"),)
                if index == 2
                else (),
            )
        )
        before = members
    return generations, rebalances


def sample() -> Report:
    """The report two minutes after the last rebalance."""
    generations, rebalances = busy()
    until_ms = rebalances[-1].at_ms + 2 * MINUTE_MS
    steady = replace(generations[0], group="steady", protocol="cooperative-sticky")
    lag = [
        Lag(
            "orders-app",
            "orders",
            index,
            until_ms,
            100,
            until_ms,
            0,
            100 + 40 * index,
            40 * index,
            index % 2 == 0,
            900,
            0,
            None,
        )
        for index in range(8)
    ]
    lag.append(Lag("loader", "orders", 0, until_ms, 100, until_ms, 0, 100, 0, True, 0, 0, None))
    views = [
        GroupView("orders-app", generations, rebalances, [], lag[:8], until_ms),
        GroupView("steady", [steady], [], [], [], until_ms),
    ]
    kinds = {"orders-app": GroupKind.CLASSIC, "steady": GroupKind.CLASSIC, "loader": GroupKind.OFFSETS_ONLY}
    return Report(
        source="the cluster at localhost:9092",
        from_ms=START_MS,
        until_ms=until_ms,
        generations=[*generations, steady],
        rebalances=rebalances,
        lag=lag,
        findings=findings(views),
        counts={("OffsetCommit", 4): 1_200, ("GroupMetadata", 3): 9, ("kind 42", -2): 1},
        kinds=kinds,
        warnings=["1 record of a kind that is not known here was counted and passed over."],
    )
