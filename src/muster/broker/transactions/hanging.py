"""Transactions that hang: open in a partition, though no transactional id has them.

A power failure may leave one behind if not every write was synced: the coordinator's record is lost, but the
partition's records are not. The partition's read_committed consumers would wait forever. So whenever a broker begins to
lead partitions, or a coordinator changes, the broker asks all coordinators about the transactions that are open in its
partitions, and aborts those that no coordinator has.

A coordinator has a transaction until its last marker is written. So a transaction that was open before the coordinators
were asked, that none of them had, and that is still open afterwards does not belong to them. Neither does one whose
epoch is later than its coordinator's, which has lost that epoch: the partition would refuse its marker. It must be
certain that they do not have it, though: each slot of `__transaction_state` must have been served while its coordinator
was asked. Before and after, it is asked for an id of each of its slots, and it answers only for slots that it serves
(`_Survey`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from muster.broker.links.links import Links, Purpose
from muster.broker.net.slices import Slices
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.coordinator.parts import Gather
from muster.coordinator.transaction_runtime import TransactionRuntime
from muster.errors import ErrorCode
from muster.log import OngoingTransaction
from muster.model import GROUP_METADATA_TOPIC, Node, TopicPartition
from muster.protocol.group_partitions import group_partition
from muster.protocol.primitives import Request
from muster.protocol.transaction_messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

CHECK_AFTER_S = 1.0
"""The delay before the first check, and between checks that could not be finished."""

_IDS_AT_A_TIME = 100
"""Transactional ids of this broker that are described in one step: about a millisecond."""

Owned = dict[tuple[int, TopicPartition], int]
"""The producer ids and partitions of transactions, with the producers' epochs."""


class TransactionKey(NamedTuple):
    """A transaction that is open in a partition."""

    where: TopicPartition
    producer_id: int
    first_offset: int


