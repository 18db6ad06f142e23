"""One shard: the transactional ids that hash to one partition of `__transaction_state`.

A shard is used by one thread. Each handler takes a request, a ticket and the time, and returns effects whose records
are already applied. `replay` on an empty shard, record by record, and then `loaded`, restore it from its log.

A decision to commit or abort is a record and, once that is durable, `Markers` for the sender of markers, which to the
rules is just another ticket. The sender reports which partitions have their marker (`marked`); the last one completes
the transaction. A shard that is loaded with outstanding markers sends them all again: a partition accepts a marker
twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

from muster.coordinator.shards.clocks import NEVER, NO_TIMESTAMP
from muster.coordinator.shards.served_shard import Ticket
from muster.coordinator.transactions import rules
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.effects import (
    EntryRecord,
    Markers,
    MarkersLost,
    TransactionalIdExpired,
    TransactionEffects,
    TransactionTimedOut,
)
from muster.coordinator.transactions.entry import ENDING, NO_TIMEOUT_MS, ONGOING, PREPARE_COMMIT, Transaction
from muster.coordinator.transactions.id_pattern import IdPattern
from muster.coordinator.transactions.rules import NewId, ProducerIdentity, TransactionOutcome
from muster.errors import NONE, ErrorCode, KafkaError, ProtocolError
from muster.model import TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import (
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsResponseTransactionState,
    TopicData,
    TransactionLogKey,
)
from muster.protocol.transaction_records import TransactionRecord, decode_record, encode_record, value_version

EPOCH_BUMP_IN_END_TXN = 5
"""Since this version, the answer to EndTxn has the ids for the next transaction."""

IDS_AT_A_TIME = 500
"""How many ids are listed or counted between two yields: less than a millisecond's work."""

NO_PRODUCER = (-1, -1)


