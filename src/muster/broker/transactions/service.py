"""This broker's transactions: runs their coordinator on the event loop, with its clock and its slots."""

from __future__ import annotations

import logging
from collections.abc import Callable

from muster.broker.clock import SteadyClock, now_ms
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination
from muster.broker.groups.on_loop import ShardsOnLoop
from muster.broker.topics.catalogue import Topic
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.markers import Marker, MarkerSender, MarkerWriter
from muster.coordinator.transaction_runtime import TransactionRuntime
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.effects import TransactionEvent, TransactionTimedOut
from muster.errors import ErrorCode, KafkaError
from muster.log import OpenTransaction
from muster.model import Node, TopicPartition

log = logging.getLogger("muster.transactions")

RECONCILE_AGAIN_S = 0.2
"""Seconds after which to look again whether all transactions are loaded."""


class Transactions(ShardsOnLoop):
    """Coordinates transactions on the running loop.

    Args:
        take_id: gives an unused producer id; raises OSError if there is none now.
        exists: whether there is such a partition, here or on another broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: SteadyClock,
        coordination: Coordination,
        writer: MarkerWriter,
        on_written: Callable[[], None],
        take_id: Callable[[], int],
        exists: Callable[[TopicPartition], bool],
    ) -> None:
        super().__init__(clock, on_written)
        self.serving = False
        """Whether the coordinator serves: its topic exists."""
        self._config = config
        self.writer = writer
        self._coordination = coordination
        self._take_id = take_id
        sender = MarkerSender(writer, exists)
        self._shards = self.runtime = sender.coordinator = TransactionRuntime(
            _config(config),
            coordination.store(),
            clock=clock,
            on_event=_log_event,
            new_id=self.new_id,
            send_markers=sender,
            schedule_flush=self._schedule_flush,
            on_deadline_moved=self._deadline_moved,
            later=self._load_later,
            wall_clock=now_ms,
        )

    @property
    def verifies(self) -> bool:
        """Whether partitions are verified; can be changed at run time."""
        return self._config.flag("transaction.partition.verification.enable")

    def new_id(self) -> int:
        """An unused producer id. Raises KafkaError if there is none now."""
        try:
            return self._take_id()
        except OSError as error:
            log.error("could not reserve a block of producer ids: %s", error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None

    def start(self) -> None:
        """Serve the transactional ids that this broker coordinates."""
        self._coordination.start(self)
        self._load_at_once()

    def stop(self) -> None:
        """Stop the deadlines; write the pending records."""
        self._stop()

    def ensure(self) -> bool:
        """Create the topic if need be. Returns whether it exists; without it every request is refused."""
        return self.serving or self._coordination.ensure()

    def coordinator(self, transactional_id: str) -> Node | None:
        """The broker that coordinates an id, None while none does."""
        return self._coordination.coordinator(transactional_id)

    # ------------------------------------------------------------------------------------- slots (coordination.Slots)

    def serve(self, slots: int) -> None:
        """As `Slots.serve`."""
        self.runtime.config.transaction_state_log_num_partitions = slots
        self.runtime.take_none()
        self.serving = True

    def serve_all(self, slots: int, written: list[int], epoch: int) -> None:
        """As `Slots.serve_all`."""
        self.runtime.config.transaction_state_log_num_partitions = slots
        self.runtime.load_all(written, epoch)
        self.serving = True

    def lead(self, slot: int, epoch: int) -> None:
        """Coordinate the ids of a slot."""
        self.runtime.load(slot, epoch)

    def resign(self, slot: int, epoch: int | None = None) -> None:
        """Stop coordinating the ids of a slot."""
        self.runtime.unload(slot, epoch)

    def is_rebalancing(self, slot: int) -> bool:
        """As `Slots.is_rebalancing`: nothing that another coordinator would not know."""
        return False

    def release_durable(self) -> None:
        """As `Slots.release_durable`."""
        self.runtime.release_durable()
        self._deadline_moved()

    def leave(self) -> None:
        """All ids are gone with their topic."""
        self.serving = False
        self.runtime.unload_all()

    def topic_created(self, topic: Topic) -> None:
        """A standalone broker has created a topic."""
        self._coordination.topic_created(topic)

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""
        self._coordination.topic_deleted(name)

    # ------------------------------------------------------------------------------------- after a crash

    def reconcile(self, partitions: Partitions) -> None:
        """After a start: a transaction that is open in a partition, and that no transactional id has, would hold the
        partition's readers up forever: it is aborted. A power failure may leave one behind where not every write was
        synced."""
        if self.serving and not self.runtime.is_all_loaded:
            self._loop.call_later(RECONCILE_AGAIN_S, self.reconcile, partitions)
            return
        for found in partitions.led():
            for each in found.open_transactions():
                where = found.topic_partition
                if not self.runtime.has_open(each.producer_id, where):
                    self._abort_hanging(each, where)

    def _abort_hanging(self, each: OpenTransaction, where: TopicPartition) -> None:
        log.warning(
            "aborting the transaction of producer %d, epoch %d in %s, open since offset %d: no transactional id has it",
            each.producer_id,
            each.producer_epoch,
            where,
            each.first_offset,
        )
        marker = Marker(each.producer_id, each.producer_epoch, False, max(each.coordinator_epoch, 0), 0)
        self._write_abort(marker, where)

    def _write_abort(self, marker: Marker, where: TopicPartition) -> None:
        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:  # its groups are still loading
                self._loop.call_later(RECONCILE_AGAIN_S, self._write_abort, marker, where)
            elif error is not ErrorCode.NONE:
                log.error("the transaction of producer %d in %s: %s", marker.producer_id, where, error.name)

        self.writer.write(marker, where, done)


def _log_event(event: TransactionEvent) -> None:
    if isinstance(event, TransactionTimedOut):
        log.info(
            "transaction of %s (producer %d, epoch %d) aborted: longer than its timeout of %d ms",
            event.transactional_id,
            event.producer_id,
            event.producer_epoch,
            event.timeout_ms,
        )
    else:
        log.info("transactional id %s expired", event.transactional_id)


def _config(config: BrokerConfig) -> TransactionConfig:
    of = config.integer
    return TransactionConfig(
        transaction_max_timeout_ms=of("transaction.max.timeout.ms"),
        transaction_abort_timed_out_transaction_cleanup_interval_ms=of(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        transactional_id_expiration_ms=of("transactional.id.expiration.ms"),
        transaction_remove_expired_transaction_cleanup_interval_ms=of(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
        transaction_state_log_num_partitions=of("transaction.state.log.num.partitions"),
        transaction_version=of("transaction.version"),
    )
