"""Requests about very many transactional ids are handled a slice at a time, and answered like those about few."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.handlers import transactions as handlers
from muster.broker.net.calls import at_once
from muster.broker.transactions.hanging import TransactionKey
from muster.coordinator.shards.served_shard import ServedShard
from muster.coordinator.transactions.entry import ONGOING, Transaction
from muster.coordinator.transactions.shard import IDS_AT_A_TIME
from muster.errors import ErrorCode
from muster.log import OngoingTransaction
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from tests.support import brokers
from tests.support.brokers import RawClient

NAMES = [f"id-{number}" for number in range(3 * IDS_AT_A_TIME)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with many transactional ids, all of them in one slot."""
    async with brokers.running(tmp_path / "data", {"transaction.state.log.num.partitions": 1}) as found:
        assert found.transactions.ensure()
        served = found.transactions.runtime._serve(0)
        assert isinstance(served, ServedShard)
        for producer_id, name in enumerate(NAMES):
            served.shard.entries[name] = Transaction(producer_id, 0, 1_000, found._clock(), ONGOING)
        yield found


async def ask(broker: Broker, request: Any, version: int) -> Any:
    with RawClient(broker.bootstrap) as client:
        return await brokers.in_thread(client.ask, request, version)


async def test_all_are_listed_with_other_requests_in_between(broker: Broker) -> None:
    answer = await ask(broker, t.ListTransactionsRequest(), 1)
    assert [each.transactional_id for each in answer.transaction_states] == NAMES
    answers: list[Any] = []
    steps = broker.transactions.runtime.list_transactions(t.ListTransactionsRequest(), answers.append)
    for _ in range(3):
        next(steps)
        assert answers == []
    list(steps)
    assert len(answers) == 1


async def test_a_request_for_all_is_work_in_slices(broker: Broker) -> None:
    answers: list[Any] = []
    here: Any = SimpleNamespace(transactions=broker.transactions)
    call: Any = SimpleNamespace(reply=answers.append)
    steps = handlers.list_transactions(here, t.ListTransactionsRequest(), call)
    assert steps is not None
    assert answers == []
    list(steps)
    assert len(answers) == 1


async def test_ids_that_come_and_go_meanwhile_disturb_no_list(broker: Broker) -> None:
    answers: list[Any] = []
    runtime = broker.transactions.runtime
    entries = runtime._served[0].shard.entries
    steps = runtime.list_transactions(t.ListTransactionsRequest(), answers.append)
    next(steps)
    entries["new"] = entries.pop(NAMES[-1])
    entries["newer"] = entries["new"]
    list(steps)
    assert [each.transactional_id for each in answers[0].transaction_states] == NAMES


@pytest.mark.interpreted  # a compiled object's method cannot be replaced
async def test_no_list_is_given_that_lacks_the_ids_of_a_shard_whose_store_has_failed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError("the disk is gone")

    answers: list[Any] = []
    runtime = broker.transactions.runtime
    monkeypatch.setattr(runtime._served[0].journal, "write", fail)
    runtime.init_producer_id(m.InitProducerIdRequest("x", 1_000), 4, answers.append)
    runtime.flush()
    assert [each.error_code for each in answers] == [ErrorCode.NOT_COORDINATOR]
    list(runtime.list_transactions(t.ListTransactionsRequest(), answers.append))
    assert answers[1].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_shard_that_is_dropped_meanwhile_adds_no_ids(broker: Broker) -> None:
    answers: list[Any] = []
    runtime = broker.transactions.runtime
    steps = runtime.list_transactions(t.ListTransactionsRequest(), answers.append)
    next(steps)
    runtime.unload_all()
    list(steps)
    assert (answers[0].error_code, answers[0].transaction_states) == (ErrorCode.NONE, [])


