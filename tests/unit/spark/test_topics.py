"""What a query knows about its topics across restarts (rules: topics.py)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model import TopicPartition
from muster.spark.offsets import TopicState
from muster.spark.source.topics import QueryTopics

IDS = st.sampled_from(["", "a", "b", "c"])


def looked_at(*views, before=None):
    """A query that begins with `before` in its checkpoint and sees the topic `t` like this, one check after the other;
    and what was created again at each check."""
    topics = QueryTopics()
    topics.restore({} if before is None else {"t": before})
    return topics, [topics.seen({"t": view}) for view in views]


def new(topics, count=4):
    return [topics.is_new(TopicPartition("t", partition)) for partition in range(count)]


@pytest.mark.parametrize("before", [None, TopicState("", 2)])
def test_an_id_that_is_learned_later_makes_no_partition_new(before):
    """A checkpoint from brokers or versions without ids: if `startingOffsets` is latest, the partitions that existed
    then are not read from their start."""
    topics, again = looked_at(TopicState("", 2), TopicState("a", 3), before=before)
    assert again == [[], []]
    assert new(topics) == [False, False, True, True]
    assert topics.topic_id("t") == "a"
    assert topics.known == {"t": TopicState("a", 2)}


def test_an_id_that_is_not_sent_for_a_while_is_remembered():
    topics, again = looked_at(
        TopicState("a", 2), TopicState("", 2), TopicState("a", 2), TopicState("", 2), TopicState("b", 2)
    )
    assert again == [[], [], [], [], ["t"]]
    assert new(topics) == [True] * 4


@given(
    st.none() | st.builds(TopicState, IDS, st.integers(0, 4)),
    st.lists(st.builds(TopicState, IDS, st.integers(1, 4)), min_size=1),
)
def test_a_topic_is_another_one_only_where_its_id_has_changed(before, views):
    topics, again = looked_at(*views, before=before)
    first = views[0] if before is None else before
    ids = [view.id for view in (first, *views) if view.id]
    changes = sum(one != two for one, two in pairwise(ids))
    assert sum(len(names) for names in again) == changes
    assert topics.topic_id("t") == (ids[-1] if ids else "")
    assert new(topics) == [partition >= (0 if changes else first.partitions) for partition in range(4)]


@given(st.lists(st.builds(TopicState, IDS, st.integers(1, 4)), min_size=2), st.integers(0, 9))
def test_a_restart_in_between_changes_nothing(views, at):
    at = 1 + at % (len(views) - 1)
    whole, _ = looked_at(*views)
    first, _ = looked_at(*views[:at])
    then, _ = looked_at(*views[at:], before=first.known["t"])
    assert (then.known, new(then)) == (whole.known, new(whole))
