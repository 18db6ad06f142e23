"""The memory of a consumer does not grow with its rebalances."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest

from muster import Consumer
from tests.support.faces import until
from tests.support.numbered_records import World

WARM, MORE = 4, 12


def held(root: object) -> Counter[str]:
    """How many elements the containers reachable from an object have, by the attributes that lead to them."""
    counts = Counter[str]()
    seen: set[int] = set()
    left: deque[tuple[str, Any]] = deque([(type(root).__name__, root)])
    while left:
        path, found = left.popleft()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, dict | list | set | tuple | deque):
            counts[path] += len(found)
            left += [(path, one) for one in (found.values() if isinstance(found, dict) else found)]
        elif type(found).__module__.startswith("muster."):
            names = [*getattr(found, "__dict__", ())]
            names += [name for cls in type(found).__mro__ for name in getattr(cls, "__slots__", ())]
            left += [(f"{type(found).__name__}.{name}", getattr(found, name, None)) for name in names]
    return counts


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_no_structure_of_a_consumer_grows_with_rebalances(world: World, strategy: str) -> None:
    """Partitions are revoked and assigned with records that iteration has not reached."""
    counts: list[Counter[str]] = []
    settings = world.settings | {"enable_auto_commit": False, "partition_assignment_strategy": strategy}
    with Consumer(**settings) as consumer:
        consumer.subscribe([world.topic])
        for number in range(WARM + MORE):
            next(consumer)
            before = consumer.group_metadata().generation_id
            if strategy == "range":
                consumer.enforce_rebalance()
            else:
                consumer.unsubscribe()
                consumer.subscribe([world.topic])

            until(
                lambda before=before: (
                    consumer.group_metadata().generation_id not in (-1, before)  # type: ignore[misc]
                    and bool(consumer.assignment())
                ),
                lambda: next(consumer),
            )
            if number >= WARM - 1:
                counts.append(held(consumer._consumer))
    grown = {path: (counts[0][path], size) for path, size in counts[-1].items() if size - counts[0][path] >= MORE / 2}
    assert not grown
    assert "Handout._runs" in counts[0]
