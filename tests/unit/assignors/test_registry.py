"""Assignors by name, and a user's own (J9)."""

from __future__ import annotations

import pytest

from muster.assignors import (
    BUILTIN,
    Assignor,
    MemberAssignment,
    RangeAssignor,
    RebalanceProtocol,
    common_protocol,
    get_assignor,
    get_assignors,
    sorted_members,
    topic_partitions,
)
from muster.errors import ConfigError
from tests.support.groups import member


class Favourite(Assignor):
    """Assigns everything to the first member, as a user's own assignor may (J9)."""

    name = "favourite"

    def assign(self, partitions_per_topic, members):
        first, *rest = sorted_members(members)
        rows = [row for topic, count in partitions_per_topic.items() for row in topic_partitions(topic, count)]
        return {first: MemberAssignment(rows), **{name: MemberAssignment() for name in rest}}


def test_the_built_in_assignors_have_kafkas_names():
    assert list(BUILTIN) == ["range", "roundrobin", "sticky", "cooperative-sticky"]
    assert all(get_assignor(name).name == name for name in BUILTIN)


def test_each_consumer_gets_an_instance_of_its_own():
    assert get_assignor("sticky") is not get_assignor("sticky")


def test_an_own_assignor_needs_a_name_and_a_rule():
    own = Favourite()
    found = get_assignors([own, "range"])
    assert [assignor.name for assignor in found] == ["favourite", "range"]
    assert found[0] is own
    assert own.subscription_user_data(["t"]) == b""
    assert own.assign({"t": 2}, {"b": member("t"), "a": member("t")})["a"].partitions == [("t", 0), ("t", 1)]


def test_a_class_is_instantiated():
    assert isinstance(get_assignors([RangeAssignor])[0], RangeAssignor)


@pytest.mark.parametrize(
    ("strategies", "sentence"),
    [
        (["uniform"], "no assignor is called 'uniform'"),
        ([], "is empty"),
        (["range", RangeAssignor], "names an assignor twice"),
        ("range", r"is a list: write \['range'\]"),
        ([42], "is not an assignor"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(strategies, sentence):
    with pytest.raises(ConfigError, match=sentence):
        get_assignors(strategies)


@pytest.mark.parametrize(
    ("names", "protocol"),
    [
        (["range"], RebalanceProtocol.EAGER),
        (["cooperative-sticky"], RebalanceProtocol.COOPERATIVE),
        (["cooperative-sticky", "range"], RebalanceProtocol.EAGER),
    ],
)
def test_a_consumer_rebalances_by_the_best_protocol_that_all_its_assignors_support(names, protocol):
    assert common_protocol(get_assignors(names)) is protocol


def test_assignors_without_a_protocol_in_common_are_refused():
    class Modern(Favourite):
        name = "modern"
        protocols = (RebalanceProtocol.COOPERATIVE,)

    with pytest.raises(ConfigError, match="range, modern have no rebalance protocol in common"):
        common_protocol(get_assignors(["range", Modern]))
