"""What an assignor returns for a member: indexes until the names are asked for, and the same for all readers."""

from __future__ import annotations

import pytest
from hypothesis import given as drawn

from muster.assignors import BUILTIN, MemberAssignment
from muster.assignors.layout import Layout
from muster.client.core.group.assignment import Assignors, PendingAssignment
from muster.model import TopicPartition
from muster.protocol.messages import JoinGroupResponse, JoinGroupResponseMember
from muster.protocol.subscription import Subscription, decode_assignment, encode_assignment, encode_subscription
from tests.support.groups import groups, partitions

LAYOUT = Layout({"a": 2, "b": 3}, [["a", "b"]])


def sent(share: MemberAssignment) -> bytes:
    """What the leader sends to one member."""
    (encoded,) = Assignors([BUILTIN["sticky"]()]).encode(PendingAssignment("sticky", False, {}, set(), 0), {"m": share})
    return encoded.assignment


@pytest.mark.parametrize("name", BUILTIN)
@drawn(group=groups(equal=False))
def test_the_same_is_sent_with_names_and_without(name, group):
    for share in BUILTIN[name]().assign(group.topics, group.members).values():
        unnamed, topics, count = sent(share), share.topics(), share.count()
        assert sorted(decode_assignment(unnamed).partitions) == sorted(share.partitions)
        assert unnamed == sent(share) == encode_assignment(share.partitions)
        assert (topics, count) == (share.topics(), share.count())
        assert (topics, count) == ({row.topic for row in share.partitions}, len(share.partitions))


def test_topics_stand_in_the_order_in_which_they_are_given():
    share = MemberAssignment.of_places(LAYOUT, [3, 0, 4])
    assert decode_assignment(sent(share)).partitions == partitions("b:1,2 a:0")
    assert share.partitions == [TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 2)]


def test_what_is_done_to_the_list_is_what_is_sent():
    share = MemberAssignment.of_places(LAYOUT, [0, 1])
    share.partitions.append(TopicPartition("b", 2))
    assert decode_assignment(sent(share)).partitions == partitions("a:0-1 b:2")
    share = MemberAssignment.of_places(LAYOUT, [0, 1])
    share.partitions = partitions("b:0")
    assert (share.count(), share.topics(), share.partitions) == (1, {"b"}, partitions("b:0"))
    assert decode_assignment(sent(share)).partitions == partitions("b:0")


def test_two_with_the_same_partitions_and_user_data_are_equal():
    share = MemberAssignment.of_places(LAYOUT, [0, 2])
    assert share == MemberAssignment(partitions("a:0 b:0"))
    assert MemberAssignment.of_places(LAYOUT, [0, 2]) != MemberAssignment(partitions("a:0 b:0"), b"u")
    assert share != MemberAssignment(partitions("a:0"))
    assert share != partitions("a:0 b:0")
    assert repr(share) == f"MemberAssignment(partitions={partitions('a:0 b:0')!r}, user_data=b'')"


def test_members_that_say_the_same_share_no_list():
    said = encode_subscription(Subscription(["a"], partitions("a:0"), 3))
    other = encode_subscription(Subscription(["b"]))
    members = [
        JoinGroupResponseMember("m1", "i1", said),
        JoinGroupResponseMember("m2", None, said),
        JoinGroupResponseMember("m3", None, other),
    ]
    found = PendingAssignment.of(JoinGroupResponse(protocol_name="sticky", members=members), 0).members
    assert [found[name].topics for name in ("m1", "m2", "m3")] == [["a"], ["a"], ["b"]]
    assert (found["m1"].group_instance_id, found["m2"].group_instance_id) == ("i1", None)
    assert found["m1"].owned_partitions == found["m2"].owned_partitions == partitions("a:0")
    found["m1"].topics.append("x")
    found["m1"].owned_partitions.clear()
    assert (found["m2"].topics, found["m2"].owned_partitions) == (["a"], partitions("a:0"))
