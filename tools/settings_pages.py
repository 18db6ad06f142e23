"""Writes settings.md from the tables that broker and clients read. `python -m tools.settings_pages` updates it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from muster.broker.config import DYNAMIC, SETTINGS
from muster.broker.coordinator_process import SETTINGS as OF_COORDINATOR
from muster.broker.settings import Setting, show
from muster.broker.topics.settings import SETTINGS as TOPIC_SETTINGS
from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.consumers.watcher_config import WatcherConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"

HEAD = """\
# Settings

Names, units and defaults are Apache Kafka's if Kafka has the setting. *Unused* means that the setting is accepted
and shown, so that tools which set it work, but changes nothing here. `python -m tools.settings_pages` writes this page
from the tables that broker and clients read; a test checks that it is up to date.

An unknown name is refused; the error suggests the nearest known one.

## The broker

The sources of a value, from the weakest to the strongest: the default; the file of `--config`, in TOML, with quoted
keys in its table `[broker]` (`"num.partitions" = 3`); the environment, `MUSTER_` and the name in capitals with
underscores (`MUSTER_NUM_PARTITIONS=3`); `-o num.partitions=3`; the flags of `muster serve`. Settings marked *d* are
dynamic: a value that is set while the broker runs (`kafka-configs`, AlterConfigs) overrides all of these, immediately
and after a restart.

"""

COORDINATOR = """
`muster coordinator` ([server-assigned.md](server-assigned.md#next-to-apache-kafka)) accepts only these settings,
and refuses `-o` with any other: {}. By default it assigns the partitions of all groups.
"""

TOPICS = """
## Topics

Settings of a topic are set when it is created (`muster topics create flights --config retention.ms=60000`) or later,
and apply immediately. A setting that is not set on the topic has the value of the broker's setting in the last column.

"""

CLIENTS = """
## Clients

These are keywords of `Consumer`, `Producer`, `Admin` and their `Async…` twins. A mapping works too, also with Kafka's
dotted names: `Consumer({"bootstrap.servers": "localhost:9092"}, group_id="delays")`. Times are in milliseconds, sizes
in bytes. Type checkers know the keywords and their values, and do not look into a mapping.
"""


def page() -> str:
    """The text of docs/reference/settings.md."""
    parts = [HEAD, *table(("setting", "default", "meaning"), map(_broker, SETTINGS.values()))]
    of_coordinator = ", ".join(f"`{name}`" for name in SETTINGS if name in OF_COORDINATOR)
    parts += [COORDINATOR.format(of_coordinator), TOPICS]
    parts += table(("setting", "default", "meaning", "broker's setting"), map(_topic, TOPIC_SETTINGS.values()))
    parts.append(CLIENTS)
    seen = {field.name for field in fields(ClientConfig)}
    for title, kind, without in (
        ("Every client", ClientConfig, set[str]()),
        ("Consumers", ConsumerConfig, seen),
        ("Producers", ProducerConfig, seen),
        ("Admin clients", AdminConfig, seen),
    ):
        rows = ((f"`{f.name}`", _code(f.default)) for f in fields(kind) if f.name not in without)
        parts += [f"\n### {title}\n\n{_paragraphs(kind)}\n\n", *table(("setting", "default"), rows)]
    known = {field.name: field.default for field in fields(ConsumerConfig)}
    for title, kind in ("`WatcherConsumer`", WatcherConfig), ("`ServerAssignedConsumer`", ServerAssignedConfig):
        rows = ((f"`{f.name}`", _code(f.default)) for f in fields(kind) if known.get(f.name, known) != f.default)
        head = f"\n### {title}\n\n{_paragraphs(kind)}\n\nThe other settings are those of consumers.\n\n"
        parts += [head, *table(("setting", "default"), rows)]
    return "".join(parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a table."""
    return [f"| {' | '.join(row)} |\n" for row in (head, tuple("---" for _ in head), *rows)]


def _broker(setting: Setting) -> tuple[str, ...]:
    name, *rest = _described(setting)
    return f"{name} *d*" if setting.name in DYNAMIC else name, *rest


def _described(setting: Setting) -> tuple[str, ...]:
    return f"`{setting.name}`", _code(show(setting.default)), setting.documentation


def _topic(setting: Setting) -> tuple[str, ...]:
    return *_described(setting), f"`{setting.synonym}`" if setting.synonym else ""


def _code(value: object) -> str:
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else f"`{value}`"


def _paragraphs(kind: type) -> str:
    """The class's own words about its settings, after its first line."""
    _, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    return rest or inspect.cleandoc(kind.__doc__ or "")


if __name__ == "__main__":
    PAGE.write_text(page())
