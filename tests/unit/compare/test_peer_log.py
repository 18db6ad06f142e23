"""The log of Kafka 0.8.2.2's consumer, line by line as a real one wrote it."""

from __future__ import annotations

import pytest

from muster.compare.peer_log import PeerLog

AT = "2026-01-01 11:32:45,258 INFO ZookeeperConsumerConnector [g_m1], "

FIRST = f"""{AT}begin registering consumer g_m1 in ZK
{AT}begin rebalancing consumer g_m1 try #0
{AT}Cleared all relevant queues for this fetcher
{AT}Releasing partition ownership
2026-01-01 11:32:45,184 INFO RangeAssignor g_m1-0 attempting to claim partition 1
{AT}g_m1-0 successfully owned partition 1 for topic t
{AT}g_m1-0 successfully owned partition 10 for topic t
{AT}end rebalancing consumer g_m1 try #0"""

IN_THE_WAY = f"""{AT}begin rebalancing consumer g_m1 try #0
{AT}Cleared all relevant queues for this fetcher
{AT}g_m1-0 successfully owned partition 0 for topic t
{AT}waiting for the partition ownership to be deleted: 1
{AT}waiting for the partition ownership to be deleted: 2
{AT}end rebalancing consumer g_m1 try #0
{AT}Rebalancing attempt failed. Clearing the cache before the next rebalancing operation is triggered
{AT}begin rebalancing consumer g_m1 try #1
{AT}Cleared all relevant queues for this fetcher
{AT}g_m1-0 successfully owned partition 1 for topic t
{AT}g_m1-0 successfully owned partition 2 for topic t
{AT}end rebalancing consumer g_m1 try #1"""


def follow(log: PeerLog, text: str) -> list[list[int]]:
    return [sorted(log.owned) for line in text.splitlines() if log.take(line)]


def test_what_it_reads_is_reported_when_it_has_claimed_all() -> None:
    log = PeerLog()
    assert follow(log, FIRST) == [[1, 10]]
    assert (log.work.rebalances, log.work.tries, log.work.conflicts) == (1, 1, 0)


def test_a_try_that_failed_gives_it_nothing() -> None:
    log = PeerLog()
    follow(log, FIRST)
    assert follow(log, IN_THE_WAY) == [[], [1, 2]]
    assert (log.work.rebalances, log.work.tries, log.work.conflicts) == (2, 3, 2)
    assert log.work.failed_tries == 1


def test_a_try_that_ended_with_an_exception_gives_it_nothing() -> None:
    log = PeerLog()
    lines = FIRST.splitlines()
    lines.insert(-1, f"{AT}exception during rebalance ")
    assert follow(log, "\n".join(lines)) == []


def test_a_rebalance_that_gives_it_nothing_is_reported_too() -> None:
    lines = (f"{AT}begin rebalancing consumer g_m1 try #0", f"{AT}end rebalancing consumer g_m1 try #0")
    assert follow(PeerLog(), "\n".join(lines)) == [[]]


@pytest.mark.parametrize("line", ["", "begin rebalancing", "2026 INFO ZooKeeper Client environment:os.name=Linux"])
def test_other_lines_say_nothing(line: str) -> None:
    log = PeerLog()
    assert not log.take(line)
    assert log.work == PeerLog().work


def test_sessions_that_ended_are_counted() -> None:
    log = PeerLog()
    assert not log.take(f"{AT}ZK expired; release old broker parition ownership; re-register consumer g_m1")
    assert log.expired == 1
