"""The settings of transactions: Apache Kafka's broker keys in snake_case, with Kafka 4.2's defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionConfig:
    """A Kafka key such as `transaction.max.timeout.ms` is the field `transaction_max_timeout_ms`."""

    transaction_max_timeout_ms: int = 900_000
    """The longest `transaction.timeout.ms` that a producer may request; more is INVALID_TRANSACTION_TIMEOUT."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """How often to look for transactions that have timed out."""

    transactional_id_expiration_ms: int = 604_800_000
    """How long a transactional id without a transaction is kept."""

    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often to look for transactional ids that have expired."""

    transaction_state_log_num_partitions: int = 50
    """Partitions of `__transaction_state`."""

    transaction_version: int = 2
    """The finalized `transaction.version`: from 2 on, each transaction has an epoch of its own."""
