"""The messages of transactions (KIP-98, KIP-890), as Apache Kafka 4.2 defines them, and the records of
`__transaction_state`. `schema.py` states the grammar.

Tags from 1000 on are muster's own: Kafka ignores tags that it does not know.
"""

TRANSACTION_MESSAGES = """
request AddPartitionsToTxnRequest key=24 versions=0-5 flexible=3+
    transactions []AddPartitionsToTxnTransaction 4+
        transactional_id string 4+
        producer_id int64 4+
        producer_epoch int16 4+
        verify_only bool 4+ default=false
        topics []AddPartitionsToTxnTopic 4+
    v3_and_below_transactional_id string 0-3
    v3_and_below_producer_id int64 0-3
    v3_and_below_producer_epoch int16 0-3
    v3_and_below_topics []AddPartitionsToTxnTopic 0-3
    struct AddPartitionsToTxnTopic
        name string
        partitions []int32

response AddPartitionsToTxnResponse key=24 versions=0-5 flexible=3+
    throttle_time_ms int32
    error_code int16 4+ ignorable
    results_by_transaction []AddPartitionsToTxnResult 4+
        transactional_id string 4+
        topic_results []AddPartitionsToTxnTopicResult 4+
    results_by_topic_v3_and_below []AddPartitionsToTxnTopicResult 0-3
    struct AddPartitionsToTxnTopicResult
        name string
        results_by_partition []AddPartitionsToTxnPartitionResult
    struct AddPartitionsToTxnPartitionResult
        partition_index int32
        partition_error_code int16

request AddOffsetsToTxnRequest key=25 versions=0-4 flexible=3+
    transactional_id string
    producer_id int64
    producer_epoch int16
    group_id string

response AddOffsetsToTxnResponse key=25 versions=0-4 flexible=3+
    throttle_time_ms int32
    error_code int16

request EndTxnRequest key=26 versions=0-5 flexible=3+
    transactional_id string
    producer_id int64
    producer_epoch int16
    committed bool

response EndTxnResponse key=26 versions=0-5 flexible=3+
    throttle_time_ms int32
    error_code int16
    producer_id int64 5+ default=-1 ignorable
    producer_epoch int16 5+ default=-1 ignorable

request WriteTxnMarkersRequest key=27 versions=1-2 flexible=1+
    markers []WritableTxnMarker
        producer_id int64
        producer_epoch int16
        transaction_result bool
        topics []WritableTxnMarkerTopic
            name string
            partition_indexes []int32
        coordinator_epoch int32
        transaction_version int8 2+ default=0 ignorable

response WriteTxnMarkersResponse key=27 versions=1-2 flexible=1+
    markers []WritableTxnMarkerResult
        producer_id int64
        topics []WritableTxnMarkerTopicResult
            name string
            partitions []WritableTxnMarkerPartitionResult
                partition_index int32
                error_code int16

request TxnOffsetCommitRequest key=28 versions=0-5 flexible=3+
    transactional_id string
    group_id string
    producer_id int64
    producer_epoch int16
    generation_id int32 3+ default=-1
    member_id string 3+ default=""
    group_instance_id string 3+ null=3+ default=null
    topics []TxnOffsetCommitRequestTopic
        name string
        partitions []TxnOffsetCommitRequestPartition
            partition_index int32
            committed_offset int64
            committed_leader_epoch int32 2+ default=-1 ignorable
            committed_metadata string null=0+

response TxnOffsetCommitResponse key=28 versions=0-5 flexible=3+
    throttle_time_ms int32
    topics []TxnOffsetCommitResponseTopic
        name string
        partitions []TxnOffsetCommitResponsePartition
            partition_index int32
            error_code int16

request DescribeTransactionsRequest key=65 versions=0 flexible=0+
    transactional_ids []string

response DescribeTransactionsResponse key=65 versions=0 flexible=0+
    throttle_time_ms int32
    transaction_states []TransactionState
        error_code int16
        transactional_id string
        transaction_state string
        transaction_timeout_ms int32
        transaction_start_time_ms int64
        producer_id int64
        producer_epoch int16
        topics []TopicData
            topic string
            partitions []int32

request ListTransactionsRequest key=66 versions=0-2 flexible=0+
    state_filters []string
    producer_id_filters []int64
    duration_filter int64 1+ default=-1
    transactional_id_pattern string 2+ null=2+ default=null

response ListTransactionsResponse key=66 versions=0-2 flexible=0+
    throttle_time_ms int32
    error_code int16
    unknown_state_filters []string
    transaction_states []TransactionState
        transactional_id string
        producer_id int64
        transaction_state string

coordinator-key TransactionLogKey key=0 versions=0 flexible=none
    transactional_id string 0

coordinator-value TransactionLogValue key=0 versions=0-1 flexible=1+
    producer_id int64
    previous_producer_id int64 1+ default=-1 tag=0:1+
    next_producer_id int64 1+ default=-1 tag=1:1+
    producer_epoch int16
    next_producer_epoch int16 1+ default=-1 tag=3:1+
    transaction_timeout_ms int32
    transaction_status int8
    transaction_partitions []PartitionsSchema null=0+
        topic string
        partition_ids []int32
    transaction_last_update_timestamp_ms int64
    transaction_start_timestamp_ms int64
    client_transaction_version int16 1+ default=0 tag=2:1+
    last_producer_epoch int16 1+ default=-1 tag=1000:1+
"""
