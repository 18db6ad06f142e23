"""The level of `transaction.version`, the same for all brokers of a cluster. As in Kafka, the cluster has one level:
with several, the epoch of a transaction would depend on which broker is asked.

The first broker that starts chooses it. Any broker may change it: each write checks that the level is unchanged since
it was read. All brokers watch the znode (`ClusterImage.transaction_version`).
"""

from __future__ import annotations

from collections.abc import Callable

from muster.errors import ConfigError
from muster.zookeeper.base.operations import (
    BadVersionError,
    GetData,
    NoNodeError,
    Plan,
    SetData,
    Sync,
    ZooKeeperError,
    ask,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import TRANSACTION_VERSION, read_transaction_version
from muster.zookeeper.cluster.slots import agree_on

TRIES = 20
"""Several brokers may change it at the same time."""


def agree_on_transaction_version(level: int, oldest: int, newest: int) -> Plan[int]:
    """The level that all brokers have: `level`, if this one is the first of them.

    Raises:
        ConfigError: this program does not know the cluster's level.
    """
    found = yield from agree_on(TRANSACTION_VERSION, b"%d" % level)
    if found not in [b"%d" % known for known in range(oldest, newest + 1)]:
        there = found.decode(errors="replace")
        raise ConfigError(
            f"{TRANSACTION_VERSION} in ZooKeeper says that this cluster has level {there!r} of transaction.version: "
            f"this version of muster knows {oldest} to {newest}"
        )
    return int(found)


def change_transaction_version(present: int, change: Callable[[int], int | None]) -> Plan[int]:
    """Change the level; returns its epoch. `change` receives the level and returns the new one, or None to write
    nothing; what it raises ends the plan. `present` is this broker's level: it counts as the cluster's if the znode was
    deleted.

    Raises:
        ZooKeeperError: it could not be written.
    """
    for _ in range(TRIES):
        yield from ask(Sync(TRANSACTION_VERSION))
        yield from agree_on(TRANSACTION_VERSION, b"%d" % present)
        try:
            data, stat = yield from ask(GetData(TRANSACTION_VERSION))
            found = read_transaction_version(data)
            if isinstance(found, Unreadable):
                raise ZooKeeperError(TRANSACTION_VERSION, str(found))
            level = change(found)
            if level is None:
                return stat.version
            return (yield from ask(SetData(TRANSACTION_VERSION, b"%d" % level, stat.version))).version
        except (BadVersionError, NoNodeError):
            continue
    raise ZooKeeperError(TRANSACTION_VERSION, "other brokers keep changing it: try again")