class TransactionShard:
    """Transactional ids of one partition.

    Args:
        new_id: returns an unused producer id; raises KafkaError if there is none now.
        send_markers: the ticket of the sender of markers.
    """

    def __init__(self, config: TransactionConfig, new_id: NewId, send_markers: Ticket) -> None:
        self.config = config
        self.entries: dict[str, Transaction] = {}
        self._new_id = new_id
        self._send_markers = send_markers
        # Partitions without a marker, of transactions that are being ended.
        self._unmarked: dict[str, set[TopicPartition]] = {}
        # (time, transactional id): when to check a transaction's timeout. An id's alarm is valid if its time is in
        # `_armed`. An alarm may be left from an earlier transaction; it is then set again when it is due.
        self._alarms: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        self._expiry_check_at = NEVER
        self.first_alarm = NEVER
        """A time no later than the next deadline; exact after a call of `next_deadline`."""

    # ------------------------------------------------------------------------------------------------------- requests

    def init_producer_id(
        self, request: InitProducerIdRequest, version: int, ticket: Ticket, now: int
    ) -> TransactionEffects:
        """InitProducerId with a transactional id."""
        effects = TransactionEffects()
        known = None
        if (request.producer_id, request.producer_epoch) != NO_PRODUCER:
            known = ProducerIdentity(request.producer_id, request.producer_epoch)
        transactional_id, timeout_ms = request.transactional_id or "", request.transaction_timeout_ms
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            outcome = TransactionOutcome(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        else:
            found, server_version = self.entries.get(transactional_id), self.config.transaction_version
            try:
                outcome = rules.init_producer_id(found, known, timeout_ms, server_version, self._new_id, now)
            except KafkaError as no_id:
                outcome = TransactionOutcome(no_id.code)
        self._carry_out(transactional_id, outcome, effects)
        error = fenced_error(outcome.error, version, 4)
        response = InitProducerIdResponse(0, error, outcome.producer_id, outcome.producer_epoch)
        return effects.reply(ticket, response)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        client_version: int,
        ticket: Ticket,
        now: int,
    ) -> TransactionEffects:
        """AddPartitionsToTxn or AddOffsetsToTxn, for one id; the answer is an ErrorCode."""
        effects = TransactionEffects()
        found = self.entries.get(transactional_id)
        outcome = rules.add_partitions(found, producer, partitions, client_version, now)
        self._carry_out(transactional_id, outcome, effects)
        return effects.reply(ticket, outcome.error)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition], ticket: Ticket
    ) -> TransactionEffects:
        """Whether partitions are in an id's transaction; the answer is an ErrorCode for each."""
        found = rules.verify_partitions(self.entries.get(transactional_id), producer, partitions)
        return TransactionEffects().reply(ticket, found)

    def end(self, request: EndTxnRequest, version: int, ticket: Ticket, now: int) -> TransactionEffects:
        """EndTxn."""
        effects = TransactionEffects()
        transactional_id = request.transactional_id
        client_version = 2 if version >= EPOCH_BUMP_IN_END_TXN else 0
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        found = self.entries.get(transactional_id)
        try:
            outcome = rules.end(found, producer, request.committed, client_version, self._new_id, now)
        except KafkaError as no_id:
            outcome = TransactionOutcome(no_id.code)
        error = fenced_error(outcome.error, version, 2)
        effects.reply(ticket, EndTxnResponse(0, error, outcome.producer_id, outcome.producer_epoch))
        self._carry_out(transactional_id, outcome, effects)
        return effects

    # -------------------------------------------------------------------------------------------------- describe, list

    def describe(self, transactional_id: str, shift: int) -> DescribeTransactionsResponseTransactionState:
        """One id of a DescribeTransactions, its times shifted by `shift` ms."""
        found = self.entries.get(transactional_id)
        if found is None:
            not_found = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return DescribeTransactionsResponseTransactionState(not_found, transactional_id)
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self._unmarked.get(transactional_id, found.partitions)):
            topics.setdefault(topic, []).append(partition)
        return DescribeTransactionsResponseTransactionState(
            NONE,
            transactional_id,
            found.state.kafka_name,
            found.timeout_ms,
            found.start_ms if found.start_ms == NO_TIMESTAMP else found.start_ms + shift,
            found.producer_id,
            found.producer_epoch,
            [TopicData(topic, partitions) for topic, partitions in topics.items()],
        )

    def list_transactions(
        self,
        states: frozenset[str],
        producer_ids: frozenset[int],
        longer_than_ms: int,
        pattern: IdPattern | None,
        now: int,
    ) -> Generator[None, None, list[ListTransactionsResponseTransactionState]]:
        """The ids that pass all filters of a ListTransactions, a slice at a time; an empty filter passes all. As in
        Kafka, an id that has never had a transaction passes any filter by duration: its start is -1 ms since 1970."""
        found = []
        for count, (transactional_id, each) in enumerate(list(self.entries.items()), 1):
            if (
                (not producer_ids or each.producer_id in producer_ids)
                and (not states or each.state.kafka_name in states)
                and (longer_than_ms < 0 or each.start_ms == NO_TIMESTAMP or now - each.start_ms > longer_than_ms)
                and (pattern is None or pattern.matches(transactional_id))
            ):
                state = each.state.kafka_name
                found.append(ListTransactionsResponseTransactionState(transactional_id, each.producer_id, state))
            if not count % IDS_AT_A_TIME:
                yield
        return found

    # -------------------------------------------------------------------------------------------------------- markers

    def marked(self, markers: Markers, partitions: Iterable[TopicPartition], now: int) -> TransactionEffects:
        """These partitions have their marker, or no longer need one. Ignored if the transaction is not the one that the
        markers were for (KAFKA-16352)."""
        effects = TransactionEffects()
        transactional_id = markers.transactional_id
        found, unmarked = self.entries.get(transactional_id), self._unmarked.get(transactional_id)
        if found is None or unmarked is None or not self._is_of(found, markers):
            return effects
        unmarked.difference_update(partitions)
        if not unmarked:
            self._write(transactional_id, found.completed(now), effects)
        return effects

    @staticmethod
    def _is_of(found: Transaction, markers: Markers) -> bool:
        ids = (found.producer_id, found.producer_epoch, found.state is PREPARE_COMMIT)
        return ids == (markers.producer_id, markers.producer_epoch, markers.committed)

    def _send(self, transactional_id: str, entry: Transaction, effects: TransactionEffects) -> None:
        """The markers of a transaction that has been decided go out when the decision is durable."""
        unmarked = self._unmarked[transactional_id] = set(entry.partitions)
        ids = (transactional_id, entry.producer_id, entry.producer_epoch, entry.state is PREPARE_COMMIT)
        effects.reply(self._send_markers, Markers(*ids, entry.client_version, frozenset(unmarked)))

    @property
    def unmarked_count(self) -> int:
        """Markers that are not written yet."""
        return sum(map(len, self._unmarked.values()))

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool:
        """Whether the transaction still needs this marker."""
        found = self.entries.get(markers.transactional_id)
        unmarked = self._unmarked.get(markers.transactional_id, ())
        return found is not None and partition in unmarked and self._is_of(found, markers)

    # -------------------------------------------------------------------------------------------- records and loading

    def _carry_out(self, transactional_id: str, outcome: TransactionOutcome, effects: TransactionEffects) -> None:
        if outcome.changed is not None:
            self._write(transactional_id, outcome.changed, effects)

    def _write(self, transactional_id: str, entry: Transaction | None, effects: TransactionEffects) -> None:
        effects.records.append(EntryRecord(transactional_id, entry))
        before = self.entries.get(transactional_id, _NOTHING)
        self._apply(transactional_id, entry)
        if entry is not None and entry.state in ENDING:
            self._send(transactional_id, entry, effects)
        elif entry is not None and entry.state is ONGOING is not before.state:
            self._arm(transactional_id, entry)

    def _apply(self, transactional_id: str, entry: Transaction | None) -> None:
        self._unmarked.pop(transactional_id, None)
        if entry is None:
            self.entries.pop(transactional_id, None)
        else:
            self.entries[transactional_id] = entry

    def replay(self, key: bytes | None, value: bytes | None, shift: int) -> bool:
        """Apply a record of the log, its times shifted by `shift` ms. Returns False for a record of an unknown kind."""
        record = decode_record(key, value)
        if record is None:
            return False
        entry = None if record.value is None else Transaction.of(record.value, shift)
        self._apply(record.key.transactional_id, entry)
        return True

    def replay_transactional(self, key: bytes | None, value: bytes | None, shift: int, producer_id: int) -> bool:
        """Nothing in this topic is part of a transaction."""
        raise ProtocolError("a record of __transaction_state is in a transaction itself")

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Like `replay_transactional`; a marker means nothing here."""

    def write_down(self, records: list[EntryRecord], batch: BatchBuilder, timestamp: int, shift: int) -> None:
        """Add records to a batch, their times shifted by `shift` ms."""
        version = value_version(self.config.transaction_version)
        for transactional_id, entry in records:
            value = None if entry is None else entry.value(shift)
            batch.append(
                timestamp, *encode_record(TransactionRecord(TransactionLogKey(transactional_id), value), version)
            )

    def loaded(self, now: int) -> TransactionEffects:
        """All records have been applied: markers go out again, timeouts and expiry continue."""
        effects = TransactionEffects()
        for transactional_id, entry in self.entries.items():
            if entry.state in ENDING:
                self._send(transactional_id, entry, effects)
            elif entry.state is ONGOING:
                if entry.start_ms > now:  # the clock was set back: otherwise readers would wait until the old time
                    entry = self.entries[transactional_id] = entry._replace(start_ms=now)
                self._arm(transactional_id, entry)
        self._expiry_check_at = now + self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self.next_deadline()
        return effects

    def unload(self, error: ErrorCode) -> TransactionEffects:
        """Nothing to do: no request waits in the shard."""
        return TransactionEffects()

    def error_for_lost(self, answer: Any, error: ErrorCode) -> Any:
        """The answer to send instead of one whose records were lost."""
        return error_for_lost(answer, error)

    # ------------------------------------------------------------------------------------------------------ deadlines

    def _arm(self, transactional_id: str, entry: Transaction) -> None:
        if entry.timeout_ms != NO_TIMEOUT_MS:
            interval = max(self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms, 1)
            at = entry.start_ms + entry.timeout_ms + 1
            at += -at % interval  # one check for all transactions that time out in between, as in Kafka
            self._set_alarm(at, transactional_id)

    def _set_alarm(self, at: int, transactional_id: str) -> None:
        if at < self._armed.get(transactional_id, NEVER):
            self._armed[transactional_id] = at
            heappush(self._alarms, (at, transactional_id))
            self.first_alarm = min(self.first_alarm, at)

    def _take_alarm(self) -> str:
        at, transactional_id = heappop(self._alarms)
        if self._armed.get(transactional_id) == at:
            del self._armed[transactional_id]
        return transactional_id

    def next_deadline(self) -> int | None:
        """When to call `on_deadline`; nothing is due before."""
        while self._alarms and self.entries.get(self._alarms[0][1], _NOTHING).state is not ONGOING:
            self._take_alarm()
        self.first_alarm = min(self._alarms[0][0] if self._alarms else NEVER, self._expiry_check_at)
        return None if self.first_alarm == NEVER else self.first_alarm

    def on_deadline(self, now: int) -> TransactionEffects:
        """Do everything that is due. Afterwards `next_deadline()` is later than `now`."""
        effects = TransactionEffects()
        due = set()
        while self._alarms and self._alarms[0][0] <= now:
            due.add(self._take_alarm())
        for transactional_id in sorted(due):
            self._time_out(transactional_id, now, effects)
        if self._expiry_check_at <= now:
            interval = max(self.config.transaction_remove_expired_transaction_cleanup_interval_ms, 1)
            self._expiry_check_at = now + interval
            self._expire(now, effects)
        self.next_deadline()
        return effects

    def _time_out(self, transactional_id: str, now: int, effects: TransactionEffects) -> None:
        found = self.entries.get(transactional_id, _NOTHING)
        if not found.has_timed_out(now):
            if found.state is ONGOING:  # the alarm was set for an earlier transaction
                self._arm(transactional_id, found)
            return
        try:
            fenced = rules.fence(found, self.config.transaction_version, self._new_id, now)
        except KafkaError:  # no producer id now
            self._set_alarm(now + RETRY_MS, transactional_id)
            return
        ids = (found.producer_id, found.producer_epoch, found.timeout_ms)
        effects.events.append(TransactionTimedOut(transactional_id, *ids))
        self._write(transactional_id, fenced, effects)

    def _expire(self, now: int, effects: TransactionEffects) -> None:
        for transactional_id, entry in list(self.entries.items()):
            if entry.has_expired(self.config.transactional_id_expiration_ms, now):
                effects.events.append(TransactionalIdExpired(transactional_id))
                self._write(transactional_id, None, effects)


RETRY_MS = 1_000
"""How long to wait before asking for a producer id again."""

_NOTHING = Transaction(-1, -1, 0, 0)


def fenced_error(error: ErrorCode, version: int, known_since: int) -> ErrorCode:
    """PRODUCER_FENCED for clients that know it (KIP-588); INVALID_PRODUCER_EPOCH for older ones."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED and version < known_since else error


def error_for_lost(answer: Any, error: ErrorCode) -> Any:
    """The answer to send instead of one whose records were lost."""
    if isinstance(answer, Markers):
        return MarkersLost(answer.transactional_id)
    if isinstance(answer, ErrorCode | list):
        return error
    if isinstance(answer, Mapping):
        return dict.fromkeys(answer, error)
    if isinstance(answer, DescribeTransactionsResponseTransactionState):
        return DescribeTransactionsResponseTransactionState(error, answer.transactional_id)
    if isinstance(answer, InitProducerIdResponse):
        return InitProducerIdResponse(0, error, *NO_PRODUCER)
    return EndTxnResponse(0, error)
