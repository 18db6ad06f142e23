"""The fast path of OffsetFetch answers like the general path, and declines while it would have to wait for the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.broker.handlers.offsets import fast_offset_fetch
from muster.protocol import codec, framing
from muster.protocol import messages as m
from tests.support.group_harness import FakeTopics
from tests.support.runtime_broker import Broker

IDS = FakeTopics()
NAMES = st.sampled_from(["t", "t", "u", "none", ""])
TOPICS = st.lists(st.tuples(NAMES, st.lists(st.sampled_from([0, 1, 3, 4, -1]), max_size=4)), max_size=3)
GROUPS = st.lists(st.tuples(st.sampled_from(["g", "h", "none", ""]), TOPICS | st.none()), max_size=3)


def look_up(version: int, groups: list[tuple[str, Any]]) -> m.OffsetFetchRequest:
    def topic(name: str, indexes: list[int]) -> m.OffsetFetchRequestTopics:
        named = IDS.topic_id(name) if version >= 10 else bytes(16)
        return m.OffsetFetchRequestTopics(name, named, indexes)

    asked = [
        m.OffsetFetchRequestGroup(group_id, topics=None if topics is None else [topic(*each) for each in topics])
        for group_id, topics in groups
    ]
    return m.OffsetFetchRequest(groups=asked)


def short(broker: Broker, request: m.OffsetFetchRequest, version: int) -> bytes | None:
    groups: Any = SimpleNamespace(serving=True, may_serve=None, runtime=broker.runtime)
    return fast_offset_fetch(groups)(codec.encode(request, version), 0, version, 77)


def committed() -> Broker:
    broker = Broker().loaded()
    for group_id, offset in (("g", 5), ("h", 6)):
        for partition in (0, 3):
            broker.commit(group_id, offset, partition)
    broker.send(
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group, topics=None) for group in ("none", "")]), 8
    )
    broker.turn()
    return broker


@given(st.sampled_from([8, 9, 10]), GROUPS)
def test_the_short_way_says_what_the_general_way_says(version: int, groups: list[tuple[str, Any]]) -> None:
    broker = committed()
    request = look_up(version, groups)
    [answer] = broker.send(request, version)
    said = short(broker, request, version)
    if any(topics is None for _, topics in groups):
        assert said is None
    else:
        assert said == b"".join(framing.encode_response(answer, m.OffsetFetchRequest, version, 77))


@pytest.mark.parametrize("version", [8, 9, 10])
def test_an_answer_that_must_wait_is_not_given(version: int) -> None:
    broker = committed()
    request = look_up(version, [("h", [("t", [0])]), ("g", [("t", [0])])])
    before = short(broker, request, version)
    assert before is not None
    broker.commit("g", 9)
    assert short(broker, request, version) is None, "the commit is not written"
    broker.log_of("g").hold()
    broker.turn()
    assert short(broker, request, version) is None, "it is not durable"
    broker.log_of("g").sync()
    broker.runtime.release_durable()
    assert short(broker, request, version) not in (None, before)
    broker.runtime.unload(broker.runtime.partition_for("h"))
    assert short(broker, request, version) is None


def test_many_partitions_are_looked_up_on_the_general_way() -> None:
    broker = committed()
    assert short(broker, look_up(9, [("g", [("t", [0] * 50)])]), 9) is not None
    assert short(broker, look_up(9, [("g", [("t", [0] * 100)])]), 9) is None
    assert short(broker, look_up(9, [("g", None)]), 9) is None
