"""Assignments as Kafka 0.8.2.2 computed them: a member that deviates would claim partitions that others hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.zookeeper.watchers.assignment import (
    UnequalSubscriptionsError,
    java_hash,
    java_order,
    range_,
    roundrobin,
    strategy,
    thread_ids,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("The quick brown fox", -1739336029),
        ("polygenelubricants", -(1 << 31)),
        ("\U0001f600", 1772899),
        ("[clicks,0]", 1627908499),
        ("[views,1]", -72890459),
    ],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_text_sorts_as_in_java_by_units_and_not_by_characters() -> None:
    assert sorted(["\uffee", "\U0001f600", "z"], key=java_order) == ["z", "\U0001f600", "\uffee"]
    assert sorted(thread_ids("m", 11), key=java_order)[:3] == ["m-0", "m-1", "m-10"]


def by_thread(assignment: dict[TopicPartition, str]) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {}
    for partition, thread in assignment.items():
        parts.setdefault(thread, []).append(partition.partition)
    return parts


def test_range_gives_the_first_threads_one_more() -> None:
    """The example in Kafka's own comment: C1 and C2 with two streams each, five partitions."""
    threads = {"t": [*thread_ids("C2", 2), *thread_ids("C1", 2)]}
    assert by_thread(range_(threads, {"t": [4, 3, 2, 1, 0]})) == {"C1-0": [0, 1], "C1-1": [2], "C2-0": [3], "C2-1": [4]}


def test_range_leaves_a_thread_without_partitions_where_there_are_fewer() -> None:
    assert by_thread(range_({"t": ["a-0", "b-0", "c-0"]}, {"t": [0, 1]})) == {"a-0": [0], "b-0": [1]}
    assert range_({"t": ["a-0"]}, {"t": [], "other": [0]}) == {}


def test_roundrobin_of_eight_partitions_is_what_a_group_with_a_java_member_did() -> None:
    """Seen with a real 0.8.2.2 consumer and members with one and two threads: 0,4 | 1,5 | 2,6 + 3,7."""
    threads = {"t8": ["g_a-0", "g_b-0", "g_c-0", "g_c-1"]}
    assert by_thread(roundrobin(threads, {"t8": range(8)})) == {
        "g_a-0": [0, 4],
        "g_b-0": [1, 5],
        "g_c-0": [2, 6],
        "g_c-1": [3, 7],
    }


def test_roundrobin_sorts_by_the_hash_of_08_and_not_of_10() -> None:
    """Twelve partitions of t12 are in the order 0 … 11; by the text of 1.0, "t12-0", it would be 10, 11, 0 … 9."""
    assert list(roundrobin({"t12": ["a-0"]}, {"t12": range(12)})) == [TopicPartition("t12", n) for n in range(12)]
    assert sorted(range(12), key=lambda n: java_hash(f"t12-{n}")) == [10, 11, *range(10)]


def test_roundrobin_mixes_topics_and_counts_hashes_as_signed() -> None:
    dealt = list(roundrobin({t: ["a-0", "b-0"] for t in ("clicks", "views")}, {"clicks": [0, 1], "views": [0, 1]}))
    hashes = [java_hash(f"[{topic},{number}]") for topic, number in dealt]
    assert hashes == sorted(hashes)
    assert min(hashes) < 0 < max(hashes)


def test_roundrobin_refuses_members_that_read_different_things() -> None:
    with pytest.raises(UnequalSubscriptionsError):
        roundrobin({"t": ["a-0", "b-0"], "u": ["a-0"]}, {"t": [0]})
    assert roundrobin({}, {}) == {}


def test_an_unknown_strategy_is_refused() -> None:
    assert strategy("range") is range_
    assert strategy("roundrobin") is roundrobin
    with pytest.raises(ConfigError, match="sticky"):
        strategy("sticky")


@given(
    st.lists(st.tuples(st.text("ab-", min_size=1, max_size=4), st.integers(1, 12)), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 20), min_size=1),
    st.sampled_from([range_, roundrobin]),
    st.randoms(use_true_random=False),
)
def test_every_partition_has_one_thread_whatever_order_things_were_read_in(members, topics, rule, random) -> None:
    threads = [thread for member, streams in dict(members).items() for thread in thread_ids(member, streams)]
    shuffled = random.sample(threads, len(threads))
    partitions = {topic: list(range(count)) for topic, count in topics.items()}
    found = rule(dict.fromkeys(topics, threads), partitions)
    assert set(found) == {TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers}
    backwards = {topic: numbers[::-1] for topic, numbers in reversed(partitions.items())}
    assert rule(dict.fromkeys(topics, shuffled), backwards) == found
    for group in [list(topics)] if rule is roundrobin else [[topic] for topic in topics]:
        counts = [sum(found[p] == thread for p in found if p.topic in group) for thread in set(threads)]
        assert max(counts) - min(counts) <= 1
