"""What can happen to the service between Kafka and its database: each order is billed once, and none is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.testing import Kafka, assert_handled_once
from shop import Shop, Till


def invoiced(kafka: Kafka, shop: Shop) -> list[str]:
    return [json.loads(record.value)["order"] for record in kafka.records(shop.invoices)]


def test_each_order_is_billed_and_invoiced_once(kafka: Kafka, shop: Shop) -> None:
    worker = shop.start()
    shop.order("1", "2", partition=0)
    shop.order("3", "4", partition=1)
    kafka.until_records(shop.invoices, 4)
    worker.stop()
    assert_handled_once(shop.store.billed(), ["1", "2", "3", "4"])
    assert_handled_once(invoiced(kafka, shop), ["1", "2", "3", "4"])
    assert shop.store.balance("ada") == 400
    assert shop.committed() == {0: 2, 1: 2}
    assert shop.failed() == []


def test_a_new_group_begins_with_the_first_order(kafka: Kafka, shop: Shop) -> None:
    shop.order("1")
    before = kafka.requests("Fetch", "first")
    shop.start("first")
    kafka.until(lambda: kafka.requests("Fetch", "first") > before, "the service to read")
    shop.order("2")
    kafka.until_records(shop.invoices, 1)
    assert invoiced(kafka, shop)[0] == "1"


def test_an_order_that_is_sent_twice_is_billed_once(kafka: Kafka, shop: Shop) -> None:
    shop.order("1", "1", "2")
    shop.start()
    kafka.until_lag_zero(shop.group_id)
    assert shop.till.charged == ["1", "2"]
    assert shop.store.balance("ada") == 200


@pytest.mark.parametrize("do", ["lose_request", "lose_answer", "error"])
def test_a_commit_that_fails_is_repeated(kafka: Kafka, shop: Shop, do: str) -> None:
    fields: Any = {"error": "REBALANCE_IN_PROGRESS"} if do == "error" else {}
    with kafka.fault(do, "OffsetCommit", group=shop.group_id, **fields) as fault:
        shop.start()
        shop.order("1")
        fault.wait_struck()
        shop.order("2")
        shop.until_billed(2)
        kafka.until_lag_zero(shop.group_id)
    assert_handled_once(shop.till.charged, ["1", "2"])


def test_nothing_is_committed_before_it_is_handled(shop: Shop) -> None:
    shop.till.hold("1")
    shop.order("1")
    shop.start()
    shop.till.until_held("1")
    assert shop.committed() == {}


def test_what_is_handled_is_committed_before_partitions_are_given_up(kafka: Kafka, shop: Shop) -> None:
    shop.order("1", partition=0)
    shop.order("2", partition=1)
    shop.start("first", commit_interval_s=3600)
    shop.until_billed(2)
    assert shop.committed() == {}
    shop.start("second", commit_interval_s=3600)
    kafka.until_assigned(shop.group_id, members=2)
    assert shop.committed() == {0: 1, 1: 1}


def test_a_rebalance_waits_for_the_order_in_hand(kafka: Kafka, shop: Shop) -> None:
    shop.till.hold("1")
    shop.order("1", "2", partition=0)
    shop.order("3", "4", partition=1)
    shop.start("first")
    shop.till.until_held("1")
    shop.start("second", Till())
    kafka.until(lambda: kafka.requests("JoinGroup", "second") > 0, "the second member")
    shop.till.release()
    kafka.until_assigned(shop.group_id, members=2)
    kafka.until_lag_zero(shop.group_id)
    assert_handled_once(shop.store.billed(), ["1", "2", "3", "4"])
    assert shop.failed() == []


def test_a_member_that_expires_bills_nothing_twice(kafka: Kafka, shop: Shop) -> None:
    slow = shop.start("slow", commit_interval_s=3600)
    shop.order("1", partition=0)
    shop.order("2", partition=1)
    shop.until_billed(2)
    shop.till.hold("3")
    shop.order("3", partition=0)
    shop.till.until_held("3")
    beats = kafka.requests("Heartbeat", "slow")
    kafka.group(shop.group_id).expire("slow")
    kafka.until(lambda: kafka.requests("Heartbeat", "slow") > beats, "the expired member to notice that")
    shop.start("quick", Till())
    shop.order("4", partition=0)
    shop.order("5", partition=1)
    kafka.until_committed(shop.group_id, shop.orders, {0: 3, 1: 2})
    shop.till.release()
    members = kafka.until_assigned(shop.group_id, members=2)["members"]
    assert shop.store.balance("ada") == 500

    # The other member commits what this one handled before: its own commits must not set those offsets back.
    (own,) = next(each["partitions"][shop.orders] for each in members if each["client_id"] == "slow")
    shop.order("6", partition=own)
    shop.until_billed(6)
    expected = {0: 3, 1: 2}
    expected[own] += 1
    with kafka.hold("OffsetCommit", client="quick", times=None):  # its next commit could set them right again
        slow.stop()
        kafka.until_committed(shop.group_id, shop.orders, {own: expected[own]})
        assert shop.committed() == expected
    assert shop.failed() == []


def test_poison_becomes_a_dead_letter(kafka: Kafka, shop: Shop) -> None:
    shop.write(b"{not json", key=b"ada", headers=[("trace", b"77")], partition=0)
    shop.order("1")
    shop.start()
    (letter,) = kafka.until_records(shop.dead_letters, 1)
    assert (letter.key, letter.value) == (b"ada", b"{not json")
    headers = dict(letter.headers)
    assert headers["trace"] == b"77"
    assert headers["from"] == f"{shop.orders}/0@0".encode()
    kafka.until_lag_zero(shop.group_id)
    assert shop.store.billed() == ["1"]


def test_a_dead_letter_that_cannot_be_written_is_not_lost(kafka: Kafka, shop: Shop) -> None:
    shop.write(b"{not json", partition=0)
    with kafka.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=shop.dead_letters, times=None):
        shop.start()
        kafka.until(lambda: shop.failed() or shop.committed(), "an error, or a commit")
        assert shop.committed() == {}
    shop.workers.clear()
    shop.start()
    kafka.until_records(shop.dead_letters, 1)
    kafka.until_lag_zero(shop.group_id)


@pytest.mark.parametrize(("refusals", "outcome"), [(2, "invoice"), (3, "dead letter")])
def test_a_payment_that_fails_is_tried_again(kafka: Kafka, shop: Shop, refusals: int, outcome: str) -> None:
    shop.till.refuse["1"] = refusals
    shop.order("1", "2")
    shop.start()
    kafka.until_lag_zero(shop.group_id)
    assert shop.till.charged == ["1", "1", "1", "2"]
    assert invoiced(kafka, shop) == (["1", "2"] if outcome == "invoice" else ["2"])
    letters = [json.loads(record.value)["id"] for record in kafka.records(shop.dead_letters)]
    assert letters == (["1"] if outcome == "dead letter" else [])


def test_an_order_is_not_lost_when_the_service_crashes(kafka: Kafka, shop: Shop) -> None:
    shop.till.broken = True
    shop.order("1")
    shop.start()
    kafka.until(shop.failed, "the crash")
    assert shop.committed() == {}
    shop.workers.clear()
    shop.till.broken = False
    shop.start()
    shop.until_billed(1)


def test_a_slow_payment_does_not_cost_the_membership(kafka: Kafka, shop: Shop) -> None:
    shop.till.hold("1")
    shop.order("1")
    shop.start("patient")
    shop.till.until_held("1")
    with kafka.assert_no_rebalance(shop.group_id):
        before = kafka.requests("Heartbeat", "patient")
        kafka.until(lambda: kafka.requests("Heartbeat", "patient") >= before + 3, "three heartbeats")
        shop.till.release()
        kafka.until_lag_zero(shop.group_id)


def test_the_broker_is_killed_and_comes_back(kafka: Kafka, shop: Shop) -> None:
    shop.order("1")
    shop.start()
    shop.until_billed(1)
    kafka.kill()
    kafka.start()
    shop.order("2")
    shop.until_billed(2)
    kafka.until_lag_zero(shop.group_id)
    assert_handled_once(shop.till.charged, ["1", "2"])


def test_an_invoice_whose_answer_is_lost_is_written_once(kafka: Kafka, shop: Shop) -> None:
    with kafka.lose_answer("Produce", topic=shop.invoices) as fault:
        shop.order("1")
        shop.start()
        fault.wait_struck()
        kafka.until_lag_zero(shop.group_id)
    assert invoiced(kafka, shop) == ["1"]


def test_the_coordinator_moves(kafka: Kafka, shop: Shop) -> None:
    shop.order("1")
    shop.start()
    kafka.until_lag_zero(shop.group_id)
    with kafka.assert_no_rebalance(shop.group_id):
        kafka.group(shop.group_id).reload()
        shop.order("2")
        kafka.until_lag_zero(shop.group_id)
    assert_handled_once(shop.till.charged, ["1", "2"])


def test_a_stop_finishes_the_order_in_hand_and_no_other(kafka: Kafka, shop: Shop) -> None:
    shop.till.hold("1")
    shop.order("1", "2")
    worker = shop.start()
    shop.till.until_held("1")
    worker.stopping.set()
    shop.till.release()
    worker.stop()
    kafka.until_empty(shop.group_id)
    assert shop.store.billed() == ["1"]
    assert shop.committed() == {0: 1}
    shop.start()
    kafka.until_lag_zero(shop.group_id)
    assert_handled_once(shop.till.charged, ["1", "2"])


def test_retention_passes_the_service(kafka: Kafka, shop: Shop) -> None:
    shop.order("1")
    worker = shop.start()
    kafka.until_lag_zero(shop.group_id)
    worker.stop()
    shop.order("2", "3", "4")
    kafka.delete_records(shop.orders, before=3)
    shop.start()
    kafka.until_lag_zero(shop.group_id)
    assert shop.store.billed() == ["1", "4"]
