"""Broker settings changed at run time: kept in a file in the data folder, and read at start.

As with Kafka's dynamic settings, they take precedence over the settings at start, even after a restart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from muster.broker.config import DYNAMIC, SETTINGS, BrokerConfig, check_retention, nearest
from muster.broker.settings import Source, show
from muster.broker.topics.settings import SettingChange, apply
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.log import DISK, Files, write_whole

log = logging.getLogger("muster.broker")

FILE = "muster-broker-settings.json"
_NAMES = {Source.BROKER: "broker", Source.ALL_BROKERS: "all brokers"}


class DynamicSettings:
    """Settings changed at run time, of this broker and of all brokers."""

    def __init__(self, config: BrokerConfig, folder: Path, files: Files = DISK) -> None:
        """Read the stored settings and apply them to `config`.

        Raises:
            ConfigError: the file cannot be parsed.
        """
        self._config = config
        self._path = folder / FILE
        self._files = files
        try:
            content = json.loads(self._path.read_bytes())
            for source, name in _NAMES.items():
                config.change(source, self._usable(content[name]))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
            raise ConfigError(f"{self._path} cannot be parsed: {error}; correct or remove the file") from None

    def _usable(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The stored settings whose values are valid: another version may have allowed others."""
        found = {}
        for name, text in settings.items():
            try:
                if name in SETTINGS:
                    SETTINGS[name].parse(text)
            except ConfigError as error:
                log.warning("%s: %s; ignored", self._path, error)
            else:
                found[name] = text
        return found

    def of(self, source: Source) -> dict[str, str]:
        """The settings of a source."""
        return self._config.changed(source)

    def put(self, source: Source, settings: Mapping[str, str]) -> None:
        """Replace the settings of a source by these, already checked; durable when this returns.

        Raises:
            OSError: they could not be written; nothing has changed.
        """
        content = {name: self.of(one) for one, name in _NAMES.items()} | {_NAMES[source]: dict(settings)}
        write_whole(self._files, self._path, f"{json.dumps(content, indent=1)}\n".encode())
        self._config.change(source, settings)


def altered(settings: Mapping[str, str], changes: list[SettingChange]) -> dict[str, str]:
    """The settings of a source after some changes, checked as a whole.

    Raises:
        KafkaError: in Kafka's words if Kafka refuses it too. To Kafka an unknown name may belong to a plug-in; here it
        is refused.
    """

    def refusal(change: SettingChange) -> Exception:
        what = f"Config value {change.operation.name.lower()} is not allowed for config key: {change.name}"
        return KafkaError(ErrorCode.INVALID_CONFIG, what)

    return check(apply(settings, changes, SETTINGS, refusal))


def check(settings: Mapping[str, str]) -> dict[str, str]:
    """Check that settings can be changed at run time. Raises KafkaError."""
    for name in settings:
        if name not in SETTINGS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"There is no broker config named {name}{nearest(name, SETTINGS)}"
            )
    if fixed := sorted(set(settings) - DYNAMIC):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
    try:
        values = {name: SETTINGS[name].parse(text) for name, text in settings.items()}
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if isinstance(retention_ms := values.get("log.retention.ms"), int):
        try:
            check_retention(retention_ms)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"requirement failed: {error}") from None
    return {name: show(value) or "" for name, value in values.items()}
