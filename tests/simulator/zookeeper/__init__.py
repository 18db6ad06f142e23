"""An in-memory ZooKeeper on the virtual clock, checked against a real one (tests/oracle/test_zookeeper.py).

`SimZooKeeper` is the ensemble, `SimSession` a client's session; both are made for rules that are plans
(`muster.zookeeper.base.operations`). A server applies the leader's decisions some time later, in the same order; a
session reads from the one server to which it is connected, and the answer to its write comes when that server has it.
So two sessions may see different states at one moment, as with real ZooKeeper.
"""

from __future__ import annotations

from tests.simulator.zookeeper.ensemble import BOTH_WAYS, SimZooKeeper
from tests.simulator.zookeeper.server import TO_CLIENT, TO_SERVER, ZooKeeperCounts
from tests.simulator.zookeeper.session import Running, SimSession
from tests.simulator.zookeeper.tree import Tree

__all__ = ["BOTH_WAYS", "TO_CLIENT", "TO_SERVER", "Running", "SimSession", "SimZooKeeper", "Tree", "ZooKeeperCounts"]
