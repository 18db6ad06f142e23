"""What an error code means to each request of a client: one table, for consumers, producers, admin and Spark.

`muster.errors` classifies each code on its own, as Kafka does: `retriable`, `stale_metadata`, `stale_coordinator`. How
a client reacts also depends on the request. For example, a producer waits for a topic that does not exist, but to a
caller that asks about the topic this error is the answer. Kafka has these differences in the handler of each response;
here they are side by side.
"""

from __future__ import annotations

from muster.errors import STALE_METADATA, ErrorCode, KafkaError

# --- any request -----------------------------------------------------------------------------------------------------


def may_heal(code: ErrorCode) -> bool:
    """Whether to repeat a request whose answer is needed. As in Kafka's consumer, UNKNOWN_SERVER_ERROR counts as
    transient here."""
    return code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR


def passes(code: ErrorCode) -> bool:
    """Whether to repeat a question about a topic by name. That the topic does not exist is an answer."""
    return code.retriable and code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_retriable(error: object) -> bool:
    """Whether a call may succeed later: its error came from a broker or the network, and Kafka calls it retriable."""
    return isinstance(error, KafkaError) and error.retriable


# --- of a group's member ---------------------------------------------------------------------------------------------

NO_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
"""Heartbeat, OffsetCommit: the membership under which the request was sent has ended."""

JOIN_AT_ONCE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""JoinGroup, SyncGroup: rejoin immediately. Other retriable errors wait for a backoff first."""

COMMIT_AGAIN = frozenset(
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

# --- of a reader -----------------------------------------------------------------------------------------------------

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

# --- of a producer ---------------------------------------------------------------------------------------------------

PRODUCER_ENDS = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""After these an idempotent producer cannot continue."""

LIMITS = {
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes (without it the broker's message.max.bytes)",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the topic's segment.bytes (without it the broker's log.segment.bytes)",
}
"""Which setting a batch exceeds: the response of Kafka's brokers has neither its name nor the size."""

NOT_WRITTEN = PRODUCER_ENDS | {
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

# --- of an administrator ---------------------------------------------------------------------------------------------

TOPICS_AGAIN = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""CreateTopics, DeleteTopics."""

LIST_OFFSETS_AGAIN = STALE_METADATA - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""ListOffsets, DescribeProducers. That a partition does not exist is an answer."""

RECORDS_AGAIN = LIST_OFFSETS_AGAIN | {ErrorCode.REQUEST_TIMED_OUT}
"""DeleteRecords: a follower did not delete them in time. Repeating the deletion does no harm."""

CONFIGS_AGAIN = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})
"""IncrementalAlterConfigs."""

GROUPS_AGAIN = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""Any request to a group's coordinator."""

OFFSETS_AGAIN = GROUPS_AGAIN | {ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS}
"""OffsetFetch and OffsetCommit for a group of which the caller is not a member."""
