"""Ids for idempotent producers (KIP-98): never given out twice, even after a crash or without the file that keeps them.

A log mistakes the records of a producer with another one's id for duplicates: it acknowledges them and writes nothing.
So three things keep ids apart, each for cases in which the others fail:
- the file holds the first id that no block has reserved yet. It is written before the first id of a block is given out,
  so a crash can only lose ids, as it does in Kafka;
- ids follow the wall-clock time, as those of a cluster do (`reserve_producer_ids`): a file that was deleted, cut short
  or replaced by an older copy does no harm;
- the logs' own producers, in case the clock has been set back as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from crc32c import crc32c

from muster.clock import wall_clock_ms
from muster.log import DISK, Files, write_whole

log = logging.getLogger("muster.broker")

FILE = "muster-producer-ids"
BLOCK = 1_000
_KEPT = re.compile(rb"next ([0-9]{1,19}) crc32c [0-9a-f]{8}\n")
_BARE = re.compile(rb"[0-9]{1,19}\s*")
"""The file as older releases wrote it."""
MOST_BELIEVED = 2**62
"""Clients may write any id into their batches. Ids from here on are ignored: continuing after the largest possible one
would leave none."""


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, folder: Path, files: Files = DISK, now: Callable[[], int] = wall_clock_ms) -> None:
        """`now` is the wall-clock time in milliseconds. Raises OSError."""
        self._path = folder / FILE
        self._files = files
        try:
            kept = self._path.read_bytes()
        except FileNotFoundError:
            kept = None
        reserved = 0 if kept is None else _decode(kept)
        self._problem = "is missing" if kept is None else "is damaged" if reserved is None else ""
        self._next = self._reserved = max(reserved or 0, now() * BLOCK)

    def pass_over(self, used: Iterable[int]) -> None:
        """Never assign these ids, which appear in logs, nor lower ones. Called once, before the first `take`."""
        highest = max((producer_id for producer_id in used if producer_id < MOST_BELIEVED), default=-1)
        if highest >= self._reserved:
            self._next = self._reserved = highest + 1 + BLOCK  # a block, for ids that no log has seen yet
        if self._problem and (highest >= 0 or self._problem == "is damaged"):
            log.warning(
                "%s %s: producer ids continue from %d, above all that were given out",
                self._path,
                self._problem,
                self._next,
            )

    def take(self) -> int:
        """A new id.

        Raises:
            OSError: the next block could not be reserved.
        """
        if self._next == self._reserved:
            write_whole(self._files, self._path, _encode(self._reserved + BLOCK))
            self._reserved += BLOCK
        self._next += 1
        return self._next - 1


def _encode(reserved: int) -> bytes:
    text = b"next %d" % reserved
    return b"%b crc32c %08x\n" % (text, crc32c(text))


def _decode(kept: bytes) -> int | None:
    """The number in the file, None if the file is damaged."""
    if _BARE.fullmatch(kept):
        return int(kept)
    found = _KEPT.fullmatch(kept)
    return int(found[1]) if found and kept == _encode(int(found[1])) else None
