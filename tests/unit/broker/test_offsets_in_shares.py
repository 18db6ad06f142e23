"""Commits and lookups of very many partitions are handled a share at a time, and answered like those of few."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.handlers.offsets import SHARE
from muster.broker.topics.catalogue import TopicToCreate
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support import brokers
from tests.support.brokers import RawClient

TOPICS = {"a": 700, "b": 2 * SHARE + 400, "c": 0, "d": 1}
"""The topics of the requests, with the number of partitions of each. A share begins in the middle of a topic; one has
none."""
EXIST = 2 * SHARE
"""At most this many of the partitions exist."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data", {"offsets.topic.num.partitions": 1}) as found:
        found.changes.create_topics([TopicToCreate(name, min(size, EXIST) or 1, {}) for name, size in TOPICS.items()])
        yield found


def commit(group_id: str = "g", **fields: Any) -> m.OffsetCommitRequest:
    def topic(name: str, partitions: int) -> m.OffsetCommitRequestTopic:
        offsets = [m.OffsetCommitRequestPartition(index, 10 + index, -1, name) for index in range(partitions)]
        return m.OffsetCommitRequestTopic(name, partitions=offsets)

    return m.OffsetCommitRequest(group_id, topics=[topic(*each) for each in TOPICS.items()], **fields)


def look_up(version: int) -> m.OffsetFetchRequest:
    if version < 8:
        return m.OffsetFetchRequest(
            "g", [m.OffsetFetchRequestTopic(n, list(range(size))) for n, size in TOPICS.items()]
        )
    topics = [m.OffsetFetchRequestTopics(name, partition_indexes=list(range(size))) for name, size in TOPICS.items()]
    groups = [m.OffsetFetchRequestGroup("none", topics=topics[-1:]), m.OffsetFetchRequestGroup("g", topics=topics)]
    return m.OffsetFetchRequest(groups=[*groups, m.OffsetFetchRequestGroup("none", topics=None)])


def counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each call of the coordinator has."""
    seen: list[int] = []
    submit = broker.groups.runtime.submit

    def note(request: Any, *rest: Any) -> None:
        for each in getattr(request, "groups", None) or [request]:
            field = "partitions" if isinstance(request, m.OffsetCommitRequest) else "partition_indexes"
            seen.append(sum(len(getattr(topic, field)) for topic in each.topics or ()))
        submit(request, *rest)

    monkeypatch.setattr(broker.groups.runtime, "submit", note)
    return seen


async def ask(broker: Broker, request: Any, version: int) -> Any:
    with RawClient(broker.bootstrap) as client:
        return await brokers.in_thread(client.ask, request, version)


@pytest.mark.parametrize("version", [5, 8, 9])
async def test_all_is_committed_and_found(broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(broker, monkeypatch)
    request = commit()
    # A topic that does not exist is answered without one.
    request.topics.insert(2, m.OffsetCommitRequestTopic("nowhere"))
    answer = await ask(broker, request, version)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reported = [(topic.name, [(p.partition_index, p.error_code) for p in topic.partitions]) for topic in answer.topics]
    right = [
        (name, [(index, 0 if index < EXIST else missing) for index in range(size)])
        for name, size in {"a": TOPICS["a"], "b": TOPICS["b"], "nowhere": 0, "d": TOPICS["d"]}.items()
    ]
    same = reported == right  # pytest takes minutes to show how such lists differ
    assert same
    assert max(seen) <= SHARE
    assert sum(seen) == sum(TOPICS.values())
    seen.clear()
    answer = await ask(broker, look_up(version), version)
    assert max(seen) <= SHARE
    found = answer.topics
    if version >= 8:
        none, group, all_of_none = answer.groups
        assert [none.group_id, group.group_id, all_of_none.group_id] == ["none", "g", "none"]
        assert [(p.partition_index, p.committed_offset) for t in none.topics for p in t.partitions] == [(0, -1)]
        found = group.topics
    offsets = [(topic.name, [(p.committed_offset, p.metadata) for p in topic.partitions]) for topic in found]
    same = offsets == [
        (name, [(10 + index, name) if index < EXIST else (-1, "") for index in range(size)])
        for name, size in TOPICS.items()
    ]
    assert same


@pytest.mark.parametrize("version", [1, 2, 7, 8])
async def test_a_coordinator_that_is_away_is_reported_for_the_whole(broker: Broker, version: int) -> None:
    assert broker.groups.ensure()
    broker.groups.runtime.unload_all()
    answer = await ask(broker, look_up(version), version)
    away = ErrorCode.NOT_COORDINATOR
    if version == 1:
        assert [(t.name, len(t.partitions)) for t in answer.topics] == list(TOPICS.items())
        assert {p.error_code for t in answer.topics for p in t.partitions} == {away}
    elif version < 8:
        assert (answer.error_code, answer.topics) == (away, [])
    else:
        assert [(group.error_code, group.topics) for group in answer.groups] == [(away, [])] * 3
    answer = await ask(broker, commit(), 8)
    assert {p.error_code for t in answer.topics for p in t.partitions} == {away}
    assert [(t.name, len(t.partitions)) for t in answer.topics] == list(TOPICS.items())


async def test_what_comes_after_a_large_commit_is_handled_after_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection; other connections are served in between."""
    order: list[str] = []
    submit = broker.groups.runtime.submit
    partition = m.OffsetCommitRequestPartition(0, 1, -1, "with metadata, so not on the short way: `submit` sees it")
    topics = [m.OffsetCommitRequestTopic("a", partitions=[partition])]
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:

        def note(request: Any, *rest: Any) -> None:
            if not order:  # in the middle of the large commit
                other.send(m.OffsetCommitRequest("other", topics=topics), 8)
            order.append(request.group_id)
            submit(request, *rest)

        await brokers.in_thread(other.ask, m.ApiVersionsRequest(), 0)
        monkeypatch.setattr(broker.groups.runtime, "submit", note)
        broker._server.slices._clock = count().__next__  # each reading of the clock is the end of a slice
        client.send(commit(), 8)
        client.send(m.OffsetCommitRequest("behind", topics=topics), 8)
        for peer in (client, client, other):
            await brokers.in_thread(peer.receive, m.OffsetCommitRequest, 8)
    assert [group for group in order if group != "other"] == ["g"] * 4 + ["behind"]
    assert order.index("other") < 4, "it did not wait for the end of the large commit"


@pytest.mark.parametrize("version", [7, 8])
async def test_a_coordinator_that_goes_away_between_two_shares_is_reported_for_the_whole(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(broker, commit(), 8)
    seen = counted(broker, monkeypatch)
    submit = broker.groups.runtime.submit

    def lose(*arguments: Any) -> None:
        submit(*arguments)
        if len(seen) == 3:
            broker.groups.runtime.unload_all()

    monkeypatch.setattr(broker.groups.runtime, "submit", lose)
    answer = await ask(broker, look_up(version), version)
    whole = answer if version < 8 else answer.groups[1]
    assert (whole.error_code, whole.topics) == (ErrorCode.NOT_COORDINATOR, [])
