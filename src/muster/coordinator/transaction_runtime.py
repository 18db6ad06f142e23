"""The transaction coordinator's service: routes requests to the shards of transactional ids, and answers them.

`shards.py` makes a shard's decisions durable before their answers go out, and before markers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

from muster.coordinator.parts import Gather
from muster.coordinator.shards.clocks import shift_between
from muster.coordinator.shards.log_store import LogJournal
from muster.coordinator.shards.served_shard import Answer, ServedShard
from muster.coordinator.shards.shards import ShardHost, Shards
from muster.coordinator.shards.store import Store
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.effects import Markers, TransactionEffects
from muster.coordinator.transactions.entry import TransactionState
from muster.coordinator.transactions.id_pattern import IdPattern
from muster.coordinator.transactions.rules import NewId, ProducerIdentity
from muster.coordinator.transactions.shard import IDS_AT_A_TIME, TransactionShard
from muster.errors import ConfigError, ErrorCode
from muster.model import TRANSACTION_STATE_TOPIC, TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.transaction_messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_STATE_NAMES = frozenset({state.kafka_name for state in TransactionState} | {"Dead", "PrepareEpochFence"})
"""Kafka's states; an id is never seen in the last two."""

Decide = Callable[[TransactionShard, Answer, int], TransactionEffects]


