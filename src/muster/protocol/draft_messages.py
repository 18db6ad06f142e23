# Made by `python -m muster.protocol.definitions.codegen` from draft_definitions.py; do not edit.
"""The messages of Kafka's protocol: one class for all versions of each, fields as Kafka names them.

A field that a version does not carry has its default after decoding, and is left out when encoding.
"""

from __future__ import annotations

from typing import ClassVar

from muster.protocol.primitives import EMPTY, Request, Response, Struct


class DraftAssignedTopic(Struct):
    __slots__ = ("topic", "partitions",)

    def __init__(
        self,
        topic: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic = topic
        self.partitions = [] if partitions is EMPTY else partitions


class DraftJoinGroupResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 11
    __slots__ = ("error_code", "group_generation_id", "consumer_id", "assigned_partitions",)

    def __init__(
        self,
        error_code: int = 0,
        group_generation_id: int = 0,
        consumer_id: str = "",
        assigned_partitions: list[DraftAssignedTopic] = EMPTY,
    ) -> None:
        self.error_code = error_code
        self.group_generation_id = group_generation_id
        self.consumer_id = consumer_id
        self.assigned_partitions = [] if assigned_partitions is EMPTY else assigned_partitions


class DraftJoinGroupRequest(Request["DraftJoinGroupResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 11
    RESPONSE: ClassVar = DraftJoinGroupResponse
    __slots__ = ("group_id", "session_timeout", "topics", "consumer_id", "partition_assignment_strategy",)

    def __init__(
        self,
        group_id: str = "",
        session_timeout: int = 0,
        topics: list[str] = EMPTY,
        consumer_id: str = "",
        partition_assignment_strategy: str = "",
    ) -> None:
        self.group_id = group_id
        self.session_timeout = session_timeout
        self.topics = [] if topics is EMPTY else topics
        self.consumer_id = consumer_id
        self.partition_assignment_strategy = partition_assignment_strategy
