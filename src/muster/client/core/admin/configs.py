"""Changes to settings (KIP-339) and their outcomes; which resources have settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from muster.client.core.admin.admin import ConfigResource, ConfigResourceType, failure
from muster.client.core.checks import check_text
from muster.errors import IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.protocol.admin_messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class ConfigOperation(IntEnum):
    """How a setting changes. The last two are for lists, such as `cleanup.policy`."""

    SET = 0
    DELETE = 1
    """Back to its default."""
    APPEND = 2
    SUBTRACT = 3


@dataclass(slots=True, frozen=True)
class ConfigChange:
    """One change to a setting of a resource; `value` is None for DELETE only."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


Changes = Iterable[ConfigChange] | Mapping[str, str | None]
"""Changes to one resource. In a mapping, None means the default."""

_FIRST_WITH_TYPES = 1


def config_changes(resource: ConfigResource, changes: Changes) -> list[ConfigChange]:
    """The changes to one resource, with the checks that the broker cannot make.

    Raises:
        IllegalArgumentError: a value is missing or superfluous, or a setting is named twice.
    """
    if isinstance(changes, Mapping):
        found = [
            ConfigChange(name, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET)
            for name, value in changes.items()
        ]
    else:
        found = list(changes)
    check_text("the name of a resource", resource.name)
    for change in found:
        what = f"{change.name} of {resource.name or 'all brokers'}"
        check_text("a setting", change.name)
        if (change.value is None) is not (change.operation is ConfigOperation.DELETE):
            raise IllegalArgumentError(f"{what}: {change.operation.name} with value {change.value!r}")
        if change.value is not None:
            check_text(what, change.value)
    names = [change.name for change in found]
    for name in names:
        if names.count(name) > 1:
            raise IllegalArgumentError(f"{name} is changed twice in one request, which Kafka refuses")
    return found


def own_node(resource: ConfigResource) -> int | None:
    """The broker to ask about a resource's settings; None if any broker or the controller can answer."""
    own = resource.resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER)
    return int(resource.name) if own and resource.name.isdecimal() else None


def alter_configs_request(
    changes: Mapping[ConfigResource, list[ConfigChange]], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    """IncrementalAlterConfigs for several resources."""
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                int(resource.resource_type),
                resource.name,
                [
                    IncrementalAlterConfigsRequestAlterableConfig(change.name, int(change.operation), change.value)
                    for change in resource_changes
                ],
            )
            for resource, resource_changes in changes.items()
        ],
        validate_only=validate_only,
    )


def alter_configs_answers(answer: IncrementalAlterConfigsResponse) -> dict[ConfigResource, KafkaError | None]:
    """The outcome of each resource's changes: all of them are made, or none."""
    return {
        ConfigResource(ConfigResourceType(result.resource_type), result.resource_name): failure(
            result.error_code, result.error_message
        )
        for result in answer.responses
    }


def list_resources_request(version: int, types: list[ConfigResourceType]) -> ListConfigResourcesRequest:
    """ListConfigResources (KIP-1142); an empty list means all types.

    Raises:
        UnsupportedVersionError: v0, from before Kafka 4.1, lists only client-metrics resources.
    """
    if version < _FIRST_WITH_TYPES and types != [ConfigResourceType.CLIENT_METRICS]:
        raise UnsupportedVersionError("listing resources of all types needs Kafka 4.1 or later")
    return ListConfigResourcesRequest([int(kind) for kind in types])


def listed_resources(answer: ListConfigResourcesResponse) -> list[ConfigResource]:
    """The resources that have settings, sorted; unknown newer types are left out."""
    known = set(ConfigResourceType)
    return sorted(
        ConfigResource(ConfigResourceType(found.resource_type), found.resource_name)
        for found in answer.config_resources
        if found.resource_type in known
    )
