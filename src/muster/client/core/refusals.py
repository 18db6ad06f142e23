"""What an error code means to each request of a client: one table, for consumers, producers, admin and Spark.

`muster.errors` classifies each code on its own, as Kafka does: `retriable`, `stale_metadata`, `stale_coordinator`. How
a client reacts also depends on the request. For example, a producer waits for a topic that does not exist, but to a
caller that queries the topic this error is the answer. Kafka has these differences in the handler of each response;
here they are side by side.
"""

from __future__ import annotations

from muster.errors import STALE_METADATA, ErrorCode, KafkaError

# --- any request -----------------------------------------------------------------------------------------------------


def should_retry(code: ErrorCode) -> bool:
    """Whether to repeat a request that the client depends on. As in Kafka's consumer, UNKNOWN_SERVER_ERROR
    counts as transient here."""
    return code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR


def should_retry_query(code: ErrorCode) -> bool:
    """Whether to repeat a query about a named topic. "The topic does not exist" is an answer."""
    return code.retriable and code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_retriable(error: object) -> bool:
    """Whether a call may succeed later: its error came from a broker or the network, and Kafka calls it retriable."""
    return isinstance(error, KafkaError) and error.retriable


# --- a group's member ------------------------------------------------------------------------------------------------

MEMBERSHIP_ENDED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
"""Heartbeat, OffsetCommit: the membership under which the request was sent has ended."""

REJOIN_IMMEDIATELY = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""JoinGroup, SyncGroup: rejoin immediately. Other retriable errors wait for a backoff first."""

COMMIT_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""OffsetCommit: retried while the caller has time left."""

# --- a reader --------------------------------------------------------------------------------------------------------

SESSION_LOST = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Fetch: a new session is opened immediately."""

# --- a producer ------------------------------------------------------------------------------------------------------

PRODUCER_FATAL = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Produce: after these, an idempotent producer cannot continue."""

TRANSACTION_FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""AddPartitionsToTxn: a transactional producer cannot continue. After any other error that is not retriable it can,
once it has aborted the transaction."""

OFFSETS_ABORTABLE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""AddOffsetsToTxn, TxnOffsetCommit: the transaction must be aborted. After any other error that is not retriable the
producer cannot continue."""

COMMIT_ABORTABLE = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.TRANSACTION_ABORTABLE})
"""EndTxn with a commit, as `OFFSETS_ABORTABLE`. An abort that is refused ends the producer in any case: it would
be retried forever."""

INIT_RETRIABLE = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""FindCoordinator, InitProducerId for a producer without an id: the caller may try again. Any other error that is not
retriable ends the producer."""

LIMITS = {
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes (if unset, the broker's message.max.bytes)",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the topic's segment.bytes (if unset, the broker's log.segment.bytes)",
}
"""Which setting a batch exceeds: the response of Kafka's brokers has neither its name nor the size."""

EPOCH_IS_OLD = (
    "another producer with the same transactional_id was started, or the transaction took longer than "
    "transaction_timeout_ms"
)
"""What an error about an older epoch means: the broker's response has no text."""

NOT_WRITTEN = PRODUCER_FATAL | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
"""A broker finds these errors before it writes. Other errors may also come after the write: NOT_LEADER_OR_FOLLOWER, for
example, answers a batch that waited for its replicas while the leader changed."""

# --- an administrator ------------------------------------------------------------------------------------------------

TOPICS_RETRIABLE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""CreateTopics, DeleteTopics."""

LIST_OFFSETS_RETRIABLE = STALE_METADATA - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""ListOffsets, DescribeProducers. "The partition does not exist" is an answer."""

RECORDS_RETRIABLE = LIST_OFFSETS_RETRIABLE | {ErrorCode.REQUEST_TIMED_OUT}
"""DeleteRecords: a follower did not delete them in time. Repeating the deletion does no harm."""

CONFIGS_RETRIABLE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})
"""IncrementalAlterConfigs."""

COORDINATOR_RETRIABLE = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""Any request to the coordinator of a group or of a transactional id."""

OFFSETS_RETRIABLE = COORDINATOR_RETRIABLE | {ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS}
"""OffsetFetch and OffsetCommit for a group of which the caller is not a member."""

FENCE_RETRIABLE = COORDINATOR_RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS}
"""InitProducerId for others: the transaction of the fenced producer is still being aborted."""