def ids_of_slots(slots: Collection[int], count: int) -> list[str]:
    """A transactional id for each of these slots, of `count` slots in all."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < len(slots):
        name = f"any-{number}"
        slot = group_partition(name, count)
        if slot in slots:
            found.setdefault(slot, name)
        number += 1
    return [found[slot] for slot in sorted(found)]


def all_are_served(response: DescribeTransactionsResponse, ids: Collection[str]) -> bool:
    """Whether a coordinator serves the slots of all these ids."""
    served = {
        each.transactional_id
        for each in response.transaction_states
        if each.error_code in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    }
    return served.issuperset(ids)


def ids_of_producers(response: ListTransactionsResponse) -> dict[str, int] | None:
    """Transactional ids with their producer ids; None if the coordinator cannot list all of them."""
    if response.error_code:
        return None
    return {each.transactional_id: each.producer_id for each in response.transaction_states}


def owned(response: DescribeTransactionsResponse, producers: Mapping[str, int]) -> Owned:
    """The transactions of these transactional ids, with their producer ids."""
    return {
        (producers[state.transactional_id], TopicPartition(topic.topic, partition)): state.producer_epoch
        for state in response.transaction_states
        if state.transactional_id in producers
        for topic in state.topics
        for partition in topic.partitions
    }


class Journals(Protocol):
    """Where transactions may be open, other than in logs: slots of groups in ZooKeeper."""

    def open_in_slots(self) -> list[tuple[int, OngoingTransaction]] | None:
        """The open transactions in the slots, None while some slots are being loaded."""


class HangingTransactions:
    """Looks for transactions that hang in this broker's partitions, and aborts them with `abort`."""

    def __init__(
        self,
        partitions: Partitions,
        groups: Journals,
        locator: PartitionLocator,
        links: Links,
        runtime: TransactionRuntime,
        abort: Callable[[OngoingTransaction, TopicPartition], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._partitions = partitions
        self._groups = groups
        self._locator = locator
        self._links = links
        self._runtime = runtime
        self._abort = abort
        self._slices = Slices(self._loop)
        self._is_due = self._is_stopped = False
        self._epochs: list[int] = []

    def stop(self) -> None:
        """Stop checking."""
        self._is_stopped = True
        self._slices.stop()

    def coordinators_changed(self) -> None:
        """Check again if a coordinator has changed, or has started under a new epoch."""
        epochs = self._locator.coordinator_epochs()
        if epochs != self._epochs:
            self._epochs = epochs
            self.check_soon()

    def check_soon(self) -> None:
        """Check once every coordinator can be asked."""
        if not self._is_due and not self._is_stopped:
            self._is_due = True
            self._loop.call_later(CHECK_AFTER_S, self._check)

    def _check(self) -> None:
        self._is_due = False
        opened = self._opened()
        if self._is_stopped or opened == {}:
            return
        coordinators = self._locator.coordinators()
        if opened is None or coordinators is None:
            self.check_soon()
            return
        count = sum(len(slots) for slots in coordinators.values())
        epochs = self._locator.coordinator_epochs()
        producer_ids = sorted({each.producer_id for each in opened})

        def done(found: list[Owned | None]) -> None:
            if any(each is None for each in found) or epochs != self._locator.coordinator_epochs():
                self.check_soon()
            else:
                self._abort_those_without(opened, [each for each in found if each is not None])

        gather = Gather(len(coordinators), done)
        for i, (node, slots) in enumerate(coordinators.items()):
            ask = self._ask_here if self._locator.is_here(node) else partial(self._ask_broker, node)
            _Survey(ask, ids_of_slots(slots, count), producer_ids, gather.part(i)).begin()

    def _opened(self) -> dict[TransactionKey, OngoingTransaction] | None:
        """All transactions that are open here, None while groups are being loaded."""
        in_slots = self._groups.open_in_slots()
        if in_slots is None:
            return None
        found = [(log.topic_partition, each) for log in self._partitions.led() for each in log.open_transactions()]
        found += [(TopicPartition(GROUP_METADATA_TOPIC, slot), each) for slot, each in in_slots]
        return {TransactionKey(where, each.producer_id, each.first_offset): each for where, each in found}

    def _abort_those_without(self, opened: dict[TransactionKey, OngoingTransaction], found: list[Owned]) -> None:
        owned = {place: epoch for each in found for place, epoch in each.items()}
        still = self._opened() or {}
        for each, opening in opened.items():
            epoch = owned.get((each.producer_id, each.where), -1)
            if opening.producer_epoch > epoch and each in still:
                self._abort(still[each], each.where)

    def _ask_broker(self, node: Node, request: Request[Any], done: Callable[[Any], None]) -> None:
        self._links.ask(node, Purpose.VERIFICATION, request, 0, done)

    def _ask_here(self, request: Request[Any], done: Callable[[Any], None]) -> None:
        if isinstance(request, ListTransactionsRequest):
            self._slices.add(self._runtime.list_transactions(request, done), wanted=lambda: True)
        elif isinstance(request, DescribeTransactionsRequest):
            self._slices.add(self._describe_here(request.transactional_ids, done), wanted=lambda: True)

    def _describe_here(
        self, ids: list[str], done: Callable[[DescribeTransactionsResponse], None]
    ) -> Generator[None, None, None]:
        """Describe ids that are coordinated here, a slice at a time: each open transaction may belong to a different
        id."""

        def gathered(answers: list[DescribeTransactionsResponse]) -> None:
            states = [state for answer in answers for state in answer.transaction_states]
            done(DescribeTransactionsResponse(transaction_states=states))

        parts = [ids[start : start + _IDS_AT_A_TIME] for start in range(0, len(ids), _IDS_AT_A_TIME)]
        gather = Gather(len(parts), gathered)
        for number, some in enumerate(parts):
            self._runtime.describe(DescribeTransactionsRequest(some), gather.part(number))
            yield


class _Survey:
    """The transactions of some producers that one coordinator has."""

    def __init__(
        self,
        ask: Callable[[Request[Any], Callable[[Any], None]], None],
        ids: list[str],
        producer_ids: list[int],
        done: Callable[[Owned | None], None],
    ) -> None:
        self._ask = ask
        self._ids = ids
        self._producer_ids = producer_ids
        self._done = done
        self._producers: dict[str, int] = {}

    def begin(self) -> None:
        self._ask(DescribeTransactionsRequest(self._ids), self._before)

    def _before(self, response: DescribeTransactionsResponse | None) -> None:
        if response is None or not all_are_served(response, self._ids):
            self._done(None)
        else:
            self._ask(ListTransactionsRequest([], self._producer_ids), self._listed)

    def _listed(self, response: ListTransactionsResponse | None) -> None:
        found = None if response is None else ids_of_producers(response)
        if found is None:
            self._done(None)
        else:
            self._producers = found
            self._ask(DescribeTransactionsRequest([*self._ids, *found]), self._after)

    def _after(self, response: DescribeTransactionsResponse | None) -> None:
        if response is None or not all_are_served(response, [*self._ids, *self._producers]):
            self._done(None)
        else:
            self._done(owned(response, self._producers))
