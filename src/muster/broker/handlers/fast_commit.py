"""The fast path for an OffsetCommit: a few partitions of one topic, without metadata, as sent by consumers.

Only decoding and encoding are faster. The first bytes of a request contain the sender, its generation and its topic,
and are the same each time: they are decoded once. The coordinator's shard decides by the same rules as on the general
path (offsets.py) whether the commit is allowed and what it writes. Unusual and refused commits take the general path.

The answer is built in advance, and sent once the log has the records.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from muster.broker.groups.service import Groups
from muster.broker.net.calls import Call, Short
from muster.coordinator.groups.offsets import TOPIC_IDS_SINCE
from muster.errors import MusterError
from muster.protocol import codec
from muster.protocol.messages import OffsetCommitRequest, OffsetCommitRequestPartition
from muster.protocol.primitives import ZERO_UUID

MOST_PARTITIONS = 32
"""A connection may get 64 requests answered this way between two checks of the clock, so they must be cheap."""
MOST_KNOWN = 4_096
"""Senders whose first bytes are known."""

_ONE = 2
"""The length of an array with one element, as the codecs write it."""
_EMPTY, _NULL = 0x100, 0
"""The last two bytes of a partition in a request: the length of a string that is empty, or null; no tags. Both stand
for no metadata (offsets.py)."""
_PARTITION = 18
_NO_TAGS = bytes(2)
_ANSWER = Struct(">iib")


class Sender:
    """The decoded first bytes of a request, up to its partitions; and the answer for its last partitions."""

    __slots__ = ("_answer", "_begins", "partitions", "request")

    def __init__(self, request: OffsetCommitRequest, begins: bytes) -> None:
        self.request = request
        """The request without its partitions."""
        self._begins = begins
        """The first bytes of an answer, up to its partitions."""
        self.partitions: tuple[int, ...] = ()
        """Its last partitions: waiting answers share them."""
        self._answer = b""

    def answer(self, partitions: tuple[int, ...], correlation_id: int) -> bytes:
        """The answer to a successful commit. A member keeps its partitions for a whole generation."""
        if partitions != self.partitions:
            self.partitions = partitions
            self._answer = self._begins + _answers(len(partitions)).pack(*partitions)
        return _ANSWER.pack(5 + len(self._answer), correlation_id, 0) + self._answer


def _sender(version: int, head: bytes, count: int) -> Sender | None:
    """What these bytes say, if partitions follow them directly."""
    # Numbers that appear nowhere else in the request.
    sample = [
        OffsetCommitRequestPartition(0x01020304 + index, 0x05060708090A0B0C, 0x0D0E0F10) for index in range(count)
    ]
    numbers = [(each.partition_index, each.committed_offset, each.committed_leader_epoch, _EMPTY) for each in sample]
    whole = head + _partitions(count).pack(*[number for each in numbers for number in each]) + _NO_TAGS
    try:
        request = codec.decode(OffsetCommitRequest, version, whole)
    except MusterError:
        return None
    if len(request.topics) != 1 or request.topics[0].partitions != sample:
        return None
    topic = request.topics[0]
    topic.partitions = []
    named = len(head) - 1 - (len(ZERO_UUID) if version >= TOPIC_IDS_SINCE else len(topic.name.encode()) + 1)
    return Sender(request, bytes((0, 0, 0, 0, _ONE)) + head[named:])


def _learn(known: dict[tuple[int, bytes], Sender], key: tuple[int, bytes], count: int) -> Sender | None:
    sender = _sender(*key, count)
    if sender is not None:
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[key] = sender
    return sender


@lru_cache
def _partitions(count: int) -> Struct:
    return Struct(">" + "iqiH" * count)


@lru_cache
def _answers(count: int) -> Struct:
    """Partitions in an answer: no error, no tags."""
    return Struct(">" + "i3x" * count + "2x")


def fast_commit(groups: Groups) -> Short:
    """Handles a commit, given the frame, the position of the body and the call; False: it must take the general
    path."""
    known: dict[tuple[int, bytes], Sender] = {}
    commit, may_serve = groups.runtime.commit, groups.may_serve

    def decide(frame: bytes, position: int, call: Call) -> bool:
        version = call.version
        if version < OffsetCommitRequest.FIRST_FLEXIBLE_VERSION or not groups.serving:
            return False
        if may_serve is not None and not may_serve():
            return False
        try:
            at = position + frame[position] + 4
            at += frame[at]
            at += frame[at] or 1
            at += frame[at + 1] + 2 if version < TOPIC_IDS_SINCE else len(ZERO_UUID) + 2
            count = frame[at - 1] - 1
        except IndexError:
            return False
        if not 0 < count <= MOST_PARTITIONS or len(frame) != at + _PARTITION * count + 2 or frame[-2:] != _NO_TAGS:
            return False
        key = (version, frame[position:at])
        sender = known.get(key) or _learn(known, key, count)
        numbers = _partitions(count).unpack_from(frame, at)
        ends = numbers[3::4]
        if sender is None or (ends.count(_EMPTY) != count and ends.count(_NULL) != count):
            return False
        partitions = numbers[::4]
        call.ready = sender.answer(partitions, call.correlation_id)
        return commit(sender.request, version, sender.partitions, numbers[1::4], numbers[2::4], call.reply_ready)

    return decide
