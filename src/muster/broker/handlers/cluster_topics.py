"""CreateTopics (19) and DeleteTopics (20) in a cluster: checked as by a standalone broker, carried out in ZooKeeper.

The answer goes out when this broker sees the change in ZooKeeper, or after the request's timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from muster.broker.handlers import create_topics as alone
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.topics.catalogue import Topic, TopicToCreate
from muster.errors import ErrorCode, KafkaError
from muster.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

Created = dict[str, bytes | KafkaError]


class TopicAdmin(Protocol):
    """Creates and deletes topics for all brokers (zookeeper_cluster.py)."""

    def create(
        self,
        wanted: Sequence[TopicToCreate],
        assignments: Mapping[str, Mapping[int, list[int]]],
        timeout_ms: int,
        done: Callable[[Created], None],
    ) -> None:
        """Create topics; `done` gets each one's id, or the error."""

    def delete(self, names: Sequence[str], timeout_ms: int, done: Callable[[dict[str, KafkaError]], None]) -> None:
        """Delete topics; `done` gets the failures by topic."""


def create_topics(
    cluster_admin: TopicAdmin, here: alone.TopicNeeds, request: CreateTopicsRequest, call: Call
) -> CreateTopicsResponse | Sliced | None:
    """Create topics; each may fail separately."""
    plans = alone.plans(here, request)
    if request.validate_only or isinstance(plans, CreateTopicsResponse):
        return alone.create_topics(here, request, call)
    wanted = [plan for plan in plans if isinstance(plan, alone.TopicPlan)]
    assignments = {
        plan.requested.name: {one.partition_index: list(one.broker_ids) for one in plan.requested.assignments}
        for plan in wanted
        if plan.requested.assignments
    }

    def done(created: Created) -> None:
        found = {
            name: alone.failed(name, result.code, result.message) if isinstance(result, KafkaError) else result
            for name, result in created.items()
        }
        call.reply(at_once(alone.answering(here, request, plans, found, call.version)))

    new = [TopicToCreate(plan.requested.name, plan.partitions, plan.settings) for plan in wanted]
    cluster_admin.create(new, assignments, request.timeout_ms, done)
    return None


def delete_topics(
    cluster_admin: TopicAdmin, here: alone.TopicNeeds, request: DeleteTopicsRequest, call: Call
) -> DeleteTopicsResponse | Sliced | None:
    """Delete topics; each may fail separately."""
    if not here.config.flag("delete.topic.enable"):
        return alone.delete_topics(here, request, call)
    requested = [DeleteTopicState(name) for name in request.topic_names] if call.version < 6 else request.topics
    single, twice = alone.named_once(requested)
    found: dict[str, Topic] = {}
    results = [alone.to_delete(here, each, found) for each in single]

    def done(failed: dict[str, KafkaError]) -> None:
        for result in results:
            if result.error_code == ErrorCode.NONE and result.name in failed:
                error = failed[result.name]
                result.error_code, result.error_message = error.code, error.message
        call.reply(DeleteTopicsResponse(responses=results + twice))

    cluster_admin.delete(list(found), request.timeout_ms, done)
    return None
