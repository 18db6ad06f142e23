"""Kafka's error codes, and the exceptions that muster raises.

An `ErrorCode` is sent on the wire; rules return it as a value. Exceptions are for the user's side of the
clients and for bytes that break the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition


class ErrorCode(IntEnum):
    """Error codes as Apache Kafka 4.2 numbers them.

    How a client reacts to a code is defined here once, following Kafka's exception classes. `retriable`: the same
    request may succeed later. `stale_metadata`: it may succeed at another broker, so metadata is fetched first.
    `stale_coordinator`: the coordinator is looked up first. Every other error goes to the caller. What a code means to
    one kind of request is in `client/core/refusals.py`.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def retriable(self) -> bool:
        """Whether Kafka classes the error as transient (`RetriableException`)."""
        return self in _RETRIABLE

    @property
    def stale_metadata(self) -> bool:
        """Whether the client asked the wrong broker because its metadata is old (`InvalidMetadataException`)."""
        return self in STALE_METADATA

    @property
    def stale_coordinator(self) -> bool:
        """Whether the broker that answered does not, or no longer, coordinate the group."""
        return self in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


NONE = ErrorCode.NONE
"""For code that runs for every request: Python 3.11 takes 0.1 µs to look up an enum member."""


def error_code(value: int) -> ErrorCode:
    """The code for a number from the wire; a number newer than this table becomes UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

_RETRIABLE = STALE_METADATA | frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


_ENDS_CLIENTS = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.PRODUCER_FENCED})
"""Another client has taken this one's place (KIP-345, KIP-98)."""


class MusterError(Exception):
    """The base class of everything that muster raises on purpose.

    When Kafka or the network fails, the error is a `KafkaError` with Kafka's own error code; `KafkaTimeoutError` and
    `KafkaConnectionError` are two of them. If the call, the settings or the state of the client is wrong, the error
    is another subclass. docs/reference/errors.md lists them.
    """

    fatal: bool = False
    """Whether the client that raised it is unusable: close it and create another."""

    abortable: bool = False
    """Whether the producer's transaction can no longer be committed: abort it, and the producer is usable again."""

    @property
    def retriable(self) -> bool:
        """Whether trying again may help."""
        return False


class ProtocolError(MusterError):
    """Bytes that violate the protocol: truncated, oversized, or of an unknown type."""


class CorruptRecordError(ProtocolError):
    """A record batch whose length, magic, CRC or compressed payload is wrong."""


class UnsupportedVersionError(MusterError):
    """The peer, or this build, supports no version of the request that can carry what the caller asked for."""


class ConfigError(MusterError):
    """A setting that is unknown, of the wrong type or out of range. The message says what is allowed."""


class KafkaError(MusterError):
    """A broker answered with an error code, or did not answer."""

    def __init__(self, code: ErrorCode | int, message: str | None = None) -> None:
        self.code = error_code(code)
        self.message = message
        if self.code in _ENDS_CLIENTS:
            self.fatal = True
        super().__init__(f"{self.code.name}: {message}" if message else self.code.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message), self.__dict__

    @property
    def retriable(self) -> bool:
        """Whether trying again may help."""
        return self.code.retriable


class _NoAnswerError(KafkaError):
    """An error that did not come from a broker: its text is only the message."""

    _CODE = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(self._CODE, message)
        self.args = (message,)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,), self.__dict__


class KafkaTimeoutError(_NoAnswerError):
    """A call did not finish in time. Whether the broker carried it out is unknown."""

    _CODE = ErrorCode.REQUEST_TIMED_OUT


class KafkaConnectionError(_NoAnswerError):
    """No broker could be reached, or the connection broke during a call."""

    _CODE = ErrorCode.NETWORK_EXCEPTION


class AuthenticationError(KafkaError):
    """The broker rejected the client's identity, or the client the broker's: a wrong password, an untrusted
    certificate, an expired token. The message says what to check.

    Retrying does not help unless `retriable` is true (an unreachable token endpoint).
    """

    def __init__(self, message: str, retriable: bool = False) -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
        self.args = (message,)
        self._retriable = retriable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self._retriable), self.__dict__

    @property
    def retriable(self) -> bool:
        return self._retriable


