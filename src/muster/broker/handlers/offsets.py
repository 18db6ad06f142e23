"""OffsetCommit (8) and OffsetFetch (9): passed to the coordinator; a request with very many partitions in parts.

Other connections are served between two parts; the request's own connection waits. A commit is answered when all its
parts are durable. Each part is one batch of the log, so after a crash the log may hold some parts of a large commit
that was never answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from muster.broker.groups.service import Groups
from muster.broker.handlers.coordinators import group_request, submit
from muster.broker.net.calls import Call, Fast, Sliced
from muster.coordinator.parts import Gather
from muster.protocol import codec, framing
from muster.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.protocol.primitives import TooManyElementsError

SHARE = 1_000
"""The maximum number of partitions passed to the coordinator in one call."""

_GROUPS_SINCE = 8


class Shares:
    """The topics of a request in shares of at most `SHARE` partitions; a topic's flag says whether it continues one of
    the previous share."""

    def __init__(self, topics: list[Any] | None, partitions: str) -> None:
        self._partitions = partitions
        self.shares: list[list[tuple[Any, bool]]] = []
        room = 0
        for topic in topics or ():
            indexes, start = getattr(topic, partitions), 0
            while not start or start < len(indexes):
                if room <= 0:
                    self.shares.append([])
                    room = SHARE
                piece = topic.copy()
                setattr(piece, partitions, indexes[start : start + room])
                self.shares[-1].append((piece, start > 0))
                taken = max(min(room, len(indexes) - start), 1)  # a topic without partitions counts as well
                start, room = start + taken, room - taken

    def parts(self, whole: Any) -> list[Any]:
        """The request (or one group of it) once for each share; the request itself if one share is enough."""
        if len(self.shares) <= 1:
            return [whole]
        parts = [whole.copy() for _ in self.shares]
        for part, share in zip(parts, self.shares, strict=True):
            part.topics = [topic for topic, _ in share]
        return parts

    def joined(self, answers: list[Any]) -> Any:
        """Join the answers to the parts into one. If a whole part failed, its error is the answer, without topics."""
        whole = next((each for each in answers if getattr(each, "error_code", 0)), answers[0])
        if len(answers) > 1 and whole.topics:
            topics: list[Any] = []
            for share, answer in zip(self.shares, answers, strict=True):
                left = deque(answer.topics)
                for piece, goes_on in share:
                    if not getattr(piece, self._partitions) and (not left or left[0].partitions):
                        continue  # a commit for none of a topic's partitions is not answered
                    if goes_on:
                        topics[-1].partitions += left.popleft().partitions
                    else:
                        topics.append(left.popleft())
            whole.topics = topics
        return whole


def offset_commit(groups: Groups, request: OffsetCommitRequest, call: Call) -> Sliced | None:
    """Commit offsets."""
    partitions = 0
    for topic in request.topics:
        partitions += len(topic.partitions) + 1
    if partitions <= SHARE:
        submit(groups, request, call, call.reply)
        return None
    shared = Shares(request.topics, "partitions")

    def reply(answers: list[OffsetCommitResponse]) -> None:
        call.reply(shared.joined(answers))

    return _ask(groups, shared.parts(request), call, reply)


def offset_fetch(groups: Groups, request: OffsetFetchRequest, call: Call) -> Sliced | None:
    """Look up committed offsets."""
    requests = [request] if call.version < _GROUPS_SINCE else request.groups
    if sum(len(topic.partition_indexes) + 1 for each in requests for topic in each.topics or ()) <= SHARE:
        group_request(groups, request, call)
        return None
    if call.version < _GROUPS_SINCE:
        shared = Shares(request.topics, "partition_indexes")
        return _ask(groups, shared.parts(request), call, lambda answers: call.reply(shared.joined(answers)))
    shares = [Shares(group.topics, "partition_indexes") for group in request.groups]
    requested = [of.parts(group) for of, group in zip(shares, request.groups, strict=True)]
    parts = [
        OffsetFetchRequest(groups=[part], require_stable=request.require_stable) for some in requested for part in some
    ]

    def reply(answers: list[OffsetFetchResponse]) -> None:
        left = iter([answer.groups[0] for answer in answers])
        found = [of.joined([next(left) for _ in some]) for of, some in zip(shares, requested, strict=True)]
        call.reply(OffsetFetchResponse(groups=found))

    return _ask(groups, parts, call, reply)


_FEW = 64
"""The maximum number of elements in a request on the fast path."""


def fast_offset_fetch(groups: Groups) -> Fast:
    """The fast path for looking up a few offsets, given frame, position of the body, version and correlation id. None
    if the answer must wait for the log, or the request is too large."""
    fetch_if_durable, may_serve = groups.runtime.fetch_if_durable, groups.may_serve

    def answer(frame: bytes, position: int, version: int, correlation_id: int) -> bytes | None:
        if version < _GROUPS_SINCE or not groups.serving or (may_serve is not None and not may_serve()):
            return None
        try:
            request = codec.decode(OffsetFetchRequest, version, frame, position, _FEW)
        except TooManyElementsError:
            return None
        for group in request.groups:
            if group.topics is None:
                return None
        response = fetch_if_durable(request.groups, version, request.require_stable)
        if response is None:
            return None
        return b"".join(framing.encode_response(response, OffsetFetchRequest, version, correlation_id))

    return answer


def _ask(groups: Groups, parts: list[Any], call: Call, reply: Callable[[list[Any]], None]) -> Sliced:
    """Ask the coordinator for one part after the other; call `reply` with all answers, in order, after the last."""
    gather = Gather(len(parts), reply)
    for number, part in enumerate(parts):
        submit(groups, part, call, gather.part(number))
        yield
    return None
