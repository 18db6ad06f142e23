"""The fast path for a Produce: one small batch for one partition, as sent by producers of single records.

Only decoding and encoding are faster: the request is read, and its answer written, without message objects. The
same rules as on the general path (produce.py) decide whether a batch may be written, and where. Anything unusual takes
the general path before anything is written: it decides again, and so reports why a batch is refused.

A connection may get 64 requests answered this way between two checks of the clock, so they must be cheap: no compressed
batches, and none with more than MOST_RECORDS.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from muster.broker.handlers.produce import ProduceNeeds, refused
from muster.broker.net.calls import Fast
from muster.clock import wall_clock_ms
from muster.errors import KafkaError
from muster.log import FsyncPolicy, PartitionLog
from muster.log.batches import validation
from muster.model import INTERNAL_TOPICS
from muster.protocol import framing
from muster.protocol.messages import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from muster.protocol.primitives import ZERO_UUID, long_uvarint
from muster.protocol.records.record_batch import COMPRESSION_MASK, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL_FLAG

MOST_RECORDS = 32
MOST_KNOWN = 1_000
"""Partitions whose requests are known by their first bytes."""

_BY_ID = 13
_START = Struct(">bhibb")
"""No transactional id, acks, timeout, one topic, bytes of its name or first byte of its id."""
_NAME = 8
_NO_ID, _ONE = 0, 2
"""A null string, and the length of an array with one element, as the codecs write them."""
_NO_TAGS = bytes(3)
_BATCH = Struct(">i4xbih34xi")
_UNUSUAL = COMPRESSION_MASK | TRANSACTIONAL_FLAG
_ANSWER = Struct(">iib")
_OFFSETS = Struct(">qqq")
_AFTER_OFFSETS = b"\x01\x00\x00\x00" + bytes(5)
"""No record errors, no message, no tags of partition and topic; no throttle time and no tags of the answer."""
_FIXED_BYTES = 5 + _OFFSETS.size + len(_AFTER_OFFSETS)
"""Bytes of an answer in addition to `Target.answer`."""


class Target(NamedTuple):
    """The decoded first bytes of a request, up to the batch: where it goes, and how its answer begins."""

    name: str
    topic_id: bytes
    partition: int
    log: PartitionLog
    answer: bytes


class Known:
    """The decoded first bytes of earlier requests, by these bytes: at most MOST_KNOWN."""

    __slots__ = ("_by_id", "_by_name", "_here")

    def __init__(self, here: ProduceNeeds) -> None:
        self._here = here
        self._by_name: dict[bytes, Target] = {}
        self._by_id: dict[bytes, Target] = {}

    def read(self, frame: bytes, position: int, version: int) -> tuple[Target, bytearray] | None:
        """A request's target and its batch. None if it is too large or not simple enough for the fast path."""
        if version < ProduceRequest.FIRST_FLEXIBLE_VERSION or len(frame) < position + _NAME + HEADER_SIZE:
            return None
        if frame[position] != _NO_ID:  # of a transaction
            return None
        known = self._by_name if version < _BY_ID else self._by_id
        at = position + _NAME + (frame[position + _NAME] if version < _BY_ID else len(ZERO_UUID)) + 5
        head = frame[position:at]
        target = known.get(head) or self._learn(known, head, version)
        if target is None or len(frame) < at + HEADER_SIZE:
            return None
        if self._here.partitions.get(target.name, target.partition) is not target.log:  # the topic was deleted
            del known[head]
            return None
        size = frame[at]
        at += 1
        if size > 127:
            size, at = long_uvarint(frame, at, size)
        if frame[at + size - 1 :] != _NO_TAGS or size <= HEADER_SIZE:
            return None
        batch = bytearray(memoryview(frame)[at:-3])
        length, magic, _, attributes, records = _BATCH.unpack_from(batch, 8)
        if length + LOG_OVERHEAD != len(batch) or magic != MAGIC or attributes & _UNUSUAL or records > MOST_RECORDS:
            return None
        return target, batch

    def _learn(self, known: dict[bytes, Target], head: bytes, version: int) -> Target | None:
        target = _target(self._here, head, version)
        if target is not None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[head] = target
        return target


def fast_produce(here: ProduceNeeds) -> Fast:
    """Answers a Produce, given frame, position of the body, version and correlation id; None: take the general path."""
    read, examine, appended_to = Known(here).read, validation.examine, here.fetches.appended

    def answer(frame: bytes, position: int, version: int, correlation_id: int) -> bytes | None:
        plain = read(frame, position, version)
        if plain is None:
            return None
        target, batch = plain
        log, said = target.log, target.answer
        if log.config.compression:  # the batch is not compressed
            return None
        now = wall_clock_ms()
        try:
            examined = examine(batch, log.config, now, "client", log.topic_partition)
        except Exception:  # the general path reports what is wrong
            return None
        try:
            appended = log.append(batch, now=now, examined=examined)
        except KafkaError as error:
            return _refusal(here, target, error, version, correlation_id)
        appended_to(target.name, target.partition, len(batch), appended.last_offset + 1)
        return b"".join(
            (
                _ANSWER.pack(len(said) + _FIXED_BYTES, correlation_id, 0),
                said,
                _OFFSETS.pack(appended.base_offset, appended.log_append_time, log.log_start_offset),
                _AFTER_OFFSETS,
            )
        )

    return answer


def _target(here: ProduceNeeds, head: bytes, version: int) -> Target | None:
    """The target of a request with these first bytes, if the fast path may serve it."""
    _, acks, _, topics, _ = _START.unpack_from(head)
    if acks not in (-1, 1) or topics != _ONE or head[-5] != _ONE:
        return None
    topic, topic_id = head[_NAME:-5], ZERO_UUID
    if version < _BY_ID:
        if topic[0] != len(topic):  # one that takes two bytes
            return None
        try:
            name = topic[1:].decode()
        except UnicodeDecodeError:
            return None
    else:
        topic_id = topic
        name = here.topics.topic_name(topic_id) or ""
    index = int.from_bytes(head[-4:], "big", signed=True)
    log = here.partitions.get(name, index)
    # With fsync=always an answer must wait, which an answer on the fast path cannot do.
    if log is None or name in INTERNAL_TOPICS or log.fsync is FsyncPolicy.ALWAYS:
        return None
    return Target(name, topic_id, index, log, b"\x02" + topic + b"\x02" + head[-4:] + b"\0\0")


def _refusal(here: ProduceNeeds, target: Target, error: KafkaError, version: int, correlation_id: int) -> bytes:
    result = PartitionProduceResponse(target.partition, base_offset=-1)
    refused(here, result, error, target.log, None)
    response = ProduceResponse([TopicProduceResponse(target.name, target.topic_id, [result])])
    return b"".join(framing.encode_response(response, ProduceRequest, version, correlation_id))
