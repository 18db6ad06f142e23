"""The messages of Kafka's protocol that muster speaks, as Apache Kafka 4.2 defines them.

Facts only: names, types, versions, nullability, tags, defaults. `schema.py` states the grammar, `codegen.py` makes
`messages.py` and the codecs from this table, and `tests/oracle/test_definitions.py` compares each line with the
definitions inside Kafka's own jars.
"""

MESSAGES = """
header RequestHeader versions=1-2 flexible=2+
    request_api_key int16
    request_api_version int16
    correlation_id int32
    client_id string 1+ null=1+ inflexible

header ResponseHeader versions=0-1 flexible=1+
    correlation_id int32

request ProduceRequest key=0 versions=3-13 flexible=9+
    transactional_id string 3+ null=3+ default=null
    acks int16
    timeout_ms int32
    topic_data []TopicProduceData
        name string 0-12 ignorable
        topic_id uuid 13+ ignorable
        partition_data []PartitionProduceData
            index int32
            records records null=0+

response ProduceResponse key=0 versions=3-13 flexible=9+
    responses []TopicProduceResponse
        name string 0-12 ignorable
        topic_id uuid 13+ ignorable
        partition_responses []PartitionProduceResponse
            index int32
            error_code int16
            base_offset int64
            log_append_time_ms int64 2+ default=-1 ignorable
            log_start_offset int64 5+ default=-1 ignorable
            record_errors []BatchIndexAndErrorMessage 8+ ignorable
                batch_index int32 8+
                batch_index_error_message string 8+ null=8+ default=null
            error_message string 8+ null=8+ default=null ignorable
            current_leader LeaderIdAndEpoch 10+ tag=0:10+
                leader_id int32 10+ default=-1
                leader_epoch int32 10+ default=-1
    throttle_time_ms int32 1+ default=0 ignorable
    node_endpoints []NodeEndpoint 10+ tag=0:10+
        node_id int32 10+
        host string 10+
        port int32 10+
        rack string 10+ null=10+ default=null

request FetchRequest key=1 versions=4-18 older=0-3 flexible=12+
    cluster_id string 12+ null=12+ default=null tag=0:12+ ignorable
    replica_id int32 0-14 default=-1
    replica_state ReplicaState 15+ tag=1:15+
        replica_id int32 15+ default=-1
        replica_epoch int64 15+ default=-1
    max_wait_ms int32
    min_bytes int32
    max_bytes int32 3+ default=2147483647 ignorable
    isolation_level int8 4+ default=0 ignorable
    session_id int32 7+ default=0 ignorable
    session_epoch int32 7+ default=-1 ignorable
    topics []FetchTopic
        topic string 0-12 ignorable
        topic_id uuid 13+ ignorable
        partitions []FetchPartition
            partition int32
            current_leader_epoch int32 9+ default=-1 ignorable
            fetch_offset int64
            last_fetched_epoch int32 12+ default=-1
            log_start_offset int64 5+ default=-1 ignorable
            partition_max_bytes int32
            replica_directory_id uuid 17+ tag=0:17+ ignorable
            high_watermark int64 18+ default=9223372036854775807 tag=1:18+ ignorable
    forgotten_topics_data []ForgottenTopic 7+
        topic string 7-12 ignorable
        topic_id uuid 13+ ignorable
        partitions []int32 7+
    rack_id string 11+ default="" ignorable

response FetchResponse key=1 versions=4-18 older=0-3 flexible=12+
    throttle_time_ms int32 1+ ignorable
    error_code int16 7+ ignorable
    session_id int32 7+ default=0
    responses []FetchableTopicResponse
        topic string 0-12 ignorable
        topic_id uuid 13+ ignorable
        partitions []PartitionData
            partition_index int32
            error_code int16
            high_watermark int64
            last_stable_offset int64 4+ default=-1 ignorable
            log_start_offset int64 5+ default=-1 ignorable
            diverging_epoch EpochEndOffset 12+ tag=0:12+
                epoch int32 12+ default=-1
                end_offset int64 12+ default=-1
            current_leader LeaderIdAndEpoch 12+ tag=1:12+
                leader_id int32 12+ default=-1
                leader_epoch int32 12+ default=-1
            snapshot_id SnapshotId 12+ tag=2:12+
                end_offset int64 default=-1
                epoch int32 default=-1
            aborted_transactions []AbortedTransaction 4+ null=4+ ignorable
                producer_id int64 4+
                first_offset int64 4+
            preferred_read_replica int32 11+ default=-1
            records records null=0+
    node_endpoints []NodeEndpoint 16+ tag=0:16+
        node_id int32 16+
        host string 16+
        port int32 16+
        rack string 16+ null=16+ default=null

request ListOffsetsRequest key=2 versions=1-11 older=0-0 flexible=6+
    replica_id int32
    isolation_level int8 2+
    topics []ListOffsetsTopic
        name string
        partitions []ListOffsetsPartition
            partition_index int32
            current_leader_epoch int32 4+ default=-1 ignorable
            timestamp int64
            max_num_offsets int32 0-0 default=1
    timeout_ms int32 10+ ignorable

response ListOffsetsResponse key=2 versions=1-11 older=0-0 flexible=6+
    throttle_time_ms int32 2+ ignorable
    topics []ListOffsetsTopicResponse
        name string
        partitions []ListOffsetsPartitionResponse
            partition_index int32
            error_code int16
            timestamp int64 1+ default=-1
            offset int64 1+ default=-1
            leader_epoch int32 4+ default=-1
            old_style_offsets []int64 0-0 ignorable

request MetadataRequest key=3 versions=0-13 flexible=9+
    topics []MetadataRequestTopic null=1+
        topic_id uuid 10+ ignorable
        name string null=10+
    allow_auto_topic_creation bool 4+ default=true
    include_cluster_authorized_operations bool 8-10
    include_topic_authorized_operations bool 8+

response MetadataResponse key=3 versions=0-13 flexible=9+
    throttle_time_ms int32 3+ ignorable
    brokers []MetadataResponseBroker
        node_id int32
        host string
        port int32
        rack string 1+ null=1+ default=null ignorable
    cluster_id string 2+ null=2+ default=null ignorable
    controller_id int32 1+ default=-1 ignorable
    topics []MetadataResponseTopic
        error_code int16
        name string null=12+
        topic_id uuid 10+ ignorable
        is_internal bool 1+ default=false ignorable
        partitions []MetadataResponsePartition
            error_code int16
            partition_index int32
            leader_id int32
            leader_epoch int32 7+ default=-1 ignorable
            replica_nodes []int32
            isr_nodes []int32
            offline_replicas []int32 5+ ignorable
        topic_authorized_operations int32 8+ default=-2147483648
    cluster_authorized_operations int32 8-10 default=-2147483648
    error_code int16 13+ ignorable

request OffsetCommitRequest key=8 versions=2-10 flexible=8+
    group_id string
    generation_id_or_member_epoch int32 1+ default=-1 ignorable
    member_id string 1+ ignorable
    group_instance_id string 7+ null=7+ default=null
    retention_time_ms int64 2-4 default=-1 ignorable
    topics []OffsetCommitRequestTopic
        name string 0-9 ignorable
        topic_id uuid 10+ ignorable
        partitions []OffsetCommitRequestPartition
            partition_index int32
            committed_offset int64
            committed_leader_epoch int32 6+ default=-1 ignorable
            committed_metadata string null=0+

response OffsetCommitResponse key=8 versions=2-10 flexible=8+
    throttle_time_ms int32 3+ ignorable
    topics []OffsetCommitResponseTopic
        name string 0-9 ignorable
        topic_id uuid 10+ ignorable
        partitions []OffsetCommitResponsePartition
            partition_index int32
            error_code int16

request OffsetFetchRequest key=9 versions=1-10 flexible=6+
    group_id string 0-7
    topics []OffsetFetchRequestTopic 0-7 null=2-7
        name string 0-7
        partition_indexes []int32 0-7
    groups []OffsetFetchRequestGroup 8+
        group_id string 8+
        member_id string 9+ null=9+ default=null ignorable
        member_epoch int32 9+ default=-1 ignorable
        topics []OffsetFetchRequestTopics 8+ null=8+
            name string 8-9 ignorable
            topic_id uuid 10+ ignorable
            partition_indexes []int32 8+
    require_stable bool 7+ default=false

response OffsetFetchResponse key=9 versions=1-10 flexible=6+
    throttle_time_ms int32 3+ ignorable
    topics []OffsetFetchResponseTopic 0-7
        name string 0-7
        partitions []OffsetFetchResponsePartition 0-7
            partition_index int32 0-7
            committed_offset int64 0-7
            committed_leader_epoch int32 5-7 default=-1 ignorable
            metadata string 0-7 null=0-7
            error_code int16 0-7
    error_code int16 2-7 default=0 ignorable
    groups []OffsetFetchResponseGroup 8+
        group_id string 8+
        topics []OffsetFetchResponseTopics 8+
            name string 8-9 ignorable
            topic_id uuid 10+ ignorable
            partitions []OffsetFetchResponsePartitions 8+
                partition_index int32 8+
                committed_offset int64 8+
                committed_leader_epoch int32 8+ default=-1 ignorable
                metadata string 8+ null=8+
                error_code int16 8+
        error_code int16 8+ default=0

request FindCoordinatorRequest key=10 versions=0-6 flexible=3+
    key string 0-3
    key_type int8 1+ default=0
    coordinator_keys []string 4+

response FindCoordinatorResponse key=10 versions=0-6 flexible=3+
    throttle_time_ms int32 1+ ignorable
    error_code int16 0-3
    error_message string 1-3 null=1-3 ignorable
    node_id int32 0-3
    host string 0-3
    port int32 0-3
    coordinators []Coordinator 4+
        key string 4+
        node_id int32 4+
        host string 4+
        port int32 4+
        error_code int16 4+
        error_message string 4+ null=4+ ignorable

request JoinGroupRequest key=11 versions=0-9 flexible=6+
    group_id string
    session_timeout_ms int32
    rebalance_timeout_ms int32 1+ default=-1 ignorable
    member_id string
    group_instance_id string 5+ null=5+ default=null
    protocol_type string
    protocols []JoinGroupRequestProtocol
        name string
        metadata bytes
    reason string 8+ null=8+ default=null ignorable

response JoinGroupResponse key=11 versions=0-9 flexible=6+
    throttle_time_ms int32 2+ ignorable
    error_code int16
    generation_id int32 default=-1
    protocol_type string 7+ null=7+ default=null ignorable
    protocol_name string null=7+
    leader string
    skip_assignment bool 9+ default=false
    member_id string
    members []JoinGroupResponseMember
        member_id string
        group_instance_id string 5+ null=5+ default=null ignorable
        metadata bytes

request HeartbeatRequest key=12 versions=0-4 flexible=4+
    group_id string
    generation_id int32
    member_id string
    group_instance_id string 3+ null=3+ default=null

response HeartbeatResponse key=12 versions=0-4 flexible=4+
    throttle_time_ms int32 1+ ignorable
    error_code int16

request LeaveGroupRequest key=13 versions=0-5 flexible=4+
    group_id string
    member_id string 0-2
    members []MemberIdentity 3+
        member_id string 3+
        group_instance_id string 3+ null=3+ default=null
        reason string 5+ null=5+ default=null ignorable

response LeaveGroupResponse key=13 versions=0-5 flexible=4+
    throttle_time_ms int32 1+ ignorable
    error_code int16
    members []MemberResponse 3+
        member_id string 3+
        group_instance_id string 3+ null=3+
        error_code int16 3+

request SyncGroupRequest key=14 versions=0-5 flexible=4+
    group_id string
    generation_id int32
    member_id string
    group_instance_id string 3+ null=3+ default=null
    protocol_type string 5+ null=5+ default=null ignorable
    protocol_name string 5+ null=5+ default=null ignorable
    assignments []SyncGroupRequestAssignment
        member_id string
        assignment bytes

response SyncGroupResponse key=14 versions=0-5 flexible=4+
    throttle_time_ms int32 1+ ignorable
    error_code int16
    protocol_type string 5+ null=5+ default=null ignorable
    protocol_name string 5+ null=5+ default=null ignorable
    assignment bytes

request DescribeGroupsRequest key=15 versions=0-6 flexible=5+
    groups []string
    include_authorized_operations bool 3+

response DescribeGroupsResponse key=15 versions=0-6 flexible=5+
    throttle_time_ms int32 1+ ignorable
    groups []DescribedGroup
        error_code int16
        error_message string 6+ null=6+ default=null
        group_id string
        group_state string
        protocol_type string
        protocol_data string
        members []DescribedGroupMember
            member_id string
            group_instance_id string 4+ null=4+ default=null ignorable
            client_id string
            client_host string
            member_metadata bytes
            member_assignment bytes
        authorized_operations int32 3+ default=-2147483648

request ListGroupsRequest key=16 versions=0-5 flexible=3+
    states_filter []string 4+
    types_filter []string 5+

response ListGroupsResponse key=16 versions=0-5 flexible=3+
    throttle_time_ms int32 1+ ignorable
    error_code int16
    groups []ListedGroup
        group_id string
        protocol_type string
        group_state string 4+ ignorable
        group_type string 5+ ignorable

request ApiVersionsRequest key=18 versions=0-4 flexible=3+
    client_software_name string 3+ ignorable
    client_software_version string 3+ ignorable

response ApiVersionsResponse key=18 versions=0-4 flexible=3+
    error_code int16
    api_keys []ApiVersion
        api_key int16
        min_version int16
        max_version int16
    throttle_time_ms int32 1+ ignorable
    supported_features []SupportedFeatureKey 3+ tag=0:3+ ignorable
        name string 3+
        min_version int16 3+
        max_version int16 3+
    finalized_features_epoch int64 3+ default=-1 tag=1:3+ ignorable
    finalized_features []FinalizedFeatureKey 3+ tag=2:3+ ignorable
        name string 3+
        max_version_level int16 3+
        min_version_level int16 3+
    zk_migration_ready bool 3+ default=false tag=3:3+ ignorable

request CreateTopicsRequest key=19 versions=2-7 flexible=5+
    topics []CreatableTopic
        name string
        num_partitions int32
        replication_factor int16
        assignments []CreatableReplicaAssignment
            partition_index int32
            broker_ids []int32
        configs []CreatableTopicConfig
            name string
            value string null=0+
    timeout_ms int32 default=60000
    validate_only bool 1+ default=false

response CreateTopicsResponse key=19 versions=2-7 flexible=5+
    throttle_time_ms int32 2+ ignorable
    topics []CreatableTopicResult
        name string
        topic_id uuid 7+ ignorable
        error_code int16
        error_message string 1+ null=0+ ignorable
        topic_config_error_code int16 5+ tag=0:5+ ignorable
        num_partitions int32 5+ default=-1 ignorable
        replication_factor int16 5+ default=-1 ignorable
        configs []CreatableTopicConfigs 5+ null=5+ ignorable
            name string 5+
            value string 5+ null=5+
            read_only bool 5+
            config_source int8 5+ default=-1 ignorable
            is_sensitive bool 5+

request DeleteTopicsRequest key=20 versions=1-6 flexible=4+
    topics []DeleteTopicState 6+
        name string 6+ null=6+ default=null
        topic_id uuid 6+
    topic_names []string 0-5 ignorable
    timeout_ms int32

response DeleteTopicsResponse key=20 versions=1-6 flexible=4+
    throttle_time_ms int32 1+ ignorable
    responses []DeletableTopicResult
        name string null=6+
        topic_id uuid 6+ ignorable
        error_code int16
        error_message string 5+ null=5+ default=null ignorable

request InitProducerIdRequest key=22 versions=0-6 flexible=2+
    transactional_id string null=0+
    transaction_timeout_ms int32
    producer_id int64 3+ default=-1
    producer_epoch int16 3+ default=-1
    enable2_pc bool 6+ default=false
    keep_prepared_txn bool 6+ default=false

response InitProducerIdResponse key=22 versions=0-6 flexible=2+
    throttle_time_ms int32 ignorable
    error_code int16
    producer_id int64 default=-1
    producer_epoch int16
    ongoing_txn_producer_id int64 6+ default=-1
    ongoing_txn_producer_epoch int16 6+ default=-1

request OffsetForLeaderEpochRequest key=23 versions=2-4 flexible=4+
    replica_id int32 3+ default=-2 ignorable
    topics []OffsetForLeaderTopic
        topic string
        partitions []OffsetForLeaderPartition
            partition int32
            current_leader_epoch int32 2+ default=-1 ignorable
            leader_epoch int32

response OffsetForLeaderEpochResponse key=23 versions=2-4 flexible=4+
    throttle_time_ms int32 2+ ignorable
    topics []OffsetForLeaderTopicResult
        topic string
        partitions []EpochEndOffset
            error_code int16
            partition int32
            leader_epoch int32 1+ default=-1 ignorable
            end_offset int64 default=-1

request DescribeConfigsRequest key=32 versions=1-4 flexible=4+
    resources []DescribeConfigsResource
        resource_type int8
        resource_name string
        configuration_keys []string null=0+
    include_synonyms bool 1+ default=false
    include_documentation bool 3+ default=false

response DescribeConfigsResponse key=32 versions=1-4 flexible=4+
    throttle_time_ms int32
    results []DescribeConfigsResult
        error_code int16
        error_message string null=0+
        resource_type int8
        resource_name string
        configs []DescribeConfigsResourceResult
            name string
            value string null=0+
            read_only bool
            config_source int8 1+ default=-1 ignorable
            is_sensitive bool
            synonyms []DescribeConfigsSynonym 1+ ignorable
                name string 1+
                value string 1+ null=0+
                source int8 1+
            config_type int8 3+ default=0 ignorable
            documentation string 3+ null=0+ ignorable

request DeleteGroupsRequest key=42 versions=0-2 flexible=2+
    groups_names []string

response DeleteGroupsResponse key=42 versions=0-2 flexible=2+
    throttle_time_ms int32
    results []DeletableGroupResult
        group_id string
        error_code int16

request DescribeClusterRequest key=60 versions=0-2 flexible=0+
    include_cluster_authorized_operations bool
    endpoint_type int8 1+ default=1
    include_fenced_brokers bool 2+

response DescribeClusterResponse key=60 versions=0-2 flexible=0+
    throttle_time_ms int32
    error_code int16
    error_message string null=0+ default=null
    endpoint_type int8 1+ default=1
    cluster_id string
    controller_id int32 default=-1
    brokers []DescribeClusterBroker
        broker_id int32
        host string
        port int32
        rack string null=0+ default=null
        is_fenced bool 2+
    cluster_authorized_operations int32 default=-2147483648

request DescribeTopicPartitionsRequest key=75 versions=0 flexible=0+
    topics []TopicRequest
        name string
    response_partition_limit int32 default=2000
    cursor Cursor null=0+ default=null
        topic_name string
        partition_index int32

response DescribeTopicPartitionsResponse key=75 versions=0 flexible=0+
    throttle_time_ms int32 ignorable
    topics []DescribeTopicPartitionsResponseTopic
        error_code int16
        name string null=0+
        topic_id uuid ignorable
        is_internal bool default=false ignorable
        partitions []DescribeTopicPartitionsResponsePartition
            error_code int16
            partition_index int32
            leader_id int32
            leader_epoch int32 default=-1 ignorable
            replica_nodes []int32
            isr_nodes []int32
            eligible_leader_replicas []int32 null=0+ default=null
            last_known_elr []int32 null=0+ default=null
            offline_replicas []int32 ignorable
        topic_authorized_operations int32 default=-2147483648
    next_cursor Cursor null=0+ default=null
        topic_name string
        partition_index int32

data ConsumerProtocolSubscription versions=0-3 flexible=none
    topics []string
    user_data bytes null=0+ default=null
    owned_partitions []TopicPartition 1+ ignorable
        topic string 1+
        partitions []int32 1+
    generation_id int32 2+ default=-1 ignorable
    rack_id string 3+ null=3+ default=null ignorable

data ConsumerProtocolAssignment versions=0-3 flexible=none
    assigned_partitions []TopicPartition
        topic string
        partitions []int32
    user_data bytes null=0+ default=null

coordinator-key OffsetCommitKey key=1 versions=0 flexible=none
    group string 0
    topic string 0
    partition int32 0

coordinator-value OffsetCommitValue key=1 versions=0-4 flexible=4+
    offset int64
    leader_epoch int32 3+ default=-1 ignorable
    metadata string
    commit_timestamp int64
    expire_timestamp int64 1 default=-1 ignorable
    topic_id uuid 4+ tag=0:4+ ignorable

coordinator-key GroupMetadataKey key=2 versions=0 flexible=none
    group string 0

coordinator-value GroupMetadataValue key=2 versions=0-4 flexible=4+
    protocol_type string
    generation int32
    protocol string null=0+
    leader string null=0+
    current_state_timestamp int64 2+ default=-1 ignorable
    members []MemberMetadata
    struct MemberMetadata
        member_id string
        group_instance_id string 3+ null=3+ default=null ignorable
        client_id string
        client_host string
        rebalance_timeout int32 1+ default=-1 ignorable
        session_timeout int32
        subscription bytes
        assignment bytes
"""
