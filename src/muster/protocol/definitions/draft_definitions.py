"""The messages of Kafka's drafts from 2013 to 2015, in which the coordinator of a group assigns the partitions itself.

Only JoinGroup had a different layout from the one that Kafka 0.9 released under the same key and version (trunk up to
commit 6e747d42974, October 2015), so the drafts need a port of their own. The other requests of the drafts have the
bytes of today's version 0: ConsumerMetadata (10) those of FindCoordinator, as well as Heartbeat (12) and LeaveGroup
(13).
"""

DRAFT_MESSAGES = """
request DraftJoinGroupRequest key=11 versions=0 flexible=none
    group_id string
    session_timeout int32
    topics []string
    consumer_id string
    partition_assignment_strategy string

response DraftJoinGroupResponse key=11 versions=0 flexible=none
    error_code int16
    group_generation_id int32
    consumer_id string
    assigned_partitions []DraftAssignedTopic
        topic string
        partitions []int32
"""
