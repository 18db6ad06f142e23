"""AlterConfigs (33) and IncrementalAlterConfigs (44, KIP-339): settings of topics and brokers, changed while they run.

AlterConfigs replaces all settings of a resource; IncrementalAlterConfigs changes individual settings. Checks, their
order and their messages are Kafka's. Once answered, a change is in effect, and on disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, Protocol

from muster.broker import dynamic_settings as dynamic_settings
from muster.broker.cluster_view import ClusterView
from muster.broker.dynamic_settings import DynamicSettings
from muster.broker.handlers.configs import BROKER, BROKER_LOGGER, NOT_KEPT, TOPIC
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.settings import Source
from muster.broker.topics import settings as topic_settings
from muster.broker.topics.catalogue import TopicCatalogue, invalid_name
from muster.broker.topics.partitions import Partitions
from muster.broker.topics.settings import AlterOperation, SettingChange
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import GROUP_EVENTS_TOPIC
from muster.protocol.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)

log = logging.getLogger("muster.broker")

Settings = Mapping[str, str]
Rule = Callable[[Settings], dict[str, str]]
"""Computes a resource's new settings from its current ones. Raises KafkaError or ConfigError."""


class ConfigAdmin(Protocol):
    """Changes settings of topics for all brokers (zookeeper_cluster.py)."""

    def alter(self, wanted: Mapping[str, Rule], done: Callable[[Mapping[str, KafkaError]], None]) -> None:
        """Change settings of topics; `done` gets the failures by topic."""


class AlterConfigNeeds(NamedTuple):
    """The parts of the broker that these handlers use."""

    cluster: ClusterView
    topics: TopicCatalogue
    partitions: Partitions
    dynamic: DynamicSettings
    cluster_admin: ConfigAdmin | None


class _ResourceChange(NamedTuple):
    """The request for one resource; with AlterConfigs, all of its settings."""

    kind: int
    name: str
    settings: list[tuple[str, int, str | None]]


class _Result:
    """The result for one resource."""

    def __init__(self, requested: _ResourceChange) -> None:
        self.requested = requested
        self.error: KafkaError | None = None


def alter_configs(here: AlterConfigNeeds, request: AlterConfigsRequest, call: Call) -> Sliced | None:
    """Replace the settings of resources by those in the request; each may fail separately."""
    requested = [
        _ResourceChange(
            one.resource_type, one.resource_name, [(each.name, AlterOperation.SET, each.value) for each in one.configs]
        )
        for one in request.resources
    ]

    def answer(results: list[_Result]) -> AlterConfigsResponse:
        made = AlterConfigsResponseAlterConfigsResourceResponse
        return AlterConfigsResponse(responses=[made(*_outcome(each)) for each in results])

    return _Work(here, requested, call, answer, whole=True).begin(request.validate_only)


def incremental_alter_configs(
    here: AlterConfigNeeds, request: IncrementalAlterConfigsRequest, call: Call
) -> Sliced | None:
    """Change settings of resources; each may fail separately, and then keeps all of its settings."""
    requested = [
        _ResourceChange(
            one.resource_type,
            one.resource_name,
            [(each.name, each.config_operation, each.value) for each in one.configs],
        )
        for one in request.resources
    ]

    def answer(results: list[_Result]) -> IncrementalAlterConfigsResponse:
        made = IncrementalAlterConfigsResponseAlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(responses=[made(*_outcome(each)) for each in results])

    return _Work(here, requested, call, answer, whole=False).begin(request.validate_only)


def _outcome(result: _Result) -> tuple[int, str | None, int, str]:
    error = result.error
    code, message = (error.code, error.message) if error is not None else (ErrorCode.NONE, None)
    return code, message, result.requested.kind, result.requested.name


