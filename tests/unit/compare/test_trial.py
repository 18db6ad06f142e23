"""A run of the workload, before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path

import pytest

from muster.compare import trial
from muster.compare.counters import Counters
from muster.compare.formulas import Scheme
from muster.compare.servers import Servers
from muster.compare.trial import Options, Trial


class CountedServers(Servers):
    """What ZooKeeper has counted whenever it is asked."""

    def __init__(self, counted: Iterator[Counters]) -> None:
        super().__init__("127.0.0.1:1", "127.0.0.1:1", 1)
        self.asked = 0
        self._counted = counted

    async def counters(self) -> Counters:
        self.asked += 1
        return next(self._counted)


@pytest.mark.parametrize(
    ("counted", "asked"),
    [
        (repeat(Counters(7, 3, 2, 50)), 2),
        ((Counters(7, 3, 2, packets) for packets in count()), 2),  # pings
        (chain([Counters(7), Counters(8), Counters(8, 1), Counters(8, 1, 1)], repeat(Counters(8, 1, 1))), 5),
    ],
)
async def test_the_first_step_waits_until_zookeeper_rests(
    counted: Iterator[Counters], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 1)
    servers = CountedServers(counted)
    await Trial(Scheme.MEMBERS, 2, servers, Options(tmp_path, "t"), lambda _: None)._rest()
    assert servers.asked == asked


async def test_a_zookeeper_that_others_use_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "QUIET_MS", 1)
    monkeypatch.setattr(trial, "REST_MS", 20)
    servers = CountedServers(Counters(reads) for reads in count())
    await Trial(Scheme.MEMBERS, 2, servers, Options(tmp_path, "t"), lambda _: None)._rest()
    assert servers.asked >= 2
