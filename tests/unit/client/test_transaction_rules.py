"""How an admin client builds requests about transactions, and which transactions hang."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.admin import transactions as rules
from muster.client.core.admin.partitions import ProducerState
from muster.client.core.admin.transactions import AbortTransactionSpec, TransactionDescription, TransactionListing
from muster.errors import ErrorCode, IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol import transaction_messages as t

PLACE = TopicPartition("t", 1)
MINUTE = 60_000
NOW = 100 * MINUTE


def test_a_filter_that_a_broker_does_not_know_is_refused_and_not_left_out() -> None:
    request = rules.list_transactions_request(2, ["Ongoing"], [7], 5, "a.*")
    assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [7])
    assert (request.duration_filter, request.transactional_id_pattern) == (5, "a.*")
    assert rules.list_transactions_request(0, [], [], -1, "").transactional_id_pattern is None
    for version, duration_ms, pattern in ((0, 0, None), (1, -1, "a")):
        with pytest.raises(UnsupportedVersionError):
            rules.list_transactions_request(version, [], [], duration_ms, pattern)
    rules.list_transactions_request(1, [], [], 0, None)


def test_ids_are_a_list() -> None:
    assert rules.check_transactional_ids(iter(["a", "b"])) == ["a", "b"]
    wrong: Any
    for wrong in ("ab", [7], ["\ud800"]):
        with pytest.raises(IllegalArgumentError):
            rules.check_transactional_ids(wrong)


def test_a_marker_of_an_admin_aborts_at_the_epoch_of_the_transaction() -> None:
    spec = rules.check_spec(AbortTransactionSpec(PLACE, 7, 3, -1))
    assert spec.coordinator_epoch == 0
    (marker,) = rules.abort_marker(spec).markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 0)
    assert not marker.transaction_result
    assert marker.transaction_version == 0, "one of version 2 would need a higher epoch"
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]
    for wrong in ((PLACE, -1, 3), (PLACE, 7, 2**15), (PLACE, 7, 3, -2), (("t", -1), 7, 3)):
        with pytest.raises(IllegalArgumentError):
            rules.check_spec(AbortTransactionSpec(*wrong))


def test_a_refusal_says_what_the_partition_knows() -> None:
    spec = AbortTransactionSpec(PLACE, 7, 3, 4)
    texts = []
    for code in (
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ):
        topic = t.WritableTxnMarkerTopicResult("t", [t.WritableTxnMarkerPartitionResult(1, code)])
        found = rules.aborted(t.WriteTxnMarkersResponse([t.WritableTxnMarkerResult(7, [topic])]), spec)
        texts.append(str(found[PLACE]))
    assert texts[0] == "None"
    assert "a later epoch of producer 7" in texts[1]
    assert "a later coordinator epoch than 4" in texts[2]
    assert "t-1" in texts[3]


def test_descriptions() -> None:
    topics = [t.TopicData("u", [2, 0]), t.TopicData("t", [1])]
    found = t.DescribeTransactionsResponseTransactionState(0, "a", "Ongoing", 9, 5, 7, 3, topics)
    empty = t.DescribeTransactionsResponseTransactionState(0, "b", "Empty", 9, -1, 8, 0)
    none = t.DescribeTransactionsResponseTransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "c")
    described = rules.described_transactions(t.DescribeTransactionsResponse(0, [found, empty, none]), 4)
    places = [TopicPartition("t", 1), TopicPartition("u", 0), TopicPartition("u", 2)]
    assert described["a"] == TransactionDescription("a", 4, "Ongoing", 7, 3, 9, 5, places)
    assert described["b"] == TransactionDescription("b", 4, "Empty", 8, 0, 9, None, [])
    assert "transactional id c" in str(described["c"])


def producer(producer_id: int, last_timestamp: int, start: int | None, epoch: int | None = None) -> ProducerState:
    return ProducerState(producer_id, 0, 4, last_timestamp, epoch, start)


def test_candidates_are_open_and_older_than_any_transaction_may_be() -> None:
    old, young = NOW - 16 * MINUTE, NOW - 15 * MINUTE
    producers = {PLACE: [producer(1, old, 5), producer(2, young, 6, 3), producer(3, old, None), producer(4, old, 0, 3)]}
    found = rules.open_transactions(producers, 15 * MINUTE, NOW)
    assert [(each.producer_id, each.start_offset, each.coordinator_epoch) for each in found] == [(1, 5, -1), (4, 0, 3)]
    assert [each.duration_ms for each in found] == [16 * MINUTE] * 2


@pytest.mark.parametrize(
    ("described", "hangs"),
    [
        (None, True),
        (KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), True),
        (TransactionDescription("a", 1, "Ongoing", 1, 0, 9, 0, [PLACE]), False),
        (TransactionDescription("a", 1, "Ongoing", 1, 0, 9, 0, [TopicPartition("t", 0)]), True),
        (TransactionDescription("a", 1, "PrepareCommit", 1, 0, 9, 0, [PLACE]), False),
        (TransactionDescription("a", 1, "Empty", 1, 0, 9, None, []), True),
    ],
)
def test_it_hangs_unless_a_coordinator_has_the_partition(
    described: TransactionDescription | KafkaError | None, hangs: bool
) -> None:
    candidates = rules.open_transactions({PLACE: [producer(1, 0, 5)]}, 15 * MINUTE, NOW)
    listed = [] if described is None else [TransactionListing("a", 1, 1, "Ongoing")]
    found = rules.hanging_transactions(candidates, listed, {} if described is None else {"a": described})
    assert bool(found) == hangs
    assert candidates[0].transactional_id == (None if described is None else "a")


def test_an_id_whose_state_is_unknown_is_not_called_hanging() -> None:
    candidates = rules.open_transactions({PLACE: [producer(1, 0, 5)]}, 15 * MINUTE, NOW)
    refused = KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="AUTHORIZATION"):
        rules.hanging_transactions(candidates, [TransactionListing("a", 1, 1, "Ongoing")], {"a": refused})
