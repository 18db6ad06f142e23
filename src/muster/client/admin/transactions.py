"""Transactions: list and describe them, end one that hangs, fence producers (KIP-664)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar, overload

from muster.client.admin.part import AdminPart, checked
from muster.client.core.admin import transactions as rules
from muster.client.core.admin.transactions import (
    AbortTransactionSpec,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
)
from muster.client.core.checks import check_text
from muster.client.core.refusals import COORDINATOR_RETRIABLE, FENCE_RETRIABLE, LIST_OFFSETS_RETRIABLE
from muster.errors import ErrorCode, KafkaError
from muster.model import Node, TopicPartition
from muster.protocol.api import CoordinatorType
from muster.protocol.transaction_messages import DescribeTransactionsRequest, ListTransactionsRequest

V = TypeVar("V")


class TransactionsPart(AdminPart):
    """The methods of `AsyncAdmin` for transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, sorted: those in the given states (Ongoing, PrepareCommit,
        CompleteAbort, …), with these producer ids, whose transaction began more than `duration_ms` ago, and whose whole
        name matches the pattern (an RE2 regular expression). A filter that is not set matches all.

        Raises:
            KafkaError: a broker refused to list its ids, or did not answer; INVALID_REGULAR_EXPRESSION for the pattern.
            UnsupportedVersionError: a broker is too old for the filter.
        """
        by_broker = await self.list_transactions_by_broker(
            states=states, producer_ids=producer_ids, duration_ms=duration_ms, pattern=pattern
        )
        return rules.all_listed(by_broker)

    async def list_transactions_by_broker(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> dict[int, list[TransactionListing] | KafkaError]:
        """`list_transactions` by broker, or why a broker did not list its ids.

        Raises:
            KafkaTimeoutError: no broker answered.
            UnsupportedVersionError: a broker is too old for the filter.
        """
        wanted, ids = list(states), list(producer_ids)
        matching = None if pattern is None else check_text("the pattern", pattern)

        def build(version: int) -> ListTransactionsRequest:
            return rules.list_transactions_request(version, wanted, ids, duration_ms, matching)

        async def one(broker: int) -> list[TransactionListing]:
            answer = await self._calls.send(broker, ListTransactionsRequest, build)
            return rules.listed_transactions(answer, broker)

        return await self._calls.of_brokers(one, COORDINATOR_RETRIABLE)

    @overload
    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, TransactionDescription]: ...

    @overload
    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, TransactionDescription | KafkaError]: ...

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, raise_errors: bool = True
    ) -> dict[str, Any]:
        """The state of transactional ids. The error for one that does not exist is TRANSACTIONAL_ID_NOT_FOUND."""

        async def ask(node: Node, ids: list[str]) -> dict[str, TransactionDescription | KafkaError]:
            answer = await self._calls.ask(node.node_id, DescribeTransactionsRequest(ids))
            return rules.described_transactions(answer, node.node_id)

        return checked(await self._of_ids(transactional_ids, ask, COORDINATOR_RETRIABLE), raise_errors)

    async def abort_transaction(
        self, spec: AbortTransactionSpec, *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Write an abort marker to a partition for a hanging transaction, which its coordinator no longer knows. For
        others use `fence_producers`: the coordinator does not learn of this marker. The error for an epoch below the
        producer's is INVALID_PRODUCER_EPOCH, for one below the last coordinator's TRANSACTION_COORDINATOR_FENCED.
        """
        wanted = rules.check_spec(spec)

        async def ask(leader: int, _led: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            return rules.aborted(await self._calls.ask(leader, rules.abort_marker(wanted)), wanted)

        return checked(await self._of_leaders([wanted.partition], ask, LIST_OFFSETS_RETRIABLE), raise_errors)

    @overload
    async def fence_producers(
        self, transactional_ids: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, ProducerIdAndEpoch]: ...

    @overload
    async def fence_producers(
        self, transactional_ids: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, ProducerIdAndEpoch | KafkaError]: ...

    async def fence_producers(self, transactional_ids: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """Fence the current producer of each transactional id with a new epoch, and abort its transaction
        (InitProducerId). Returns when the transaction has ended. An id that does not exist is created."""

        async def ask(node: Node, ids: list[str]) -> dict[str, ProducerIdAndEpoch | KafkaError]:
            found = {}
            for each in ids:
                request = rules.fence_request(each, self._config.request_timeout_ms)
                found[each] = rules.fenced(await self._calls.ask(node.node_id, request), each)
            return found

        return checked(await self._of_ids(transactional_ids, ask, FENCE_RETRIABLE), raise_errors)

    async def _of_ids(
        self,
        transactional_ids: Iterable[str],
        ask: Callable[[Node, list[str]], Awaitable[dict[str, V | KafkaError]]],
        retry: frozenset[ErrorCode],
    ) -> dict[str, V | KafkaError]:
        ids = rules.check_transactional_ids(transactional_ids)
        return await self._calls.of_coordinators(ids, ask, retry, CoordinatorType.TRANSACTION)
