"""Error responses to requests of any type.

A response has an error code for each part that its request names: for each topic, partition, group or member. `refusal`
builds a response from the request alone, part by part, without handling the request. Requests that only read are
handled, and the error codes are then put into their response (`with_error`): a response built from the request alone
would be incomplete. A Metadata response, for example, would have no brokers.
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
"""The requests that change nothing, except Fetch, whose responses contain records."""

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
"""Lists in requests, and the differently named lists in their responses that have one element for each of theirs."""
_SAME_FIELDS = (("partition", "partition_index"), ("index", "partition_index"), ("partition_index", "index"))
"""Fields of such elements that identify them: the name in the request, and in the response."""
_KEYS = ("partition_index", "partition_id", "name", "group_id", "key")
"""The fields of a response for elements that are plain values in the request (a partition's index, a group's id)."""

_ERRORS = ("error_code", "partition_error_code")

WITHOUT_ERRORS = frozenset({"AlterReplicaLogDirs"})
"""Requests whose responses are laid out differently from the request, so that `refusal` cannot build them."""

R = TypeVar("R", bound=Response)


def refusal(request: Request[R], error: ErrorCode) -> R:
    """The response to a request that is not handled: `error` for the whole request, or for each of its parts."""
    response: R = _mirror(request.RESPONSE, request, error)
    return response


def with_error(response: R, error: ErrorCode) -> R:
    """The same response, changed in place: every error code in it is `error`."""
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
    parts = {}
    for name in kind.__slots__:
        for hint in (hints[name], *get_args(hints[name])):
            elements = get_args(hint)
            if get_origin(hint) is list and isinstance(elements[0], type) and issubclass(elements[0], Struct):
                parts[name] = elements[0]
    return parts


def _mirror(kind: Any, source: Any, error: ErrorCode) -> Any:
    """A structure of a response for `source`, the request or a part of it: with its name or index, and the error."""
    response = kind()
    for name in kind.__slots__:
        if name in _ERRORS:
            setattr(response, name, error)
        elif name in _parts(kind):
            sources = _counterpart(name, source)
            if sources is not None:
                setattr(response, name, [_mirror(_parts(kind)[name], each, error) for each in sources])
        elif not isinstance(source, Struct):
            if name in _KEYS and isinstance(source, type(getattr(response, name))):
                setattr(response, name, source)
        else:
            _copy(response, name, source)
    return response


def _counterpart(name: str, source: Any) -> list[Any] | None:
    """The list of a request that corresponds to a list of its response."""
    for in_request, in_response in ((name, name), *_SAME_PARTS):
        elements = getattr(source, in_request, None) if in_response == name else None
        if isinstance(elements, list) and elements:
            return elements
    return None


def _copy(response: Any, name: str, source: Struct) -> None:
    """Copy a field that identifies a part: its topic, partition, group or member."""
    for in_request, in_response in ((name, name), *_SAME_FIELDS):
        if in_response == name and in_request in source.__slots__:
            value = getattr(source, in_request)
            if isinstance(value, str | int | bytes) and isinstance(getattr(response, name), str | int | bytes | None):
                setattr(response, name, value)
            return
