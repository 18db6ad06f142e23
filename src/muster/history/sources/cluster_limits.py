"""What the rules must know about a cluster that its log does not contain: timeouts, and the names of topic ids.

A member of a KIP-848 group does not send a session timeout: its group has one (`consumer.session.timeout.ms`), or the
brokers' default applies (`group.consumer.session.timeout.ms`). Without it a dead member cannot be distinguished from
one that left. If a cluster does not report it (it is too old or denies access), Kafka's defaults are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import ConfigEntry, ConfigResource, ConfigResourceType
from muster.errors import KafkaError, KafkaTimeoutError, UnsupportedVersionError
from muster.history.model import Limits
from muster.history.sources.reader_warnings import ReaderWarnings

_MINUTE_MS = 60_000
_GROUPS_PER_REQUEST = 500
_USUAL = "so Kafka's defaults are assumed"

_Settings = Mapping[str, ConfigEntry]


def limits_of(admin: Admin, warnings: ReaderWarnings | None = None) -> Limits:
    """The limits of a cluster. If a broker does not answer, a warning is added and Kafka's defaults are used.

    Raises:
        KafkaTimeoutError: no broker answers.
    """
    warnings = warnings or ReaderWarnings()
    topics = admin.list_topics(include_internal=True)
    settings = _of_a_broker(admin, warnings)
    usual = Limits()
    minutes = _number(settings, "offsets.retention.minutes")
    session_ms = _number(settings, "group.consumer.session.timeout.ms")
    return Limits(
        offsets_retention_ms=usual.offsets_retention_ms if minutes is None else minutes * _MINUTE_MS,
        consumer_session_timeout_ms=usual.consumer_session_timeout_ms if session_ms is None else session_ms,
        session_timeouts_ms=_of_groups(admin, warnings),
        topic_names={topic.topic_id.hex(): topic.name for topic in topics},
    )


def max_transaction_timeout_ms(admin: Admin) -> int:
    """The brokers' `transaction.max.timeout.ms`, Kafka's default if it cannot be read."""
    return _number(_of_a_broker(admin, ReaderWarnings()), "transaction.max.timeout.ms") or 900_000


def _of_a_broker(admin: Admin, warnings: ReaderWarnings) -> _Settings:
    try:
        nodes = admin.describe_cluster().nodes
    except UnsupportedVersionError:  # before Kafka 2.8
        return {}
    if not nodes:
        return {}
    resource = ConfigResource(ConfigResourceType.BROKER, str(nodes[0].node_id))
    return _described(admin, [resource], warnings).get(resource, {})


def _of_groups(admin: Admin, warnings: ReaderWarnings) -> dict[str, int]:
    """The session timeouts of the existing KIP-848 groups."""
    try:
        groups = [group.group_id for group in admin.list_consumer_groups(types=["consumer"])]
    except KafkaTimeoutError as error:
        warnings.add(f"some groups' session timeouts are not known, {_USUAL}: {error}")
        return {}
    except (KafkaError, UnsupportedVersionError):
        return {}
    found: dict[str, int] = {}
    for start in range(0, len(groups), _GROUPS_PER_REQUEST):
        some = groups[start : start + _GROUPS_PER_REQUEST]
        resources = [ConfigResource(ConfigResourceType.GROUP, group) for group in some]
        for resource, settings in _described(admin, resources, warnings).items():
            session_ms = _number(settings, "consumer.session.timeout.ms")
            if session_ms is not None:
                found[resource.name] = session_ms
    return found


def _described(
    admin: Admin, resources: list[ConfigResource], warnings: ReaderWarnings
) -> dict[ConfigResource, _Settings]:
    try:
        answers = admin.describe_configs(resources, raise_errors=False)
    except KafkaTimeoutError as error:
        warnings.add(f"the brokers' settings are not known, {_USUAL}: {error}")
        return {}
    except (KafkaError, UnsupportedVersionError):
        return {}
    return {resource: entries for resource, entries in answers.items() if not isinstance(entries, KafkaError)}


def _number(settings: _Settings, name: str) -> int | None:
    entry = settings.get(name)
    text = entry.value if entry is not None else None
    return int(text) if text and text.isdecimal() else None