class TransactionRuntime(Shards[TransactionShard]):
    """All transactional ids of one broker.

    Args:
        new_id: returns an unused producer id; raises KafkaError if there is none now.
        send_markers: called with `Markers` once the decision to commit or abort is durable. The sender calls `marked`
        for partitions that have their marker.

    The other arguments are those of `Shards`; the slots are the partitions of `__transaction_state`.
    """

    def __init__(
        self,
        config: TransactionConfig,
        store: Store,
        host: ShardHost,
        *,
        new_id: NewId,
        send_markers: Callable[[Any], None],
    ) -> None:
        slots = config.transaction_state_log_num_partitions
        super().__init__(
            TRANSACTION_STATE_TOPIC, slots, lambda: TransactionShard(config, new_id, send_markers), store, host
        )
        self.config = config

    # ------------------------------------------------------------------------------------------------------- requests

    def init_producer_id(self, request: InitProducerIdRequest, version: int, reply: Answer) -> None:
        """InitProducerId with a transactional id."""
        self._decide(
            request.transactional_id or "",
            reply,
            lambda shard, ticket, now: shard.init_producer_id(request, version, ticket, now),
            lambda error: InitProducerIdResponse(0, error, -1, -1),
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        client_version: int,
        reply: Callable[[ErrorCode], None],
    ) -> None:
        """Add partitions to an id's transaction; `reply` is called with an ErrorCode."""
        self._decide(
            transactional_id,
            reply,
            lambda shard, ticket, now: shard.add_partitions(
                transactional_id, producer, partitions, client_version, ticket, now
            ),
            lambda error: error,
        )

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        reply: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Ask whether partitions are in an id's transaction; `reply` is called with an ErrorCode for each."""
        self._decide(
            transactional_id,
            reply,
            lambda shard, ticket, now: shard.verify_partitions(transactional_id, producer, partitions, ticket),
            lambda error: dict.fromkeys(partitions, error),
        )

    def end(self, request: EndTxnRequest, version: int, reply: Answer) -> None:
        """EndTxn."""
        self._decide(
            request.transactional_id,
            reply,
            lambda shard, ticket, now: shard.end(request, version, ticket, now),
            lambda error: EndTxnResponse(0, error),
        )

    def describe(self, request: DescribeTransactionsRequest, reply: Answer) -> None:
        """DescribeTransactions."""
        shift = shift_between(self._clock(), self._wall_clock())
        gather = Gather(
            len(request.transactional_ids),
            lambda found: reply(DescribeTransactionsResponse(transaction_states=found)),
        )
        for i, transactional_id in enumerate(request.transactional_ids):
            self._decide(
                transactional_id,
                gather.part(i),
                lambda shard, ticket, now, name=transactional_id: TransactionEffects().reply(
                    ticket, shard.describe(name, shift)
                ),  # type: ignore[misc]
                lambda error, name=transactional_id: DescribeTransactionsResponseTransactionState(error, name),  # type: ignore[misc]
            )

    def list_transactions(self, request: ListTransactionsRequest, reply: Answer) -> Generator[None, None, None]:
        """ListTransactions, of all shards here, a slice at a time: there may be a hundred thousand ids."""
        error = self._state_error
        if error is ErrorCode.NONE and (self._loading or self._unavailable):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        try:
            pattern = IdPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        except ConfigError:
            error = error or ErrorCode.INVALID_REGULAR_EXPRESSION
        if error is not ErrorCode.NONE:
            reply(ListTransactionsResponse(error_code=error))
            return
        wanted, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
        unknown = [name for name in dict.fromkeys(request.state_filters) if name not in _STATE_NAMES]

        def done(found: list[Any]) -> None:
            failed = [code for code in found if isinstance(code, ErrorCode) and code is not ErrorCode.NOT_COORDINATOR]
            if pattern is not None and pattern.is_too_costly:
                failed.append(ErrorCode.INVALID_REGULAR_EXPRESSION)
            states = [state for states in found if not isinstance(states, ErrorCode) for state in states]
            reply(
                ListTransactionsResponse(0, failed[0], [])
                if failed
                else ListTransactionsResponse(0, 0, unknown, states)
            )

        served_shards = list(self._served.values())
        gather = Gather(len(served_shards), done)
        for i, served in enumerate(served_shards):
            listing = (wanted, producer_ids, request.duration_filter, pattern, self._clock())
            states = yield from served.shard.list_transactions(*listing)
            if self._served.get(served.slot) is not served:  # dropped meanwhile
                gather.part(i)(ErrorCode.NOT_COORDINATOR)
                continue
            self._decide_in(
                served,
                gather.part(i),
                lambda shard, ticket, now, states=states: TransactionEffects().reply(ticket, states),  # type: ignore[misc]
                lambda error: error,
            )
            yield

    # -------------------------------------------------------------------------------------------------------- markers

    def marked(self, markers: Markers, partitions: frozenset[TopicPartition]) -> None:
        """These partitions have their marker, or no longer need one."""
        served = self._served.get(self.partition_for(markers.transactional_id))
        if served is not None:
            now = self._clock()
            self._settle(served, now, served.shard.marked, markers, partitions, now)
            self._flush_unless_scheduled()

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool:
        """Whether the transaction still needs this marker."""
        served = self._served.get(self.partition_for(markers.transactional_id))
        return served is not None and served.shard.awaits(markers, partition)

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch under which this coordinator has an id: partitions refuse markers of an older one."""
        slot = self.partition_for(transactional_id)
        served = self._served.get(slot)
        if served is not None and isinstance(served.journal, LogJournal):
            return served.journal.writing_epoch
        return self._epochs.get(slot, 0)

    @property
    def id_count(self) -> int:
        """How many transactional ids there are."""
        return sum(len(served.shard.entries) for served in self._served.values())

    def count(self) -> Generator[None, None, tuple[Counter[str], int]]:
        """How many ids are in each state, and how many markers are not written yet, a slice at a time."""
        states, unmarked = Counter(dict.fromkeys(TransactionState, 0)), 0
        for served in list(self._served.values()):
            entries = list(served.shard.entries.values())
            for start in range(0, len(entries), IDS_AT_A_TIME):
                states.update(each.state for each in entries[start : start + IDS_AT_A_TIME])
                yield
            unmarked += served.shard.unmarked_count
        return Counter({state.kafka_name: count for state, count in states.items()}), unmarked

    # ---------------------------------------------------------------------------------------------------------- shards

    def _decide(self, transactional_id: str, reply: Answer, decide: Decide, refuse: Callable[[ErrorCode], Any]) -> None:
        if not transactional_id:
            reply(refuse(ErrorCode.INVALID_REQUEST))
            return
        served = self._serve(self.partition_for(transactional_id))
        if isinstance(served, ServedShard):
            self._decide_in(served, reply, decide, refuse)
        else:
            reply(refuse(served))

    def _decide_in(
        self,
        served: ServedShard[TransactionShard],
        reply: Answer,
        decide: Decide,
        refuse: Callable[[ErrorCode], Any],
    ) -> None:
        now = self._clock()
        answered = self._settle(served, now, decide, served.shard, reply, now)
        if answered is not None and reply not in answered:
            reply(refuse(ErrorCode.UNKNOWN_SERVER_ERROR))
        self._flush_unless_scheduled()
