"""`with producer.transaction():` - a transaction that ends with its block.

The block's end commits. An exception aborts the transaction and is raised to the caller; so is the error of a commit
that finds that a record was not written. If the block itself has committed or aborted, its end does nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Protocol, TypeVar

from muster.client.core.produce.transactions import ProducerTransactions
from muster.client.producer.producer_engine import exit_timeout_ms
from muster.errors import MusterError


class _Producer(Protocol):
    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...

    def abort_transaction(self, *, timeout_ms: int | None = None) -> None: ...


class _AsyncProducer(Protocol):
    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def abort_transaction(self, *, timeout_ms: int | None = None) -> None: ...


P = TypeVar("P", bound=_Producer)
A = TypeVar("A", bound=_AsyncProducer)


def _limit_ms(error: BaseException) -> int | None:
    """How long the abort may hold up an exception: an interrupt only briefly, because the abort continues."""
    return None if isinstance(error, Exception) else exit_timeout_ms(error)


def _add_note(error: BaseException, failure: MusterError) -> None:
    error.add_note(f"and the transaction was not aborted: {failure}")


class TransactionBlock(Generic[P]):
    """The block of a blocking producer."""

    def __init__(self, producer: P, transactions: ProducerTransactions) -> None:
        self._producer = producer
        self._transactions = transactions

    def __enter__(self) -> P:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
        elif self._transactions.is_open:
            try:
                self._producer.commit_transaction()
            except MusterError as failure:
                self._abort(failure)
                raise

    def _abort(self, error: BaseException) -> None:
        if self._transactions.is_open:
            try:
                self._producer.abort_transaction(timeout_ms=_limit_ms(error))
            except MusterError as failure:
                _add_note(error, failure)


class AsyncTransactionBlock(Generic[A]):
    """The block of an asyncio producer."""

    def __init__(self, producer: A, transactions: ProducerTransactions) -> None:
        self._producer = producer
        self._transactions = transactions

    async def __aenter__(self) -> A:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort(error)
        elif self._transactions.is_open:
            try:
                await self._producer.commit_transaction()
            except MusterError as failure:
                await self._abort(failure)
                raise

    async def _abort(self, error: BaseException) -> None:
        if self._transactions.is_open:
            try:
                await self._producer.abort_transaction(timeout_ms=_limit_ms(error))
            except MusterError as failure:
                _add_note(error, failure)
