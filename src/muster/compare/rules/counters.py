"""ZooKeeper's own counters, from its command `mntr`.

`cnt_readlatency` includes pings, which depend on time and not on changes. So reads are taken from the counters of each
namespace (ZooKeeper 3.6 and newer), which count the reads that found a znode. Writes are requests: a multi is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from muster.errors import MusterError

_READS = "_read_per_namespace"
_WATCHES = ("created", "changed", "deleted", "children")


class ZooKeeperCounters(NamedTuple):
    """Counts since the server's start, or between two moments."""

    reads: int = 0
    """Reads that found something."""
    writes: int = 0
    """Requests that write, refused ones included, and the beginnings and ends of sessions."""
    watches: int = 0
    """Watches that fired: what clients were notified of."""
    packets: int = 0
    """Everything that clients have sent, pings included."""

    def since(self, before: ZooKeeperCounters) -> ZooKeeperCounters:
        """The difference; a server that was restarted has counted from zero."""
        if self.packets < before.packets:
            return self
        return ZooKeeperCounters(*(now - then for now, then in zip(self, before, strict=True)))

    def __add__(self, other: object) -> ZooKeeperCounters:
        if not isinstance(other, ZooKeeperCounters):
            return NotImplemented
        return ZooKeeperCounters(*(one + more for one, more in zip(self, other, strict=True)))


def parse_mntr(answer: str) -> dict[str, float]:
    """The numeric counters in an answer to `mntr`, without their prefix `zk_`."""
    found = {}
    for line in answer.splitlines():
        name, _, value = line.partition("\t")
        with suppress(ValueError):
            found[name.removeprefix("zk_")] = float(value)
    return found


def read_counters(mntr: Mapping[str, float]) -> ZooKeeperCounters:
    """Take them from the lines of `mntr`, whose names come without their prefix `zk_`.

    Raises:
        MusterError: the server is too old to count them.
    """
    if "cnt_updatelatency" not in mntr:
        raise MusterError("this ZooKeeper does not count reads and writes: `mntr` of 3.6 or newer does, if allowed")
    reads = sum(count for name, count in mntr.items() if name.startswith("cnt_") and name.endswith(_READS))
    watches = sum(mntr.get(f"sum_node_{kind}_watch_count", 0) for kind in _WATCHES)
    return ZooKeeperCounters(
        int(reads), int(mntr["cnt_updatelatency"]), int(watches), int(mntr.get("packets_received", 0))
    )
