"""What the commands that connect to a cluster share: its address, client settings, JSON output."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from muster.cli.logs import add_log_level, set_up_log
from muster.client import properties
from muster.client.admin.admin import Admin
from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.errors import ConfigError, KafkaConnectionError, KafkaError, KafkaTimeoutError, MusterError
from muster.model import TopicPartition

FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""How each shell completes a file name, in shtab's terms; for `completed`."""

DEFAULT_BOOTSTRAP = "localhost:9092"

_MOST_DIGITS = 100
"""Python refuses to parse thousands of digits, with an error of its own; no number here is that long."""


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The options that say where the cluster is and how to connect."""
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"brokers to bootstrap from, comma-separated (default: from --command-config, or {DEFAULT_BOOTSTRAP})",
    )
    file_help = "client settings in a properties file, as for Kafka's own tools"
    completed(parser.add_argument("--command-config", metavar="FILE", help=file_help), FILES)
    parser.add_argument(
        "-o",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a client setting, by its Kafka name (repeatable)",
    )
    add_log_level(parser, "WARNING")


def completed(action: argparse.Action, by_shell: Mapping[str, str]) -> None:
    """Set how `muster completion` completes an argument."""
    action.complete = by_shell  # type: ignore[attr-defined]


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """The option for how long a call may take."""
    parser.add_argument(
        "--timeout-ms", type=int, default=10_000, metavar="MS", help="give up after this long (default 10000)"
    )


def read_connection(arguments: argparse.Namespace) -> None:
    """Read the `--command-config` file, if the command has that option, and determine the cluster's address.

    Raises:
        ConfigError: the file cannot be read, or has a setting that is not valid here.
    """
    if "command_config" not in arguments:
        return
    path = arguments.command_config
    arguments.in_file = {}
    if path is not None:
        set_up_log(arguments)
        arguments.in_file = properties.read(path)
        properties.check(path, arguments.in_file, {name for kind in _KINDS for name in _names(kind)})
    in_file = arguments.in_file.pop("bootstrap.servers", None)
    given = pairs(arguments.settings, "-o")
    if arguments.bootstrap is None:
        by_name = given.get("bootstrap.servers", given.get("bootstrap_servers"))
        arguments.bootstrap = by_name or in_file or DEFAULT_BOOTSTRAP


def client_settings(arguments: argparse.Namespace, kind: type[ClientConfig]) -> dict[str, Any]:
    """The settings from the file and the command line that this kind of client supports."""
    in_file = properties.choose(arguments.in_file, _names(kind))
    given = pairs(arguments.settings, "-o")
    return {"client.id": "muster-cli"} | in_file | given | {"bootstrap.servers": arguments.bootstrap}


def spark_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The same settings as options of the Spark source."""
    settings = client_settings(arguments, ConsumerConfig)
    for decided in ("client.id", "bootstrap.servers", "group.id", "group.instance.id"):
        if decided not in pairs(arguments.settings, "-o"):
            settings.pop(decided, None)
    return {f"kafka.{name}": value for name, value in settings.items()}


_KINDS = (ConsumerConfig, ProducerConfig, AdminConfig)


def _names(kind: type[ClientConfig]) -> set[str]:
    return {setting.name for setting in fields(kind)}


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE arguments as a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # Text that is not a setting's name may be a secret, and errors end up in logs.
            shown = f" {text!r}" if properties.is_like_a_setting(text) else ""
            raise ConfigError(f"{option}{shown}: expected KEY=VALUE")
        found[key] = value
    return found


def check_groups(names: Iterable[str]) -> None:
    """Check that these are valid group names.

    Raises:
        ConfigError: one is empty or not valid UTF-8.
    """
    for name in names:
        if not name:
            raise ConfigError("--group is empty: name a group, or omit it for all groups")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"--group {name!r}: the name is not valid UTF-8") from None


@contextmanager
def open_admin(arguments: argparse.Namespace) -> Iterator[Admin]:
    """An admin client; a failure to connect says which address was tried."""
    set_up_log(arguments)
    settings = {"default.api.timeout.ms": arguments.timeout_ms} | client_settings(arguments, AdminConfig)
    with reaching(arguments.bootstrap), Admin(settings) as admin:
        yield admin


@contextmanager
def reaching(bootstrap: str) -> Iterator[None]:
    """Add the address that was tried to a failure to connect."""
    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise MusterError(
            f"{error}\n(tried to connect to {bootstrap}; choose another cluster with --bootstrap)"
        ) from None


def partitions_of(admin: Admin, named: Mapping[str, list[int] | None], consequence: str = "") -> list[TopicPartition]:
    """The named partitions; for a topic that is named without partitions, all of them.

    Raises:
        MusterError: such a topic cannot be described; `consequence` ends the message.
    """
    places: list[TopicPartition] = []
    for topic, found in admin.describe_topics(named, raise_errors=False).items():
        numbers = named[topic]
        if numbers is None:
            if isinstance(found, KafkaError):
                raise MusterError(f"topic {topic}: {found.code.name}{consequence}")
            numbers = [part.partition for part in found.partitions]
        places += [TopicPartition(topic, number) for number in numbers]
    return sorted(places)


def report_errors(results: Mapping[Any, object], what: str) -> int:
    """Print each failure on standard error. Returns the exit code."""
    failed = {item: answer for item, answer in results.items() if isinstance(answer, KafkaError)}
    for item, error in failed.items():
        print(f"muster: {what} {item}: {error}", file=sys.stderr)
    return 1 if failed else 0


def print_json(value: object) -> None:
    """Print a value as JSON: dataclasses as objects, errors as code and message, topic ids as Kafka prints them."""
    print(json.dumps(value, default=_plain, indent=2))


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return topic_id_text(value)
    if isinstance(value, KafkaError):
        return {"error": value.code.name, "message": value.message}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def topic_id_text(topic_id: bytes) -> str:
    """A topic ID as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def natural_number(text: str) -> int | None:
    """The number, or None if the text is anything but ASCII digits."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None
