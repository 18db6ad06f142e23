"""This broker's transactions: runs their coordinator on the event loop, with its clock and its slots."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from muster.broker.clock import SteadyClock
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination
from muster.broker.groups.on_loop import ShardsOnLoop
from muster.broker.links.links import Links
from muster.broker.topics.catalogue import Topic
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.hanging import HangingTransactions, Journals
from muster.broker.transactions.marker_routes import MarkerRoutes
from muster.broker.transactions.markers import MarkerSender, MarkerWriter
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.coordinator.transaction_runtime import TransactionRuntime
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.effects import TransactionEvent, TransactionTimedOut
from muster.errors import ErrorCode, KafkaError
from muster.log import OngoingTransaction
from muster.model import Node, TopicPartition
from muster.protocol.records.control_records import TxnMarker

log = logging.getLogger("muster.transactions")

ABORT_AGAIN_S = 0.2
"""Seconds after which another attempt to abort a hanging transaction is made, if its partition's groups were still
being read."""


class TransactionService(ShardsOnLoop):
    """Coordinates transactions on the running loop.

    Args:
        writer: writes markers into the partitions here; `places` and `links` lead to those of other brokers.
        take_id: returns an unused producer id; raises OSError if there is none now.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: SteadyClock,
        coordination: Coordination,
        partitions: Partitions,
        groups: Journals,
        writer: MarkerWriter,
        locator: PartitionLocator,
        links: Links,
        on_written: Callable[[], None],
        take_id: Callable[[], int],
    ) -> None:
        super().__init__(clock, coordination, on_written)
        self._config = config
        self.writer = writer
        self._take_id = take_id
        self.timed_out = 0
        """Transactions aborted because they lasted longer than their timeout."""
        self._links = links
        self.sender = MarkerSender(MarkerRoutes(writer, locator, links).write)
        self._shards = self.runtime = self.sender.coordinator = TransactionRuntime(
            _config(config),
            coordination.store(),
            self._host(self._on_event),
            new_id=self.new_id,
            send_markers=self.sender,
        )
        self._hanging = HangingTransactions(partitions, groups, locator, links, self.runtime, self._abort_hanging)

    @property
    def verifies(self) -> bool:
        """Whether partitions are verified; can be changed at run time."""
        return self._config.flag("transaction.partition.verification.enable")

    def new_id(self) -> int:
        """An unused producer id.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, as in Kafka: no block of ids is reserved. After
                COORDINATOR_NOT_AVAILABLE Java's idempotent producer looks up the coordinator of a transactional id that
                it does not have, and logs an uncaught error.
        """
        try:
            return self._take_id()
        except OSError as error:
            log.error("could not reserve a block of producer ids: %s", error)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from None

    def start(self) -> None:
        """See `ShardsOnLoop.start`."""
        super().start()
        self._hanging.check_soon()

    def stop(self) -> None:
        """See `ShardsOnLoop.stop`."""
        self._hanging.stop()
        self._links.close()
        super().stop()

    def _on_event(self, event: TransactionEvent) -> None:
        self.timed_out += isinstance(event, TransactionTimedOut)
        _log_event(event)

    # ------------------------------------------------------------------------------------- slots, topics

    def leave(self) -> None:
        """See `ShardsOnLoop.leave`."""
        super().leave()
        self._hanging.check_soon()

    def followed(self, nodes: Iterable[Node]) -> None:
        """A broker of a cluster has caught up with its image of the cluster, which has these brokers."""
        self._coordination.followed()
        self._links.keep(nodes)
        self._hanging.coordinators_changed()

    def leads(self, topic: Topic, index: int, epoch: int) -> None:
        """See `Coordination.leads`."""
        self._coordination.leads(topic, index, epoch)
        self._hanging.check_soon()

    def resigns(self, name: str, index: int, epoch: int) -> None:
        """See `Coordination.resigns`."""
        self._coordination.resigns(name, index, epoch)

    # ------------------------------------------------------------------------------------- after a crash

    def _abort_hanging(self, each: OngoingTransaction, where: TopicPartition) -> None:
        log.warning(
            "aborting the transaction of producer %d, epoch %d in %s, open since offset %d: no transactional id has it",
            each.producer_id,
            each.producer_epoch,
            where,
            each.first_offset,
        )
        marker = TxnMarker(each.producer_id, each.producer_epoch, False, max(each.coordinator_epoch, 0), 0)
        self._write_abort(marker, where)

    def _write_abort(self, marker: TxnMarker, where: TopicPartition) -> None:
        def done(errors: list[ErrorCode]) -> None:
            [error] = errors
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:  # its groups are still being loaded
                self._loop.call_later(ABORT_AGAIN_S, self._write_abort, marker, where)
            elif error is not ErrorCode.NONE:
                log.error("the transaction of producer %d in %s: %s", marker.producer_id, where, error.name)

        self.writer.write_all(marker, [where], done)


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
