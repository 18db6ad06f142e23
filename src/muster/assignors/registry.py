"""The built-in assignors by name, and what a consumer's `partition_assignment_strategy` may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from muster.assignors.base import Assignor, RebalanceProtocol
from muster.assignors.range import RangeAssignor
from muster.assignors.roundrobin import RoundRobinAssignor
from muster.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from muster.errors import ConfigError

BUILTIN: Mapping[str, type[Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
    }
)


def get_assignor(name: str) -> Assignor:
    """A new instance of a built-in assignor: one for each consumer, since the sticky ones keep state.

    Raises:
        ConfigError: there is no built-in assignor of that name.
    """
    if name not in BUILTIN:
        raise ConfigError(
            f"no assignor is called {name!r}: choose from {', '.join(BUILTIN)}, or pass your own Assignor"
        )
    return BUILTIN[name]()


def get_assignors(strategies: Sequence[str | Assignor | type[Assignor]]) -> list[Assignor]:
    """Turn a consumer's strategies, the preferred first, into instances: built-in names, own classes or instances.

    Raises:
        ConfigError: the list is empty, a name is unknown or given twice, or an entry is not an assignor.
    """
    if isinstance(strategies, str):
        raise ConfigError(f"partition_assignment_strategy is a list: write [{strategies!r}]")
    assignors = [_instance(strategy) for strategy in strategies]
    names = [assignor.name for assignor in assignors]
    if not names:
        raise ConfigError("partition_assignment_strategy is empty: name at least one assignor")
    if len(set(names)) < len(names):
        raise ConfigError(f"partition_assignment_strategy names an assignor twice: {', '.join(names)}")
    return assignors


def _instance(strategy: str | Assignor | type[Assignor]) -> Assignor:
    if isinstance(strategy, str):
        return get_assignor(strategy)
    if isinstance(strategy, type) and issubclass(strategy, Assignor):
        return strategy()
    if isinstance(strategy, Assignor):
        return strategy
    raise ConfigError(f"{strategy!r} is not an assignor: derive your class from muster.assignors.Assignor")


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The best rebalance protocol that all of a consumer's assignors support (KIP-429).

    A group that moves from eager to cooperative names both kinds during one rolling restart: until the restart is
    complete, the group is eager.

    Raises:
        ConfigError: they have none in common.
    """
    common = set.intersection(*(set(assignor.protocols) for assignor in assignors))
    if not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ConfigError(f"the assignors {names} have no rebalance protocol in common")
    return max(common)
