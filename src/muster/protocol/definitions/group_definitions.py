"""Records of `__consumer_offsets` that muster's coordinator skips: those of groups other than classic ones.
The requests of an admin client about groups of KIP-848 are here too; muster's broker does not serve them.

Keys and values of the consumer groups of KIP-848 (kinds 3 to 8, and 16), of share groups (10 to 15, KIP-932) and of
streams groups (17 to 23, KIP-1071), as Apache Kafka 4.2 defines them; `key=` is the kind. Offset commits and groups of
the classic protocol, which the coordinator writes, are in `client_definitions.py`, and `schema.py` states the grammar.
Kind 4 was replaced in 4.1 by the hash in kind 3; brokers before that wrote it. Kinds 9 and 18 are not used.
"""

GROUP_MESSAGES = """
coordinator-key ConsumerGroupMetadataKey key=3 versions=0 flexible=none
    group_id string 0

coordinator-value ConsumerGroupMetadataValue key=3 versions=0 flexible=0+
    epoch int32
    metadata_hash int64 default=0 tag=0:0+

coordinator-key ConsumerGroupPartitionMetadataKey key=4 versions=0 flexible=none
    group_id string 0

coordinator-value ConsumerGroupPartitionMetadataValue key=4 versions=0 flexible=0+
    topics []TopicMetadata
        topic_id uuid
        topic_name string
        num_partitions int32
        partition_metadata []PartitionMetadata
            partition int32
            racks []string

coordinator-key ConsumerGroupMemberMetadataKey key=5 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ConsumerGroupMemberMetadataValue key=5 versions=0 flexible=0+
    instance_id string null=0+
    rack_id string null=0+
    client_id string
    client_host string
    subscribed_topic_names []string
    subscribed_topic_regex string null=0+
    rebalance_timeout_ms int32 default=-1
    server_assignor string null=0+
    classic_member_metadata ClassicMemberMetadata null=0+ tag=0:0+
        session_timeout_ms int32
        supported_protocols []ClassicProtocol
            name string
            metadata bytes

coordinator-key ConsumerGroupTargetAssignmentMetadataKey key=6 versions=0 flexible=none
    group_id string 0

coordinator-value ConsumerGroupTargetAssignmentMetadataValue key=6 versions=0 flexible=0+
    assignment_epoch int32

coordinator-key ConsumerGroupTargetAssignmentMemberKey key=7 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ConsumerGroupTargetAssignmentMemberValue key=7 versions=0 flexible=0+
    topic_partitions []TopicPartition
        topic_id uuid
        partitions []int32

coordinator-key ConsumerGroupCurrentMemberAssignmentKey key=8 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ConsumerGroupCurrentMemberAssignmentValue key=8 versions=0 flexible=0+
    member_epoch int32
    previous_member_epoch int32
    state int8
    assigned_partitions []TopicPartitions
    partitions_pending_revocation []TopicPartitions
    struct TopicPartitions
        topic_id uuid
        partitions []int32

coordinator-key ShareGroupMemberMetadataKey key=10 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ShareGroupMemberMetadataValue key=10 versions=0 flexible=0+
    rack_id string null=0+
    client_id string
    client_host string
    subscribed_topic_names []string

coordinator-key ShareGroupMetadataKey key=11 versions=0 flexible=none
    group_id string 0

coordinator-value ShareGroupMetadataValue key=11 versions=0 flexible=0+
    epoch int32
    metadata_hash int64

coordinator-key ShareGroupTargetAssignmentMetadataKey key=12 versions=0 flexible=none
    group_id string 0

coordinator-value ShareGroupTargetAssignmentMetadataValue key=12 versions=0 flexible=0+
    assignment_epoch int32

coordinator-key ShareGroupTargetAssignmentMemberKey key=13 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ShareGroupTargetAssignmentMemberValue key=13 versions=0 flexible=0+
    topic_partitions []TopicPartition
        topic_id uuid
        partitions []int32

coordinator-key ShareGroupCurrentMemberAssignmentKey key=14 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value ShareGroupCurrentMemberAssignmentValue key=14 versions=0 flexible=0+
    member_epoch int32
    previous_member_epoch int32
    state int8
    assigned_partitions []TopicPartitions
    struct TopicPartitions
        topic_id uuid
        partitions []int32

coordinator-key ShareGroupStatePartitionMetadataKey key=15 versions=0 flexible=none
    group_id string 0

coordinator-value ShareGroupStatePartitionMetadataValue key=15 versions=0 flexible=0+
    initializing_topics []TopicPartitionsInfo
    initialized_topics []TopicPartitionsInfo
    deleting_topics []TopicInfo
    struct TopicPartitionsInfo
        topic_id uuid
        topic_name string
        partitions []int32
    struct TopicInfo
        topic_id uuid
        topic_name string

coordinator-key ConsumerGroupRegularExpressionKey key=16 versions=0 flexible=none
    group_id string 0
    regular_expression string 0

coordinator-value ConsumerGroupRegularExpressionValue key=16 versions=0 flexible=0+
    topics []string
    version int64
    timestamp int64

coordinator-key StreamsGroupMetadataKey key=17 versions=0 flexible=none
    group_id string 0

coordinator-value StreamsGroupMetadataValue key=17 versions=0 flexible=0+
    epoch int32
    metadata_hash int64
    validated_topology_epoch int32 default=-1 tag=0:0+
    last_assignment_configs []LastAssignmentConfig null=0+ tag=1:0+
    struct LastAssignmentConfig
        key string
        value string

coordinator-key StreamsGroupMemberMetadataKey key=19 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value StreamsGroupMemberMetadataValue key=19 versions=0 flexible=0+
    instance_id string null=0+
    rack_id string null=0+
    client_id string
    client_host string
    rebalance_timeout_ms int32 default=-1
    topology_epoch int32
    process_id string
    user_endpoint Endpoint null=0+ default=null
    client_tags []KeyValue
    struct Endpoint
        host string
        port uint16
    struct KeyValue
        key string
        value string

coordinator-key StreamsGroupTargetAssignmentMetadataKey key=20 versions=0 flexible=none
    group_id string 0

coordinator-value StreamsGroupTargetAssignmentMetadataValue key=20 versions=0 flexible=0+
    assignment_epoch int32

coordinator-key StreamsGroupTargetAssignmentMemberKey key=21 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value StreamsGroupTargetAssignmentMemberValue key=21 versions=0 flexible=0+
    active_tasks []TaskIds
    standby_tasks []TaskIds
    warmup_tasks []TaskIds
    struct TaskIds
        subtopology_id string
        partitions []int32

coordinator-key StreamsGroupCurrentMemberAssignmentKey key=22 versions=0 flexible=none
    group_id string 0
    member_id string 0

coordinator-value StreamsGroupCurrentMemberAssignmentValue key=22 versions=0 flexible=0+
    member_epoch int32
    previous_member_epoch int32
    state int8
    active_tasks []TaskIds
    standby_tasks []TaskIds
    warmup_tasks []TaskIds
    active_tasks_pending_revocation []TaskIds
    standby_tasks_pending_revocation []TaskIds
    warmup_tasks_pending_revocation []TaskIds
    struct TaskIds
        subtopology_id string
        partitions []int32
        assignment_epochs []int32 null=0+ tag=0:0+

coordinator-key StreamsGroupTopologyKey key=23 versions=0 flexible=none
    group_id string 0

coordinator-value StreamsGroupTopologyValue key=23 versions=0 flexible=0+
    epoch int32
    subtopologies []Subtopology
        subtopology_id string
        source_topics []string
        source_topic_regex []string
        state_changelog_topics []TopicInfo
        repartition_sink_topics []string
        repartition_source_topics []TopicInfo
        copartition_groups []CopartitionGroup
            source_topics []int16
            source_topic_regex []int16
            repartition_source_topics []int16
    struct TopicConfig
        key string
        value string
    struct TopicInfo
        name string
        partitions int32
        replication_factor int16
        topic_configs []TopicConfig

request ConsumerGroupDescribeRequest key=69 versions=0-1 flexible=0+
    group_ids []string
    include_authorized_operations bool

response ConsumerGroupDescribeResponse key=69 versions=0-1 flexible=0+
    throttle_time_ms int32
    groups []DescribedGroup
        error_code int16
        error_message string null=0+ default=null
        group_id string
        group_state string
        group_epoch int32
        assignment_epoch int32
        assignor_name string
        members []Member
            member_id string
            instance_id string null=0+ default=null
            rack_id string null=0+ default=null
            member_epoch int32
            client_id string
            client_host string
            subscribed_topic_names []string
            subscribed_topic_regex string null=0+ default=null
            assignment Assignment
            target_assignment Assignment
            member_type int8 1+ default=-1 ignorable
        authorized_operations int32 default=-2147483648
    struct Assignment
        topic_partitions []TopicPartitions
    struct TopicPartitions
        topic_id uuid
        topic_name string
        partitions []int32
"""
