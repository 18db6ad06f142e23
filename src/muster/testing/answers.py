"""Answers with an error, to a request of any type. Pure.

A response has its errors beside the parts that a request names: its topics, partitions, groups, members. `refusal`
builds one from the request alone, part by part, without the request being handled. Requests that only read are
handled, and their answer is then changed (`with_error`): a Metadata answer without brokers, say, would be damage of
another kind.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from muster.errors import ErrorCode
from muster.protocol.primitives import Request, Response, Struct

READS = frozenset(
    {
        "ApiVersions",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "FindCoordinator",
        "ListConfigResources",
        "ListGroups",
        "ListOffsets",
        "ListPartitionReassignments",
        "ListTransactions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
    }
)
"""The requests that change nothing, but Fetch, whose answers hold records."""

_SAME_PARTS = (
    ("topic_data", "responses"),
    ("partition_data", "partition_responses"),
    ("topics", "responses"),
    ("topics", "results"),
    ("topic_partitions", "replica_election_results"),
    ("partitions", "partition_result"),
    ("groups_names", "results"),
    ("topic_names", "responses"),
    ("resources", "responses"),
    ("coordinator_keys", "coordinators"),
    ("partition_indexes", "partitions"),
    ("transactions", "results_by_transaction"),
    ("v3_and_below_topics", "results_by_topic_v3_and_below"),
    ("topics", "topic_results"),
    ("partitions", "results_by_partition"),
)
"""Parts of a request, and of its response, that are the same under different names."""
_SAME_FIELDS = (("partition", "partition_index"), ("index", "partition_index"), ("partition_index", "index"))
_KEYS = ("partition_index", "partition_id", "name", "group_id", "key")
"""What a plain element of a request (a partition's index, a group's id) is called in its response."""


_ERRORS = ("error_code", "partition_error_code")

WITHOUT_ERRORS = frozenset({"AlterReplicaLogDirs"})
"""Requests whose answers do not have the layout of the request."""


R = TypeVar("R", bound=Response)


def refusal(request: Request[R], error: ErrorCode) -> R:
    """The answer to a request that was not handled: `error` for the whole, or for each of its parts."""
    answer: R = _mirror(request.RESPONSE, request, error)
    return answer


def with_error(response: R, error: ErrorCode) -> R:
    """The same answer, with `error` in every place that has one. It is changed in place."""
    _overwrite(response, error)
    return response


def _overwrite(struct: Struct, error: ErrorCode) -> None:
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name in _ERRORS:
            setattr(struct, name, error)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    _overwrite(each, error)


@cache
def _parts(kind: Any) -> dict[str, type[Any]]:
    """The lists of structures in a structure: field -> class of the elements."""
    hints = get_type_hints(kind.__init__)
    found = {}
    for name in kind.__slots__:
        for choice in (hints[name], *get_args(hints[name])):
            elements = get_args(choice)
            if get_origin(choice) is list and isinstance(elements[0], type) and issubclass(elements[0], Struct):
                found[name] = elements[0]
    return found


def _mirror(kind: Any, source: Any, error: ErrorCode) -> Any:
    answer = kind()
    for name in kind.__slots__:
        if name in _ERRORS:
            setattr(answer, name, error)
        elif name in _parts(kind):
            named = _counterpart(name, source)
            if named is not None:
                setattr(answer, name, [_mirror(_parts(kind)[name], each, error) for each in named])
        elif not isinstance(source, Struct):
            if name in _KEYS and isinstance(source, type(getattr(answer, name))):
                setattr(answer, name, source)
        else:
            _copy(answer, name, source)
    return answer


def _counterpart(name: str, source: Any) -> list[Any] | None:
    """The list in a request that a list in its response answers."""
    for asked, answered in ((name, name), *_SAME_PARTS):
        found = getattr(source, asked, None) if answered == name else None
        if isinstance(found, list) and found:
            return found
    return None


def _copy(answer: Any, name: str, source: Struct) -> None:
    """Repeat what names a part: its topic, its partition, its group, its member."""
    for asked, answered in ((name, name), *_SAME_FIELDS):
        if answered == name and asked in source.__slots__:
            value = getattr(source, asked)
            if isinstance(value, str | int | bytes) and isinstance(getattr(answer, name), str | int | bytes | None):
                setattr(answer, name, value)
            return