class _Work:
    """One request. `whole`: it replaces all settings of a resource."""

    def __init__(
        self,
        here: AlterConfigNeeds,
        requested: list[_ResourceChange],
        call: Call,
        answer: Callable[[list[_Result]], AlterConfigsResponse | IncrementalAlterConfigsResponse],
        *,
        whole: bool,
    ) -> None:
        self._here = here
        self._call = call
        self._answer = answer
        self._whole = whole
        self._results = [_Result(one) for one in requested]
        self._topics: dict[str, tuple[_Result, Rule]] = {}
        self._brokers: dict[Source, tuple[_Result, Rule]] = {}

    def begin(self, validate_only: bool) -> Sliced | None:
        times = Counter((result.requested.kind, result.requested.name) for result in self._results)
        for result in self._results:
            try:
                if times[result.requested.kind, result.requested.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                self._check(result)
            except KafkaError as error:
                result.error = error
            except ConfigError as error:
                result.error = KafkaError(ErrorCode.INVALID_CONFIG, str(error))
        if validate_only:
            self._topics, self._brokers = {}, {}
        if self._here.cluster_admin is not None and self._topics:
            at_once(self._change_brokers())
            self._here.cluster_admin.alter({name: rule for name, (_, rule) in self._topics.items()}, self._altered)
            return None
        return self._change()

    def _altered(self, failed: Mapping[str, KafkaError]) -> None:
        for name, error in failed.items():
            self._topics[name][0].error = error
        self._call.reply(self._answer(self._results))

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check(self, result: _Result) -> None:
        kind, name, settings = result.requested
        if len({each for each, _, _ in settings}) < len(settings):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        nulls = [each for each, operation, value in settings if value is None and operation != AlterOperation.DELETE]
        if nulls:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
        if kind == TOPIC:
            self._check_topic(result, name, _changes(settings))
        elif kind == BROKER:
            self._check_broker(result, name, settings)
        else:
            unknown = f"Unknown resource type {kind}"
            of_loggers = self._whole and kind == BROKER_LOGGER  # Kafka's AlterConfigs does not support them either
            raise KafkaError(ErrorCode.INVALID_REQUEST, unknown if of_loggers else NOT_KEPT.get(kind, unknown))

    def _check_topic(self, result: _Result, name: str, changes: list[SettingChange]) -> None:
        def rule(settings: Settings) -> dict[str, str]:
            return topic_settings.altered({} if self._whole else settings, changes)

        topic = self._here.topics.get(name)
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if why := invalid_name(name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
        rule(topic.settings if topic is not None else {})
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if name == GROUP_EVENTS_TOPIC and topic.internal:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"The settings of {name} come from its brokers (group.events.*)."
            )
        self._topics[name] = result, rule

    def _check_broker(self, result: _Result, name: str, settings: Sequence[tuple[str, int, str | None]]) -> None:
        source = Source.BROKER if name else Source.ALL_BROKERS
        if name:
            self._check_broker_name(name)
        elif self._here.cluster_admin is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "A cluster has no configs that apply to all brokers: name a broker."
            )
        changes = _changes(settings)

        def rule(before: Settings) -> dict[str, str]:
            return dynamic_settings.altered({} if self._whole else before, changes)

        rule(self._here.dynamic.of(source))
        self._brokers[source] = result, rule

    def _check_broker_name(self, name: str) -> None:
        expected = self._here.cluster.node.node_id
        if not name.removeprefix("-").isdecimal():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if int(name) != expected:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected}, but received {name}"
            )

    # --- changes -----------------------------------------------------------------------------------------------------

    def _change(self) -> Sliced:
        yield from self._change_brokers()
        changed = []
        for name, (result, rule) in self._topics.items():
            topic = self._here.topics.get(name)
            try:  # other requests may have run since the checks
                if topic is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                changed.append((topic, topic.partitions, rule(topic.settings)))
            except KafkaError as error:
                result.error = error
            except ConfigError as wrong:
                result.error = KafkaError(ErrorCode.INVALID_CONFIG, str(wrong))
        try:
            if changed:
                self._here.topics.change_all(changed)
        except OSError as error:
            log.error(
                "could not store the settings of %d topic(s), first %s: %s", len(changed), changed[0][0].name, error
            )
            for topic, _, _ in changed:
                self._topics[topic.name][0].error = _not_stored(error)
            return self._answer(self._results)
        for topic, _, settings in changed:
            self._here.partitions.configure(topic)
            log.info("topic %s: new settings: %s", topic.name, dict(settings))
            yield
        return self._answer(self._results)

    def _change_brokers(self) -> Generator[None, None, None]:
        for source, (result, rule) in self._brokers.items():
            try:
                settings = rule(self._here.dynamic.of(source))  # other requests may have run since the checks
                self._here.dynamic.put(source, settings)
            except KafkaError as error:
                result.error = error
                continue
            except OSError as error:
                log.error("could not store settings of the broker: %s", error)
                result.error = _not_stored(error)
                continue
            log.info("settings of %s changed to: %s", source.name.lower().replace("_", " "), settings)
            yield from self._here.partitions.configure_all()


def _not_stored(error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The settings could not be stored: {error.strerror}")


def _changes(settings: Sequence[tuple[str, int, str | None]]) -> list[SettingChange]:
    for _, operation, _ in settings:
        if not AlterOperation.SET <= operation <= AlterOperation.SUBTRACT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    return [SettingChange(name, AlterOperation(operation), value or "") for name, operation, value in settings]
