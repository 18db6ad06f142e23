"""A group with the coordinator's own rules, and the events that its broker writes about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import Effects
from muster.history.rules.event_rebalances import Label, labels
from tests.support.group_harness import GroupHarness


class Reported(GroupHarness):
    """A group, and what its broker has written about it."""

    def __init__(self, broker_id: int = 1) -> None:
        self.written: list[dict[str, Any]] = []
        super().__init__(GroupConfig(node_id=broker_id))

    def _take(self, effects: Effects) -> None:
        for event in effects.events:
            value = {"v": 1, "event": type(event).__name__, "at_ms": self.now, **asdict(event)}
            self.written.append(json.loads(json.dumps(value)))
        super()._take(effects)

    @property
    def labels(self) -> list[Label]:
        return labels(self.written)

    def moved_to(self, broker_id: int) -> Reported:
        self.config.node_id = broker_id
        self.restart()
        return self
