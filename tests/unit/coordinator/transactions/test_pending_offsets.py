"""Offsets that are committed in transactions, mixed with plain commits: the last record of a partition wins, once it is
committed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.offsets import tombstone
from muster.coordinator.groups.shard import GroupShard
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.group_records import OffsetCommits
from tests.support.group_harness import FakeTopics

P1, P2 = 71, 72


def commits(partition: int, offset: int) -> OffsetCommits:
    return OffsetCommits("g", "t", [(partition, (offset, -1, "", 1_000, -1, bytes(16)))])


def a_shard() -> GroupShard:
    return GroupShard(GroupConfig(), FakeTopics())


def offset(shard: GroupShard, partition: int = 0, *, stable: bool = False) -> tuple[int, str]:
    asked = m.OffsetFetchRequestGroup("g", topics=[m.OffsetFetchRequestTopics("t", partition_indexes=[partition])])
    (found,) = shard.fetch_offsets(asked, 8, stable).topics[0].partitions
    return found.committed_offset, ErrorCode(found.error_code).name


UNSTABLE = (-1, "UNSTABLE_OFFSET_COMMIT")


def test_all_offsets_of_a_group_are_as_stable_as_each() -> None:
    shard = a_shard()
    for partition in (0, 1):
        shard.apply(commits(partition, 3))
    shard.apply_transactional(P1, commits(0, 5))
    found = shard.fetch_offsets(m.OffsetFetchRequestGroup("g", topics=None), 8, True).topics[0].partitions
    assert sorted((p.partition_index, p.committed_offset, p.error_code) for p in found) == [(0, -1, 88), (1, 3, 0)]


@pytest.mark.parametrize("first", [P1, P2])
def test_of_two_transactions_the_later_record_counts(first: int) -> None:
    """Whichever of them ends first; and a replaced one is still open."""
    shard = a_shard()
    shard.apply_transactional(P1, commits(0, 5))
    shard.apply_transactional(P2, commits(0, 7))
    shard.end_transaction(first, True)
    assert offset(shard) == (5 if first == P1 else 7, "NONE")
    assert offset(shard, stable=True) == UNSTABLE
    shard.end_transaction(P1 if first == P2 else P2, True)
    assert offset(shard, stable=True) == (7, "NONE")


def test_deleting_takes_pending_offsets_along() -> None:
    shard = a_shard()
    shard.apply_transactional(P1, commits(0, 5))
    result, effects = shard.delete_group("g")
    assert (result.error_code, len(effects.records)) == (0, 2)
    assert not shard.pending.open_keys()
    shard.end_transaction(P1, True)
    assert offset(shard) == (-1, "NONE")


def test_offsets_with_open_transactions_do_not_expire() -> None:
    shard = a_shard()
    shard.apply(commits(0, 3))
    shard.apply_transactional(P1, commits(0, 5))
    shard.loaded(0)
    far = 100 * shard.config.offsets_retention_ms
    shard.on_deadline(far)
    assert offset(shard) == (3, "NONE")
    shard.end_transaction(P1, False)
    shard.on_deadline(2 * far)
    assert offset(shard) == (-1, "NONE")
    assert "g" not in shard.groups


def request(**changes: Any) -> t.TxnOffsetCommitRequest:
    topics = [t.TxnOffsetCommitRequestTopic("t", [t.TxnOffsetCommitRequestPartition(0, 5, -1, "x" * 10)])]
    return t.TxnOffsetCommitRequest("id", "g", P1, 0, topics=topics, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, "NONE"),
        ({"group_id": ""}, "INVALID_GROUP_ID"),
        ({"generation_id": 0}, "ILLEGAL_GENERATION"),
        ({"member_id": "stranger"}, "NONE"),
    ],
)
def test_a_group_that_is_not_there_is_made(changes: dict[str, Any], error: str) -> None:
    asked = request()
    for name, value in changes.items():
        setattr(asked, name, value)
    shard = a_shard()
    answer, records = shard.transactional_commit(asked, ErrorCode.NONE, 1_000)
    assert ErrorCode(answer.topics[0].partitions[0].error_code).name == error
    assert len(records) == (error == "NONE")
    assert not shard.groups, "nothing is applied before the log has taken it"


def test_the_error_of_the_transaction_is_that_of_every_partition_there_is() -> None:
    asked = request()
    asked.topics.append(t.TxnOffsetCommitRequestTopic("gone", [t.TxnOffsetCommitRequestPartition(0, 5)]))
    shard = GroupShard(GroupConfig(), FakeTopics(t=1))
    answer, records = shard.transactional_commit(asked, ErrorCode.INVALID_PRODUCER_EPOCH, 1_000)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [47, 3]
    assert not records


STEPS = st.one_of(
    st.tuples(st.just("plain"), st.integers(0, 2)),
    st.tuples(st.sampled_from([P1, P2]), st.integers(0, 2)),
    st.tuples(st.just("tombstone"), st.integers(0, 2)),
    st.tuples(st.just("commit"), st.sampled_from([P1, P2])),
    st.tuples(st.just("abort"), st.sampled_from([P1, P2])),
)


@given(st.lists(STEPS, max_size=25))
def test_any_history_ends_as_in_kafka(steps: list[tuple[Any, int]]) -> None:
    """Kafka compares the offsets of the records: OffsetMetadataManager.replayEndTransactionMarker."""
    shard = a_shard()
    kept: dict[int, tuple[int, int]] = {}
    pending: dict[int, dict[int, int]] = {P1: {}, P2: {}}
    for at, (what, which) in enumerate(steps):
        if what == "plain":
            shard.apply(commits(which, at))
            kept[which] = (at, at)
        elif what == "tombstone":
            shard.apply(tombstone("g", "t", which))
            kept.pop(which, None)
            for of_one in pending.values():
                of_one.pop(which, None)
        elif what in (P1, P2):
            shard.apply_transactional(what, commits(which, at))
            pending[what][which] = at
        else:
            shard.end_transaction(which, what == "commit")
            for partition, record in pending[which].items():
                if what == "commit" and record > kept.get(partition, (-1, -1))[1]:
                    kept[partition] = (record, record)
            pending[which] = {}
        for partition in range(3):
            assert offset(shard, partition)[0] == kept.get(partition, (-1, -1))[0]
            is_open = any(partition in of_one for of_one in pending.values())
            assert (offset(shard, partition, stable=True) == UNSTABLE) == is_open
