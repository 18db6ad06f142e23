"""Ids for idempotent producers (KIP-98): never given twice, also after a crash.

Ids are reserved in blocks. The file holds the first id that no block has reserved yet; it is written before the first
id of a block is given out, so a crash can only lose ids, as it does in Kafka.
"""

from __future__ import annotations

from pathlib import Path

from muster.errors import ConfigError
from muster.log import DISK, Files, write_whole

FILE = "muster-producer-ids"
BLOCK = 1_000


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, folder: Path, files: Files = DISK) -> None:
        self._path = folder / FILE
        self._files = files
        try:
            text = self._path.read_bytes().strip()
        except FileNotFoundError:
            text = b"0"
        if not text.isdigit():
            raise ConfigError(f"{self._path} holds no number")
        self._next = self._reserved = int(text)

    def take(self) -> int:
        """A new id.

        Raises:
            OSError: the next block could not be reserved.
        """
        if self._next == self._reserved:
            write_whole(self._files, self._path, str(self._reserved + BLOCK).encode())
            self._reserved += BLOCK
        self._next += 1
        return self._next - 1
