"""The requests of an admin client, as Apache Kafka 4.2 defines them: partitions, records, settings, leaders, committed
offsets, log directories, producers. `schema.py` states the grammar.
"""

ADMIN_MESSAGES = """
request DeleteRecordsRequest key=21 versions=0-2 flexible=2+
    topics []DeleteRecordsTopic
        name string
        partitions []DeleteRecordsPartition
            partition_index int32
            offset int64
    timeout_ms int32

response DeleteRecordsResponse key=21 versions=0-2 flexible=2+
    throttle_time_ms int32
    topics []DeleteRecordsTopicResult
        name string
        partitions []DeleteRecordsPartitionResult
            partition_index int32
            low_watermark int64
            error_code int16

request AlterConfigsRequest key=33 versions=0-2 flexible=2+
    resources []AlterConfigsResource
        resource_type int8
        resource_name string
        configs []AlterableConfig
            name string
            value string null=0+
    validate_only bool

response AlterConfigsResponse key=33 versions=0-2 flexible=2+
    throttle_time_ms int32
    responses []AlterConfigsResourceResponse
        error_code int16
        error_message string null=0+
        resource_type int8
        resource_name string

request AlterReplicaLogDirsRequest key=34 versions=1-2 flexible=2+
    dirs []AlterReplicaLogDir
        path string
        topics []AlterReplicaLogDirTopic
            name string
            partitions []int32

response AlterReplicaLogDirsResponse key=34 versions=1-2 flexible=2+
    throttle_time_ms int32
    results []AlterReplicaLogDirTopicResult
        topic_name string
        partitions []AlterReplicaLogDirPartitionResult
            partition_index int32
            error_code int16

request DescribeLogDirsRequest key=35 versions=1-4 flexible=2+
    topics []DescribableLogDirTopic null=0+
        topic string
        partitions []int32

response DescribeLogDirsResponse key=35 versions=1-4 flexible=2+
    throttle_time_ms int32
    error_code int16 3+ ignorable
    results []DescribeLogDirsResult
        error_code int16
        log_dir string
        topics []DescribeLogDirsTopic
            name string
            partitions []DescribeLogDirsPartition
                partition_index int32
                partition_size int64
                offset_lag int64
                is_future_key bool
        total_bytes int64 4+ default=-1 ignorable
        usable_bytes int64 4+ default=-1 ignorable

request CreatePartitionsRequest key=37 versions=0-3 flexible=2+
    topics []CreatePartitionsTopic
        name string
        count int32
        assignments []CreatePartitionsAssignment null=0+
            broker_ids []int32
    timeout_ms int32
    validate_only bool

response CreatePartitionsResponse key=37 versions=0-3 flexible=2+
    throttle_time_ms int32
    results []CreatePartitionsTopicResult
        name string
        error_code int16
        error_message string null=0+ default=null

request ElectLeadersRequest key=43 versions=0-2 flexible=2+
    election_type int8 1+
    topic_partitions []TopicPartitions null=0+
        topic string
        partitions []int32
    timeout_ms int32 default=60000

response ElectLeadersResponse key=43 versions=0-2 flexible=2+
    throttle_time_ms int32
    error_code int16 1+
    replica_election_results []ReplicaElectionResult
        topic string
        partition_result []PartitionResult
            partition_id int32
            error_code int16
            error_message string null=0+

request IncrementalAlterConfigsRequest key=44 versions=0-1 flexible=1+
    resources []AlterConfigsResource
        resource_type int8
        resource_name string
        configs []AlterableConfig
            name string
            config_operation int8
            value string null=0+
    validate_only bool

response IncrementalAlterConfigsResponse key=44 versions=0-1 flexible=1+
    throttle_time_ms int32
    responses []AlterConfigsResourceResponse
        error_code int16
        error_message string null=0+
        resource_type int8
        resource_name string

request AlterPartitionReassignmentsRequest key=45 versions=0-1 flexible=0+
    timeout_ms int32 default=60000
    allow_replication_factor_change bool 1+ default=true
    topics []ReassignableTopic
        name string
        partitions []ReassignablePartition
            partition_index int32
            replicas []int32 null=0+ default=null

response AlterPartitionReassignmentsResponse key=45 versions=0-1 flexible=0+
    throttle_time_ms int32
    allow_replication_factor_change bool 1+ default=true ignorable
    error_code int16
    error_message string null=0+
    responses []ReassignableTopicResponse
        name string
        partitions []ReassignablePartitionResponse
            partition_index int32
            error_code int16
            error_message string null=0+

request ListPartitionReassignmentsRequest key=46 versions=0 flexible=0+
    timeout_ms int32 default=60000
    topics []ListPartitionReassignmentsTopics null=0+ default=null
        name string
        partition_indexes []int32

response ListPartitionReassignmentsResponse key=46 versions=0 flexible=0+
    throttle_time_ms int32
    error_code int16
    error_message string null=0+
    topics []OngoingTopicReassignment
        name string
        partitions []OngoingPartitionReassignment
            partition_index int32
            replicas []int32
            adding_replicas []int32
            removing_replicas []int32

request OffsetDeleteRequest key=47 versions=0 flexible=none
    group_id string
    topics []OffsetDeleteRequestTopic
        name string
        partitions []OffsetDeleteRequestPartition
            partition_index int32

response OffsetDeleteResponse key=47 versions=0 flexible=none
    error_code int16
    throttle_time_ms int32 ignorable
    topics []OffsetDeleteResponseTopic
        name string
        partitions []OffsetDeleteResponsePartition
            partition_index int32
            error_code int16

request UpdateFeaturesRequest key=57 versions=0-2 flexible=0+
    timeout_ms int32 default=60000
    feature_updates []FeatureUpdateKey
        feature string
        max_version_level int16
        allow_downgrade bool 0
        upgrade_type int8 1+ default=1
    validate_only bool 1+ default=false

response UpdateFeaturesResponse key=57 versions=0-2 flexible=0+
    throttle_time_ms int32
    error_code int16
    error_message string null=0+
    results []UpdatableFeatureResult 0-1 ignorable
        feature string
        error_code int16
        error_message string null=0+

request DescribeProducersRequest key=61 versions=0 flexible=0+
    topics []TopicRequest
        name string
        partition_indexes []int32

response DescribeProducersResponse key=61 versions=0 flexible=0+
    throttle_time_ms int32
    topics []TopicResponse
        name string
        partitions []PartitionResponse
            partition_index int32
            error_code int16
            error_message string null=0+ default=null
            active_producers []ProducerState
                producer_id int64
                producer_epoch int32
                last_sequence int32 default=-1
                last_timestamp int64 default=-1
                coordinator_epoch int32
                current_txn_start_offset int64 default=-1

request ListConfigResourcesRequest key=74 versions=0-1 flexible=0+
    resource_types []int8 1+

response ListConfigResourcesResponse key=74 versions=0-1 flexible=0+
    throttle_time_ms int32
    error_code int16
    config_resources []ConfigResource
        resource_name string
        resource_type int8 1+ default=16 ignorable
"""
