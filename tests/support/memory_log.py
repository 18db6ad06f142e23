"""A partition's log in memory: the part that the coordinator needs, with a high watermark and failures on request."""

from dataclasses import dataclass
from typing import Any

from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.record_batch import PREFIX, iter_headers


def assign_offset(buffer: bytearray, position: int, base_offset: int, leader_epoch: int) -> None:
    """Patch a batch's base offset and leader epoch, which the CRC does not cover, in place."""
    length = PREFIX.unpack_from(buffer, position)[1]
    PREFIX.pack_into(buffer, position, base_offset, length, leader_epoch)


@dataclass
class Read:
    data: bytes
    next_offset: int


@dataclass
class Appended:
    last_offset: int


class MemoryLog:
    """`held` keeps the high watermark back, like a log that is not synced yet."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.appends = 0
        self.held = False
        self.fails = False
        self.failed: Exception | None = None
        self._durable = 0

    @property
    def high_watermark(self) -> int:
        return self._durable if self.held else self.log_end_offset

    def hold(self) -> None:
        self._durable, self.held = self.log_end_offset, True

    def sync(self) -> None:
        self._durable = self.log_end_offset

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "client") -> Appended:
        if self.fails:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
        for position, header in iter_headers(batches):
            assign_offset(batches, position, self.log_end_offset, leader_epoch)
            self.batches.append((self.log_end_offset, bytes(batches[position : position + header.size])))
            self.log_end_offset += header.record_count
        self.appends += 1
        return Appended(self.log_end_offset - 1)

    def read(self, offset: int, max_bytes: int) -> Read:
        """One batch at a time: readers must continue from `next_offset`."""
        for at, (base, data) in enumerate(self.batches):
            end = self.batches[at + 1][0] if at + 1 < len(self.batches) else self.log_end_offset
            if base <= offset < end:
                return Read(data, end)
        return Read(b"", offset)
