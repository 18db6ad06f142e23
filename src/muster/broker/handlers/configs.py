"""DescribeConfigs (32): settings of topics and of the broker.

v1: synonyms. v3: types and documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.broker import config as broker_config
from muster.broker import topic_settings
from muster.broker.server import Call
from muster.broker.settings import Setting, show
from muster.broker.topics import Topic, invalid_name
from muster.errors import ErrorCode
from muster.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from muster.broker.broker import Broker

TOPIC = 2
BROKER = 4

TOPIC_CONFIG = 1
STATIC_BROKER_CONFIG = 4
DEFAULT_CONFIG = 5


def source_of(value: topic_settings.Effective) -> int:
    """Where a topic's value comes from, as the wire numbers it."""
    if value.of_topic:
        return TOPIC_CONFIG
    return STATIC_BROKER_CONFIG if value.of_broker else DEFAULT_CONFIG


def describe_configs(broker: Broker, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    """All settings of each resource, or those asked for."""
    return DescribeConfigsResponse(results=[_describe(broker, resource, request) for resource in request.resources])


def _describe(broker: Broker, asked: DescribeConfigsResource, request: DescribeConfigsRequest) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
    if asked.resource_type == TOPIC:
        topic = broker.topics.get(asked.resource_name)
        if topic is not None:
            result.configs = _of_topic(broker, topic, asked.configuration_keys, request)
        elif why := invalid_name(asked.resource_name):
            result.error_code, result.error_message = ErrorCode.INVALID_TOPIC_EXCEPTION, why
        else:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_message = "This server does not host this topic-partition."
    elif asked.resource_type == BROKER:
        if asked.resource_name in ("", str(broker.node.node_id)):
            # An empty name asks for what is set for all brokers at run time: there is no such thing here.
            if asked.resource_name:
                result.configs = _of_broker(broker, asked.configuration_keys, request)
        else:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = (
                f"Unexpected broker id, expected {broker.node.node_id} or empty string, but received "
                f"{asked.resource_name}"
            )
    else:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = f"Unsupported resource type: {asked.resource_type}"
    return result


def _wanted(names: list[str] | None, name: str) -> bool:
    return not names or name in names


def _of_topic(
    broker: Broker, topic: Topic, names: list[str] | None, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    found = []
    for name, setting in topic_settings.SETTINGS.items():
        if not _wanted(names, name):
            continue
        value = topic_settings.effective(name, topic.settings, broker.config)
        synonyms = []
        if request.include_synonyms:
            if value.of_topic:
                synonyms.append(DescribeConfigsSynonym(name, show(value.value), TOPIC_CONFIG))
            synonyms += _synonyms(broker, setting.synonym)
        found.append(_result(setting, show(value.value), False, source_of(value), synonyms, request))
    return found


def _of_broker(
    broker: Broker, names: list[str] | None, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    found = []
    for name, setting in broker_config.SETTINGS.items():
        if not _wanted(names, name):
            continue
        source = STATIC_BROKER_CONFIG if broker.config.is_set(name) else DEFAULT_CONFIG
        synonyms = _synonyms(broker, name) if request.include_synonyms else []
        found.append(_result(setting, show(broker.config[name]), True, source, synonyms, request))
    return found


def _synonyms(broker: Broker, name: str | None) -> list[DescribeConfigsSynonym]:
    """What a value would fall back to, the strongest first. A setting without a value has none."""
    if name is None:
        return []
    found = []
    if broker.config.is_set(name):
        found.append(DescribeConfigsSynonym(name, show(broker.config[name]), STATIC_BROKER_CONFIG))
    default = broker_config.SETTINGS[name].default
    if default is not None:
        found.append(DescribeConfigsSynonym(name, show(default), DEFAULT_CONFIG))
    return found


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