async def test_all_are_described_some_at_a_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    runtime = broker.transactions.runtime
    describe = runtime.describe

    def note(request: t.DescribeTransactionsRequest, reply: Any) -> None:
        seen.append(len(request.transactional_ids))
        describe(request, reply)

    monkeypatch.setattr(runtime, "describe", note)
    answer = await ask(broker, t.DescribeTransactionsRequest(NAMES), 0)
    assert [each.transactional_id for each in answer.transaction_states] == NAMES
    assert max(seen) < IDS_AT_A_TIME
    assert sum(seen) == len(NAMES)


async def test_ids_are_counted_with_other_requests_in_between(broker: Broker) -> None:
    steps = broker.transactions.runtime.count()
    slices = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            states, unmarked = end.value
            break
        slices += 1
    assert (states["Ongoing"], unmarked) == (len(NAMES), 0)
    assert slices >= 3


async def test_a_shard_that_is_dropped_meanwhile_disturbs_no_count(broker: Broker) -> None:
    steps = broker.transactions.runtime.count()
    next(steps)
    broker.transactions.runtime.unload_all()
    list(steps)


async def test_the_metrics_count_ids_in_slices(broker: Broker) -> None:
    slices = len(list(broker._gather_more()))
    broker.transactions.runtime._served[0].shard.entries.clear()
    assert slices >= 3 + len(list(broker._gather_more()))


async def test_the_markers_of_all_shards_are_counted(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data", {"transaction.state.log.num.partitions": 2}) as broker:
        assert broker.transactions.ensure()
        runtime = broker.transactions.runtime
        for slot, name in enumerate("xy"):
            served = runtime._serve(slot)
            assert isinstance(served, ServedShard)
            served.shard._unmarked[name] = {TopicPartition("t", 0)}
        _, unmarked = at_once(runtime.count())
        assert unmarked == 2


@pytest.mark.interpreted  # a compiled object's method cannot be replaced
async def test_the_look_for_transactions_that_hang_takes_many_short_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every id has an open transaction in a partition; one has written to a second partition that it has not added."""
    place, other = TopicPartition("t", 0), TopicPartition("t", 1)
    opened = {
        TransactionKey(where, producer_id, producer_id): OngoingTransaction(producer_id, 0, -1, producer_id, 0)
        for where, ids in ((place, range(len(NAMES))), (other, [3]))
        for producer_id in ids
    }
    runtime, looks = broker.transactions.runtime, broker.transactions._hanging
    entries = runtime._served[0].shard.entries
    for name, found in entries.items():
        entries[name] = found._replace(partitions=frozenset([place]))
    aborted: list[Any] = []
    over = asyncio.Event()
    most: list[int] = []
    describe, advance, end = runtime.describe, looks._slices._advance, looks._abort_those_without

    def note(request: t.DescribeTransactionsRequest, reply: Any) -> None:
        most.append(len(request.transactional_ids))
        describe(request, reply)

    def one_step(work: Any, _end: float) -> bool:
        return advance(work, 0.0)  # a slice ends after one step, however fast the machine is

    def ended(*words: Any) -> None:
        end(*words)
        over.set()

    monkeypatch.setattr(runtime, "describe", note)
    monkeypatch.setattr(looks, "_opened", lambda: opened)
    monkeypatch.setattr(looks, "_abort", lambda each, where: aborted.append((each.producer_id, where)))
    monkeypatch.setattr(looks, "_abort_those_without", ended)
    monkeypatch.setattr(looks._slices, "_advance", one_step)
    turns = 0
    async with asyncio.timeout(60):
        looks._check()
        while not over.is_set():
            await asyncio.sleep(0)
            turns += 1
    assert aborted == [(3, other)]
    assert sum(most) == 1 + 1 + len(NAMES)
    assert max(most) <= 100
    assert turns >= len(NAMES) // IDS_AT_A_TIME + len(NAMES) // 100


async def test_a_look_is_not_finished_after_the_end(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = broker.transactions._hanging
    each = OngoingTransaction(1, 0, -1, 0, 0)
    monkeypatch.setattr(looks, "_opened", lambda: {TransactionKey(TopicPartition("t", 0), 1, 0): each})
    looks._check()
    assert len(looks._slices) == 1
    looks.stop()
    assert len(looks._slices) == 0
