"""Reads from the log of Kafka 0.8.2.2's own consumer which partitions it owns, and how it rebalances.

Its connector logs each attempt to rebalance, each partition that it claimed, and each that another consumer still owns.
"""

from __future__ import annotations

import re

from muster.compare.rules.results import Work

BEGAN = "begin registering consumer"
_TRY = re.compile(r"begin rebalancing consumer \S+ try #(\d+)")
_OWNED = re.compile(r"successfully owned partition (\d+) for topic")
_ENDED = re.compile(r"end rebalancing consumer \S+ try #\d+")
_STOPPED = "Cleared all relevant queues for this fetcher"
_IN_THE_WAY = "waiting for the partition ownership to be deleted"
_FAILED = "exception during rebalance"
_EXPIRED = "ZK expired"


class PeerLog:
    """Takes the lines of one consumer. `work` has its rebalances so far."""

    def __init__(self) -> None:
        self.work = Work()
        self.owned: frozenset[int] = frozenset()
        """What it reads."""
        self.expired = 0
        """How often its session has ended."""
        self._claimed: set[int] = set()
        self._fails = False

    def take(self, line: str) -> bool:
        """Take a line. Returns whether it changes which partitions are read."""
        before = self.owned
        if found := _TRY.search(line):
            self.work.tries += 1
            self.work.rebalances += found[1] == "0"
            self._claimed, self._fails = set(), False
        elif found := _OWNED.search(line):
            self._claimed.add(int(found[1]))
        elif _IN_THE_WAY in line:
            self.work.conflicts += 1
            self._fails = True
        elif _FAILED in line:
            self._fails = True
        elif _STOPPED in line:
            self.owned = frozenset()
        elif _EXPIRED in line:
            self.expired += 1
        elif _ENDED.search(line) and not self._fails:
            self.owned = frozenset(self._claimed)
            return True
        return self.owned != before
