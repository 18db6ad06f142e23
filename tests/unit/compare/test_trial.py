"""A run of the workload: before its first step, and steps that have to wait for members that are late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path

import pytest

from muster.compare import trial
from muster.compare.rules.counters import ZooKeeperCounters
from muster.compare.rules.formulas import Scheme
from muster.compare.rules.recorder import Owns
from muster.compare.servers import Servers
from muster.compare.trial import Trial, TrialOptions


class CountedServers(Servers):
    """Returns the next of the given counters whenever it is asked."""

    def __init__(self, counted: Iterator[ZooKeeperCounters]) -> None:
        super().__init__("127.0.0.1:1", "127.0.0.1:1", 1)
        self.asked = 0
        self._counted = counted

    async def counters(self) -> ZooKeeperCounters:
        self.asked += 1
        return next(self._counted)


@pytest.mark.parametrize(
    ("counted", "asked"),
    [
        (repeat(ZooKeeperCounters(7, 3, 2, 50)), 2),
        ((ZooKeeperCounters(7, 3, 2, packets) for packets in count()), 2),  # pings
        (
            chain(
                [ZooKeeperCounters(7), ZooKeeperCounters(8), ZooKeeperCounters(8, 1), ZooKeeperCounters(8, 1, 1)],
                repeat(ZooKeeperCounters(8, 1, 1)),
            ),
            5,
        ),
    ],
)
async def test_the_first_step_waits_until_zookeeper_rests(
    counted: Iterator[ZooKeeperCounters], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 1)
    servers = CountedServers(counted)
    await Trial(Scheme.MEMBERS, 2, servers, TrialOptions(tmp_path, "t"), lambda _: None)._rest()
    assert servers.asked == asked


async def test_a_zookeeper_that_others_use_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 1)
    monkeypatch.setattr(trial, "REST_MS", 20)
    servers = CountedServers(ZooKeeperCounters(reads) for reads in count())
    await Trial(Scheme.MEMBERS, 2, servers, TrialOptions(tmp_path, "t"), lambda _: None)._rest()
    assert servers.asked >= 2


class NoticedLate:
    """Brokers, one of which stops and starts, and two members, the second of which notices it later than the first."""

    def __init__(self, folder: Path) -> None:
        options = TrialOptions(folder, "t", partitions=2, watch_brokers=True)
        self.trial = Trial(Scheme.WATCHERS, 2, CountedServers(repeat(ZooKeeperCounters())), options, lambda _: None)
        self.trial._active = ["m1", "m2"]
        self.shares = {"m1": frozenset([0]), "m2": frozenset([1])}
        self.seen: list[str] = []
        for member, share in self.shares.items():
            self.trial._happened(Owns(-1, member, share))

    def _says(self, member: str, partitions: frozenset[int]) -> None:
        self.seen.append(f"{member} reads {sorted(partitions)}")
        self.trial._happened(Owns(self.trial._now(), member, partitions))

    async def changes(self, what: str) -> None:
        self.seen.append(what)
        for turn, (member, share) in enumerate(self.shares.items(), 1):
            later = asyncio.get_running_loop().call_later
            later(0.02 * turn, self._says, member, frozenset())
            later(0.02 * turn + 0.01, self._says, member, share)

    async def stop(self) -> None:
        await self.changes("stop")

    async def start(self) -> None:
        await self.changes("start")


async def test_a_broker_that_goes_and_comes_back_is_noticed_by_all_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 0)
    monkeypatch.setattr(trial, "AWAY_S", 0.002)  # the clock counts milliseconds
    late = NoticedLate(tmp_path)
    rebalanced = ["m1 reads []", "m1 reads [0]", "m2 reads []", "m2 reads [1]"]
    await late.trial._outage("a broker", late.stop, late.start, noticed=True)
    assert late.seen == ["stop", *rebalanced, "start", *rebalanced]


async def test_members_that_never_notice_are_left_to_the_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 0)
    monkeypatch.setattr(trial, "AWAY_S", 0)
    monkeypatch.setattr(trial, "PATIENCE_S", 0)
    late = NoticedLate(tmp_path)
    late.shares = {}
    await late.trial._outage("a broker", late.stop, late.start, noticed=True)
    assert late.seen == ["stop", "start"]
