"""Fetch (1): records from the log.

v5: log_start_offset. v7: sessions (KIP-227). v9: the leader epoch that the reader knows. v12: flexible. v13: topic ids
instead of names. v15: replica_state. v16: node_endpoints. v18: high_watermark of followers.

log_reads.py reads the records; a fetch that gets too few records waits in fetches.py. Work on every partition is a
generator; a fetch of very many partitions is handled a slice at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import NamedTuple

from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.net.intake import TimerLoop
from muster.broker.topics import fetches
from muster.broker.topics.fetch_sessions import SLICE, FetchPlan, FetchSessions
from muster.broker.topics.fetches import ParkedFetch, ParkedFetches
from muster.broker.topics.log_reads import LogReader, Result
from muster.clock import wall_clock_ms
from muster.protocol.api import READ_COMMITTED
from muster.protocol.messages import FetchableTopicResponse, FetchRequest, FetchResponse

_TOPIC_IDS_SINCE = 13
_LEADERS_SINCE = 16


class FetchNeeds(NamedTuple):
    """The parts of the broker that Fetch uses."""

    sessions: FetchSessions
    reader: LogReader
    fetches: ParkedFetches
    loop: TimerLoop


def fetch(here: FetchNeeds, request: FetchRequest, call: Call) -> FetchResponse | Sliced | None:
    """Answer with the available records, or park the request."""
    steps = _fetch(here, request, call)
    return steps if here.sessions.size(request) > fetches.MANY else at_once(steps)


def _fetch(here: FetchNeeds, request: FetchRequest, call: Call) -> Generator[None, None, FetchResponse | None]:
    plan = yield from here.sessions.plan(request, call.version >= _TOPIC_IDS_SINCE, wall_clock_ms())
    if plan.error:
        return FetchResponse(error_code=plan.error)
    results, size, failed = yield from here.reader.read(plan, request)
    if size >= request.min_bytes or request.max_wait_ms <= 0 or failed:
        return (yield from _answer(here, plan, results, call.version, failed))
    # Among very many partitions, one that was read a few slices ago may have grown since. Its new records then wait
    # until the fetch's timeout.
    again = partial(_read_again, here, plan, request, call.version)
    measures = request.isolation_level == READ_COMMITTED and any(
        data.last_stable_offset < data.high_watermark for _, data in results
    )
    waiting = ParkedFetch(here.reader, request, plan, call, request.min_bytes - size, again, measures)
    if here.fetches.park(waiting, here.loop):
        if size:
            here.reader.not_sent(results)
        return None
    return (yield from _answer(here, plan, results, call.version, failed))


def _read_again(
    here: FetchNeeds, plan: FetchPlan, request: FetchRequest, version: int
) -> Generator[None, None, FetchResponse]:
    """The records available at the end of the wait."""
    results, _, failed = yield from here.reader.read(plan, request)
    return (yield from _answer(here, plan, results, version, failed))


def _answer(
    here: FetchNeeds, plan: FetchPlan, results: list[Result], version: int, failed: bool
) -> Generator[None, None, FetchResponse]:
    settling = here.sessions.settle(plan, results, version >= _TOPIC_IDS_SINCE, wall_clock_ms())
    session_id, changed = yield from settling
    response = FetchResponse(session_id=session_id)
    if failed and version >= _LEADERS_SINCE:
        here.reader.add_leader_hints(changed, response)
    last: FetchableTopicResponse | None = None
    for count, (partition, data) in enumerate(changed, 1):
        if last is None or last.topic != partition.topic or last.topic_id != partition.topic_id:
            last = FetchableTopicResponse(partition.topic, partition.topic_id)
            response.responses.append(last)
        last.partitions.append(data)
        if not count % SLICE:
            yield
    return response
