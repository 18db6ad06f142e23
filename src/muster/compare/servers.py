"""The servers of a comparison: what the workload needs of ZooKeeper and the brokers."""

from __future__ import annotations

from typing import Protocol

from muster.compare.counters import Counters


class Servers(Protocol):
    """ZooKeeper and brokers that serve. Those that may be stopped keep addresses and data."""

    brokers: int
    """How many are registered in ZooKeeper."""
    broker_stops: bool
    zookeeper_stops: bool

    @property
    def zookeeper(self) -> str:
        """HOST:PORT/chroot."""

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses."""

    async def counters(self) -> Counters:
        """What ZooKeeper has counted so far."""

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, with its partitions on all brokers."""

    async def stop_broker(self, spared: int) -> None:
        """Stop one of the brokers, but not the one with the id `spared` (-1: any)."""

    async def start_broker(self) -> None:
        """Have it back."""

    async def stop_zookeeper(self) -> None:
        """Kill ZooKeeper."""

    async def start_zookeeper(self) -> None:
        """Have it back."""
