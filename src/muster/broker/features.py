"""The finalized features of a broker (KIP-584): their levels, which UpdateFeatures changes while the broker runs.

There is only one, `transaction.version`. A new folder has the level of the setting of that name; once it has been
changed, the level is kept in a file in the folder, with an epoch that grows with each change. Clients use the level
with the largest epoch that they have seen. In a cluster level and epoch are in ZooKeeper, the same for all brokers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from muster.broker.config import BrokerConfig
from muster.errors import ConfigError
from muster.log import DISK, Files, write_whole

log = logging.getLogger("muster.broker")

TRANSACTION_VERSION = "transaction.version"
SUPPORTED = {TRANSACTION_VERSION: (0, 2)}
"""The oldest and the newest level of each feature."""

Levels = Mapping[str, int]

FILE = "muster-features.json"
_EPOCH = "epoch"


class Features:
    """The levels, read from the folder; with `level_of_cluster`, that is the level of `transaction.version`.

    Raises:
        ConfigError: the file cannot be parsed.
    """

    def __init__(
        self, config: BrokerConfig, folder: Path, files: Files = DISK, level_of_cluster: int | None = None
    ) -> None:
        self.epoch = 0
        self.levels = {TRANSACTION_VERSION: config.integer(TRANSACTION_VERSION)}
        self.on_change: list[Callable[[], None]] = []
        self._path = folder / FILE
        self._files = files
        if level_of_cluster is not None:
            if config.is_set(TRANSACTION_VERSION) and level_of_cluster != self.levels[TRANSACTION_VERSION]:
                text = "%s=%d has no effect: the cluster has level %d, which its first broker has chosen"
                log.warning(text, TRANSACTION_VERSION, self.levels[TRANSACTION_VERSION], level_of_cluster)
            self.levels[TRANSACTION_VERSION] = level_of_cluster
            return
        try:
            self.epoch, kept = _read(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self._path} cannot be parsed: {error}; correct or remove the file") from None
        for name, level in kept.items():
            if config.is_set(name) and level != self.levels[name]:
                log.warning(
                    "%s=%d has no effect: its level is %d since it was updated; update it again, for example with "
                    "kafka-features.sh",
                    name,
                    self.levels[name],
                    level,
                )
        self.levels |= kept

    def put(self, levels: Levels) -> None:
        """Change levels; durable when this returns. Raises OSError; then nothing has changed."""
        levels = {**self.levels, **levels}
        content = {_EPOCH: self.epoch + 1, **levels}
        write_whole(self._files, self._path, f"{json.dumps(content, indent=1)}\n".encode())
        self._become(levels, self.epoch + 1)

    def follow(self, level: int, epoch: int) -> None:
        """Adopt the cluster's level of `transaction.version`."""
        oldest, newest = SUPPORTED[TRANSACTION_VERSION]
        if not oldest <= level <= newest:
            text = "the cluster has level %d of %s, which this version does not support: it keeps level %d"
            log.error(text, level, TRANSACTION_VERSION, self.levels[TRANSACTION_VERSION])
            level = self.levels[TRANSACTION_VERSION]
        if (level, epoch) != (self.levels[TRANSACTION_VERSION], self.epoch):
            self._become({TRANSACTION_VERSION: level}, epoch)

    def _become(self, levels: Levels, epoch: int) -> None:
        self.epoch, self.levels = epoch, dict(levels)
        log.info("finalized features: %s, epoch %d", self.levels, epoch)
        for changed in self.on_change:
            changed()


def _read(content: object) -> tuple[int, dict[str, int]]:
    """The epoch and the levels in the file. Raises ValueError."""
    numbers = isinstance(content, dict) and all(type(each) is int for each in content.values())
    if not isinstance(content, dict) or not numbers or _EPOCH not in content:
        raise ValueError("an epoch and the level of each feature are expected")
    levels = {name: level for name, level in content.items() if name != _EPOCH}
    for name, level in levels.items():
        if name not in SUPPORTED or not SUPPORTED[name][0] <= level <= SUPPORTED[name][1]:
            raise ValueError(f"this version does not support level {level} of {name}")
    return content[_EPOCH], levels