class AdminError(KafkaError):
    """An admin call failed for at least one of its topics, partitions, groups, members, settings or brokers.

    The code and the message are those of the first that failed. `outcomes` has the outcome of each: its `KafkaError`,
    or what the call returns for it. The others may have succeeded: a call is not all or nothing.
    """

    def __init__(self, item: str, first: KafkaError, outcomes: Mapping[Any, Any]) -> None:
        detail = first.message or ""
        super().__init__(first.code, detail if item in detail else f"{item}: {detail}".removesuffix(": "))
        self.item = item
        """The error of the first that failed, as text."""
        self.first = first
        """Its error."""
        self.fatal = first.fatal
        self.outcomes: dict[Any, Any] = dict(outcomes)
        """The outcome of each, by topic, partition, group, member, resource or broker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.item, self.first, self.outcomes), self.__dict__

    @property
    def retriable(self) -> bool:
        return self.first.retriable

    @classmethod
    def of(cls, outcomes: Mapping[Any, Any]) -> AdminError | None:
        """The error of the first that failed; None if all succeeded."""
        for item, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                return cls(str(item), outcome, outcomes)
            if isinstance(outcome, Mapping):  # offsets of a group, by partition
                failed = cls.of(outcome)
                if failed is not None:
                    return cls(f"{item}: {failed.item}", failed.first, outcomes)
        return None


class LogTruncationError(KafkaError):
    """The log lost records that this consumer has read: a leader without them was elected (KIP-320).

    Raised if `auto_offset_reset` is "none". `divergent` is the offset at which the logs diverge, None if it is
    unknown. Call `seek` to continue.
    """

    def __init__(self, message: str, divergent: OffsetAndMetadata | None = None) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.divergent = divergent

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.divergent), self.__dict__


class CommitFailedError(KafkaError):
    """Offsets could not be committed because the group has since assigned the partitions to another member.

    The new owners of the partitions will process the records since the last commit again.
    """


class ProducerFencedError(KafkaError):
    """Another producer with the same `transactional_id` has taken this one's place, or the transaction took longer than
    `transaction_timeout_ms` and was aborted by its coordinator (KIP-98). Uncommitted records are discarded."""

    fatal = True


class TransactionAbortedError(MusterError):
    """The record, or the offsets, were part of a transaction that this producer has aborted."""


class ClosedError(MusterError):
    """The client was closed before or during the call."""

    fatal = True


class SerializationError(MusterError):
    """A key or value could not be turned into bytes, or bytes into a key or value. The cause is what the serializer or
    deserializer raised."""


class RecordDeserializationError(SerializationError):
    """A record could not be deserialized (KIP-334). The position stays at that record.

    Each poll tries again, and raises again while that fails. `consumer.seek(error.partition, error.offset + 1)` skips
    the record; `error.record` has its raw key, value and headers, for a dead-letter topic (KIP-1036).
    """

    def __init__(self, origin: str, record: ConsumerRecord, cause: str) -> None:
        self.partition = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        self.origin = origin
        """"key" or "value"."""
        self.record = record
        """The record as it was fetched, with bytes."""
        text = f"the {origin} of the record at offset {record.offset} of {self.partition} cannot be deserialized"
        super().__init__(f"{text}: {cause}; seek() past it to continue")
        self._cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.origin, self.record, self._cause), self.__dict__


class IllegalArgumentError(MusterError, ValueError):
    """A value that no request can carry: a negative offset, text that is not valid UTF-8, a time that is not in whole
    milliseconds; or a pattern that is not a regular expression."""


class WakeupError(MusterError):
    """`wakeup` ended the call. Nothing was handed out, and nothing is lost."""


class IllegalStateError(MusterError):
    """The client's state does not allow the call: for example `seek` on a partition that is not assigned."""
