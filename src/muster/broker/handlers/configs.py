"""DescribeConfigs (32): settings of topics and of the broker. ListConfigResources (74): the resources with settings.

DescribeConfigs v1: synonyms. v3: types and documentation. ListConfigResources v1: kinds of resources (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from muster.broker import config as broker_config
from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.settings import Setting, Source, show
from muster.broker.topics import settings as topic_settings
from muster.broker.topics.catalogue import Topic, TopicCatalogue, invalid_name
from muster.errors import ErrorCode, KafkaError
from muster.protocol.admin_messages import ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse
from muster.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
KINDS = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
"""Types of resources, as Kafka numbers them. The last three do not exist here."""

NOT_KEPT = {
    BROKER_LOGGER: "Log levels are not configs of this broker: use --log-level.",
    CLIENT_METRICS: "Client metrics have no configs here: this broker does not collect them (KIP-714).",
    GROUP: "Groups have no configs here: they apply to consumer groups of KIP-848, share groups and streams "
    "groups, which this broker does not serve.",
}
"""Why resources of these kinds have no configs. Kafka would keep those of a group, but no classic group would obey
them."""

_NO_NAME = {
    CLIENT_METRICS: "Client metrics subscription name must not be empty",
    GROUP: "Group name must not be empty",
}
"""Kinds of resources without configs here, with the error for an empty name."""

_FEW = 10
"""More resources than this are described in slices."""

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to "
    "an incompatible broker. See the broker logs for more details."
)
"""What Kafka's tools show for INVALID_REQUEST without a reason."""


class ConfigNeeds(NamedTuple):
    """The parts of the broker that DescribeConfigs uses."""

    config: BrokerConfig
    cluster: ClusterView
    topics: TopicCatalogue


def describe_configs(
    here: ConfigNeeds, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse | Sliced:
    """All settings of each resource, or the requested ones."""
    steps = _describe_all(here, request)
    return steps if len(request.resources) > _FEW else at_once(steps)


def _describe_all(here: ConfigNeeds, request: DescribeConfigsRequest) -> Generator[None, None, DescribeConfigsResponse]:
    results = []
    for requested in request.resources:
        result = DescribeConfigsResult(
            error_message="", resource_type=requested.resource_type, resource_name=requested.resource_name
        )
        try:
            result.configs = _describe(here, requested, request)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message or ""
        results.append(result)
        yield
    return DescribeConfigsResponse(results=results)


def _describe(
    here: ConfigNeeds, requested: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if requested.resource_type == TOPIC:
        if why := invalid_name(requested.resource_name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
        topic = here.topics.get(requested.resource_name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _of_topic(here, topic, requested.configuration_keys, request)
    if requested.resource_type == BROKER:
        _check_broker_name(here, requested.resource_name)
        if not requested.resource_name:
            return _of_all_brokers(here, requested.configuration_keys, request)
        return _of_broker(here, requested.configuration_keys, request)
    if requested.resource_type in _NO_NAME and requested.resource_name:
        return []
    reasons = _NO_NAME | {BROKER_LOGGER: NOT_KEPT[BROKER_LOGGER]}
    raise KafkaError(ErrorCode.INVALID_REQUEST, reasons.get(requested.resource_type, MALFORMED))


def _check_broker_name(here: ConfigNeeds, name: str) -> None:
    if not name:
        return
    if not name.removeprefix("-").isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) != here.cluster.node.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {here.cluster.node.node_id} or empty string, but received {name}",
        )


def _wanted(names: list[str] | None, name: str) -> bool:
    return not names or name in names


def _of_topic(
    here: ConfigNeeds, topic: Topic, names: list[str] | None, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    found = []
    for name, setting in topic_settings.SETTINGS.items():
        if not _wanted(names, name):
            continue
        value = topic_settings.effective(name, topic.settings, here.config)
        synonyms = []
        if request.include_synonyms:
            if value.source is Source.TOPIC:
                synonyms.append(DescribeConfigsSynonym(name, show(value.value), Source.TOPIC))
            synonyms += _synonyms(here, setting.synonym)
        found.append(_result(setting, show(value.value), False, value.source, synonyms, request))
    return found


def _of_broker(
    here: ConfigNeeds, names: list[str] | None, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    found = []
    for name, setting in broker_config.SETTINGS.items():
        if not _wanted(names, name):
            continue
        synonyms = _synonyms(here, name) if request.include_synonyms else []
        read_only, source = name not in broker_config.DYNAMIC, here.config.source(name)
        found.append(_result(setting, show(here.config[name]), read_only, source, synonyms, request))
    return found


def _of_all_brokers(
    here: ConfigNeeds, names: list[str] | None, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Settings changed for all brokers at run time."""
    source, found = Source.ALL_BROKERS, []
    for name, value in here.config.changed(source).items():
        if _wanted(names, name):
            synonyms = [DescribeConfigsSynonym(name, value, source)] if request.include_synonyms else []
            found.append(_result(broker_config.SETTINGS[name], value, False, source, synonyms, request))
    return found


def _synonyms(here: ConfigNeeds, name: str | None) -> list[DescribeConfigsSynonym]:
    """The values that a setting would fall back to, in order of precedence."""
    if name is None:
        return []
    return [DescribeConfigsSynonym(each, show(value), source) for each, value, source in here.config.synonyms(name)]


def _result(
    setting: Setting,
    value: str | None,
    read_only: bool,
    source: int,
    synonyms: list[DescribeConfigsSynonym],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    documentation = setting.documentation if request.include_documentation else None
    return DescribeConfigsResourceResult(
        setting.name, value, read_only, source, False, synonyms, int(setting.kind), documentation
    )


def list_config_resources(
    here: ConfigNeeds, request: ListConfigResourcesRequest, call: Call
) -> Generator[None, None, ListConfigResourcesResponse]:
    """The requested types of resources: topics and brokers."""
    spoken = KINDS if call.version else (CLIENT_METRICS,)
    wanted = set(request.resource_types or spoken)
    if not wanted.issubset(spoken):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = []
    if BROKER in wanted:
        found += [ConfigResource(str(node.node_id), BROKER) for node in here.cluster.nodes]
    for topic in here.topics if TOPIC in wanted else ():
        found.append(ConfigResource(topic.name, TOPIC))
        yield
    return ListConfigResourcesResponse(config_resources=found)
