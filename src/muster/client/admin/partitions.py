"""Partitions: their offsets by time, deletion of records, producers, leaders and replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, overload

from muster.client.admin.part import AdminPart, checked
from muster.client.core import offset_requests
from muster.client.core.admin import admin as rules
from muster.client.core.admin import partitions as admin_partitions
from muster.client.core.admin import replicas as admin_replicas
from muster.client.core.admin.partitions import ElectionType, ProducerState
from muster.client.core.admin.replicas import PartitionReassignment
from muster.client.core.checks import check_partitions, check_timestamps
from muster.client.core.refusals import LIST_OFFSETS_RETRIABLE, RECORDS_RETRIABLE, TOPICS_RETRIABLE
from muster.errors import KafkaError
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.admin_messages import ElectLeadersRequest
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.messages import ListOffsetsRequest


class PartitionsPart(AdminPart):
    """The methods of `AsyncAdmin` for partitions."""

    @overload
    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: Literal[True] = True,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]: ...

    @overload
    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: Literal[False],
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]: ...

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        raise_errors: bool = True,
    ) -> dict[TopicPartition, Any]:
        """The first offset at or after each timestamp (milliseconds; -1 latest, -2 earliest); None if there is no such
        record.
        """
        wanted = check_timestamps(timestamps)
        isolation = READ_COMMITTED if isolation_level == "read_committed" else READ_UNCOMMITTED

        async def ask(
            leader: int, led: list[TopicPartition]
        ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
            owned = {partition: wanted[partition] for partition in led}

            def build(version: int) -> ListOffsetsRequest:
                timeout_ms = self._config.request_timeout_ms
                return offset_requests.list_request(owned, isolation, timeout_ms, version=version)

            return offset_requests.list_answers(await self._calls.send(leader, ListOffsetsRequest, build), owned)

        return checked(await self._of_leaders(wanted, ask, LIST_OFFSETS_RETRIABLE), raise_errors)

    @overload
    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, int]: ...

    @overload
    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: Literal[False]
    ) -> dict[TopicPartition, int | KafkaError]: ...

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """Delete the records before these offsets; -1 means the high watermark. Returns each partition's new log start
        offset. The error for an offset beyond the high watermark is OFFSET_OUT_OF_RANGE, for a compacted topic
        POLICY_VIOLATION.
        """
        wanted = admin_partitions.check_deletion_offsets(offsets)

        async def ask(leader: int, led: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
            owned = {partition: wanted[partition] for partition in led}
            request = admin_partitions.delete_records_request(owned, self._config.request_timeout_ms)
            return admin_partitions.deleted_records(await self._calls.ask(leader, request))

        return checked(await self._of_leaders(wanted, ask, RECORDS_RETRIABLE), raise_errors)

    @overload
    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None, raise_errors: Literal[True] = True
    ) -> dict[TopicPartition, list[ProducerState]]: ...

    @overload
    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None, raise_errors: Literal[False]
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]: ...

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None, raise_errors: bool = True
    ) -> dict[TopicPartition, Any]:
        """The idempotent and transactional producers known to the leader of each partition (KIP-664), or to its replica
        on this broker.
        """

        async def ask(
            node: int, hosted: list[TopicPartition]
        ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
            request = admin_partitions.describe_producers_request(hosted)
            return admin_partitions.described_producers(await self._calls.ask(node, request))

        wanted = check_partitions(partitions)
        if broker is None:
            return checked(await self._of_leaders(wanted, ask, LIST_OFFSETS_RETRIABLE), raise_errors)
        await self._check_broker(broker)
        return checked(await self._calls.settle(wanted, partial(ask, broker), LIST_OFFSETS_RETRIABLE), raise_errors)

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders (KIP-460), by default for all partitions that need it. The error for a partition that already
        has the right leader is ELECTION_NOT_NEEDED.

        Raises:
            KafkaError: the controller refused the whole request.
        """

        async def attempt(pending: list[TopicPartition] | None) -> dict[TopicPartition, KafkaError | None]:
            def build(version: int) -> ElectLeadersRequest:
                timeout_ms = self._config.request_timeout_ms
                return admin_partitions.elect_leaders_request(version, election_type, pending, timeout_ms)

            answer = await self._calls.send(await self._calls.controller(), ElectLeadersRequest, build)
            error = rules.failure(answer.error_code)
            if error is not None:
                raise error
            return admin_partitions.elected_leaders(answer)

        if partitions is None:
            return checked(await self._calls.retried(lambda: attempt(None), TOPICS_RETRIABLE), raise_errors)
        return checked(await self._calls.settle(check_partitions(partitions), attempt, TOPICS_RETRIABLE), raise_errors)

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Iterable[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        raise_errors: bool = True,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move partitions to these brokers, of which the first is the preferred leader (KIP-455); None cancels a
        reassignment in progress. The call returns when the moves have begun. With `allow_replication_factor_change`
        off, a partition must keep its number of replicas; brokers before Kafka 4.1 do not support that.

        Raises:
            KafkaError: the controller refused the whole request.
        """
        wanted = admin_replicas.check_replicas(reassignments)

        async def attempt(pending: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            request = admin_replicas.reassign_request(
                {partition: wanted[partition] for partition in pending},
                factor_may_change=allow_replication_factor_change,
                timeout_ms=self._config.request_timeout_ms,
            )
            answer = await self._calls.ask(await self._calls.controller(), request)
            error = rules.failure(answer.error_code, answer.error_message)
            if error is not None:
                raise error
            return admin_replicas.reassigned(answer)

        return checked(await self._calls.settle(wanted, attempt, TOPICS_RETRIABLE), raise_errors)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments in progress, of all partitions if none are named (KIP-455).

        Raises:
            KafkaError: the controller refused the request.
        """
        wanted = None if partitions is None else check_partitions(partitions)

        async def attempt() -> dict[TopicPartition, PartitionReassignment]:
            request = admin_replicas.list_reassignments_request(wanted, self._config.request_timeout_ms)
            answer = await self._calls.ask(await self._calls.controller(), request)
            error = rules.failure(answer.error_code, answer.error_message)
            if error is not None:
                raise error
            return admin_replicas.reassignments(answer)

        return await self._calls.retried(attempt, TOPICS_RETRIABLE)
