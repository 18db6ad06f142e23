"""Error responses to requests that were not handled: one error for the whole, or one for each part that was named."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey
from muster.protocol.definitions import schema
from muster.protocol.primitives import Struct
from muster.testing.rules.error_answers import READS, refusal, with_error
from muster.testing.rules.faults import APIS
from tests.support.random_messages import RandomRequests

ERROR = ErrorCode.NOT_COORDINATOR
WRITES = [APIS[name] for name in APIS if name not in READS]


def test_partitions_of_a_produce() -> None:
    data = [m.TopicProduceData("orders", b"\1" * 16, [m.PartitionProduceData(0), m.PartitionProduceData(7)])]
    answer = refusal(m.ProduceRequest(topic_data=data), ERROR)
    assert answer.responses[0].name == "orders"
    assert answer.responses[0].topic_id == b"\1" * 16
    assert [(p.index, p.error_code) for p in answer.responses[0].partition_responses] == [(0, ERROR), (7, ERROR)]


def test_partitions_of_a_fetch() -> None:
    topics = [m.FetchTopic("orders", b"\1" * 16, [m.FetchPartition(5, fetch_offset=77)])]
    answer = refusal(m.FetchRequest(topics=topics), ERROR)
    (partition,) = answer.responses[0].partitions
    assert (answer.responses[0].topic, partition.partition_index, partition.error_code) == ("orders", 5, ERROR)
    assert not partition.records


def test_a_join_keeps_its_member_and_has_no_generation() -> None:
    answer = refusal(m.JoinGroupRequest("billing", member_id="m-1", protocol_type="consumer"), ERROR)
    assert (answer.error_code, answer.member_id, answer.generation_id) == (ERROR, "m-1", -1)


def test_members_of_a_leave_and_groups_of_a_delete() -> None:
    left = refusal(m.LeaveGroupRequest("billing", members=[m.MemberIdentity("m-1", "i-1")]), ERROR)
    assert left.error_code == ERROR
    assert [(each.member_id, each.group_instance_id) for each in left.members] == [("m-1", "i-1")]
    deleted = refusal(m.DeleteGroupsRequest(["a", "b"]), ERROR)
    assert [(each.group_id, each.error_code) for each in deleted.results] == [("a", ERROR), ("b", ERROR)]


def _codes(struct: Any) -> list[int]:
    found = []
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name in ("error_code", "partition_error_code"):
            found.append(value)
        elif isinstance(value, list):
            found += [code for each in value if isinstance(each, Struct) for code in _codes(each)]
    return found


@pytest.mark.parametrize("key", WRITES, ids=lambda key: ApiKey(key).name)
def test_every_request_has_an_answer_with_the_error_that_can_be_sent(key: ApiKey) -> None:
    cls = REQUESTS[key]
    codes = []
    for seed in range(20):
        random_requests = RandomRequests(seed)
        random_requests._module = sys.modules[cls.__module__]
        version = random.Random(seed).randint(max(ADVERTISED[key][0], cls.MIN_VERSION), ADVERTISED[key][1])
        request = random_requests._struct(schema.message(cls.__name__), version)
        answer = refusal(request, ERROR)
        assert type(codec.decode(type(answer), version, codec.encode(answer, version))) is cls.RESPONSE
        codes += _codes(answer)
    assert set(codes) == {ERROR}


def test_an_answer_that_was_made_gets_the_error_everywhere() -> None:
    topics = [m.OffsetFetchResponseTopics("orders", partitions=[m.OffsetFetchResponsePartitions(0, 55)])]
    answer = with_error(m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup("billing", topics)]), ERROR)
    assert _codes(answer) == [ERROR, ERROR, ERROR]
