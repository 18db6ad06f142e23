"""`muster configs`: describes, alters and lists settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.common import add_connection, add_timeout, open_admin, pairs, print_json, report_errors
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import ConfigEntry, ConfigResource, ConfigResourceType
from muster.client.core.admin.configs import ConfigChange, ConfigOperation
from muster.errors import ConfigError, KafkaError, MusterError

KINDS = {
    "topics": ConfigResourceType.TOPIC,
    "brokers": ConfigResourceType.BROKER,
    "groups": ConfigResourceType.GROUP,
    "client-metrics": ConfigResourceType.CLIENT_METRICS,
}
_NAMES = {kind: name for name, kind in KINDS.items()} | {ConfigResourceType.BROKER_LOGGER: "broker-loggers"}
_SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "broker's file",
    5: "default",
    6: "broker's logger",
    7: "client metrics",
    8: "group",
}
_OWN_SOURCES = {
    ConfigResourceType.TOPIC: 1,
    ConfigResourceType.BROKER: 2,
    ConfigResourceType.CLIENT_METRICS: 7,
    ConfigResourceType.GROUP: 8,
}
_ALL_BROKERS = 3
_OPERATIONS = {
    "append": ConfigOperation.APPEND,
    "subtract": ConfigOperation.SUBTRACT,
}

# Changing these may make a broker delete existing records.
_DELETES_RECORDS = ("retention.", "cleanup.policy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster configs`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = actions.add_parser("describe", help="show settings")
    alter = actions.add_parser("alter", help="change settings, leaving all others as they are")
    listing = actions.add_parser(
        "list", help="list topics, brokers, and the groups and client-metrics that have settings (Kafka 4.1 and newer)"
    )
    for action in (describe, alter):
        action.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
        action.add_argument("names", nargs="*", metavar="NAME", help="topic or group names, or broker IDs")
        action.add_argument("--default", action="store_true", help="for brokers: the cluster-wide defaults")
    listing.add_argument("kind", choices=tuple(KINDS), nargs="?", metavar="KIND", help=", ".join(KINDS))
    describe.add_argument("--all", action="store_true", help="include settings that are not set on the resource itself")
    alter.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set this value (repeatable)")
    alter.add_argument("--delete", action="append", default=[], metavar="KEY", help="restore the default (repeatable)")
    alter.add_argument("--append", action="append", default=[], metavar="KEY=VALUE", help="add to a list (repeatable)")
    alter.add_argument(
        "--subtract", action="append", default=[], metavar="KEY=VALUE", help="remove from a list (repeatable)"
    )
    alter.add_argument("--dry-run", action="store_true", help="only validate the change, without making it")
    add_yes(alter)
    for action in (describe, alter, listing):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection(action)
        add_timeout(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the action; returns 0 if everything succeeded."""
    if arguments.action == "list":
        with open_admin(arguments) as admin:
            return _list(admin, arguments)
    if arguments.default and KINDS[arguments.kind] is not ConfigResourceType.BROKER:
        raise ConfigError("--default applies to brokers only")
    if arguments.kind == "brokers":
        for name in arguments.names:
            if not (name.isascii() and name.isdecimal()):
                raise ConfigError(f"{name!r} is not a broker ID: it must be a number")
    if arguments.action == "alter":
        changes = requested_changes(arguments)
        if not arguments.names and not arguments.default:
            raise ConfigError("configs alter: name the resources to change, or use --default for all brokers")
        with open_admin(arguments) as admin:
            _check_brokers(admin, arguments)
            return _alter(admin, arguments, changes)
    with open_admin(arguments) as admin:
        _check_brokers(admin, arguments)
        return _describe(admin, arguments)


def _check_brokers(admin: Admin, arguments: argparse.Namespace) -> None:
    """Fail immediately if a broker is not in the cluster: only the broker itself knows its settings, and without this
    check the client would wait until its timeout.
    """
    if arguments.kind == "brokers" and arguments.names:
        present = {str(node.node_id) for node in admin.describe_cluster().nodes}
        for name in arguments.names:
            if name not in present:
                raise MusterError(
                    f"broker {name} is not in the cluster now; its brokers are {', '.join(sorted(present))}"
                )


def _resources(arguments: argparse.Namespace) -> list[ConfigResource]:
    names = list(dict.fromkeys(arguments.names)) + ([""] if arguments.default else [])
    return [ConfigResource(KINDS[arguments.kind], name) for name in names]


def described(resource: ConfigResource) -> str:
    """The name of a resource in messages."""
    if resource.resource_type is ConfigResourceType.BROKER and not resource.name:
        return "all brokers"
    return f"{_NAMES[resource.resource_type].rstrip('s')} {resource.name}"


# --- describing ------------------------------------------------------------------------------------------------------


def _describe(admin: Admin, arguments: argparse.Namespace) -> int:
    results = admin.describe_configs(
        _resources(arguments) or _everything(admin, KINDS[arguments.kind]), raise_errors=False
    )
    shown = {
        resource: {name: entry for name, entry in found.items() if arguments.all or is_own(resource, entry)}
        for resource, found in results.items()
        if not isinstance(found, KafkaError)
    }
    if arguments.json:
        print_json({resource.name: entries for resource, entries in shown.items()})
    else:
        for resource, entries in shown.items():
            print("\n".join(table(resource, entries)))
    return report_errors({described(resource): found for resource, found in results.items()}, "settings of")


def _everything(admin: Admin, kind: ConfigResourceType) -> list[ConfigResource]:
    match kind:
        case ConfigResourceType.TOPIC:
            names = [topic.name for topic in admin.list_topics()]
        case ConfigResourceType.BROKER:
            names = [str(node.node_id) for node in admin.describe_cluster().nodes]
        case _:
            return admin.list_config_resources([kind])
    return [ConfigResource(kind, name) for name in names]


def is_own(resource: ConfigResource, entry: ConfigEntry) -> bool:
    """Whether a setting is set on this resource itself."""
    of_all = resource.resource_type is ConfigResourceType.BROKER and not resource.name
    return entry.source == (_ALL_BROKERS if of_all else _OWN_SOURCES.get(resource.resource_type))


def table(resource: ConfigResource, entries: Mapping[str, ConfigEntry]) -> list[str]:
    """The settings of one resource."""
    what = described(resource)
    if not entries:
        return [f"{what[0].upper()}{what[1:]}: no settings of its own"]
    lines = [f"{what[0].upper()}{what[1:]}:"]
    for name, entry in entries.items():
        value = "(secret)" if entry.is_sensitive else entry.value
        where = "" if is_own(resource, entry) else f"  ({_SOURCES.get(entry.source, 'unknown')})"
        lines.append(f"  {name}={'' if value is None else value}{where}")
    return lines


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    found = admin.list_config_resources([KINDS[arguments.kind]] if arguments.kind else [])
    if arguments.json:
        print_json([{"type": _NAMES[resource.resource_type], "name": resource.name} for resource in found])
    else:
        for resource in found:
            print(described(resource))
    return 0


# --- changing --------------------------------------------------------------------------------------------------------


def requested_changes(arguments: argparse.Namespace) -> list[ConfigChange]:
    """The changes on the command line.

    Raises:
        ConfigError: there are no changes, or a setting is named twice.
    """
    changes = [ConfigChange(name, value) for name, value in pairs(arguments.set, "--set").items()]
    changes += [ConfigChange(name, None, ConfigOperation.DELETE) for name in dict.fromkeys(arguments.delete)]
    for option, operation in _OPERATIONS.items():
        values = pairs(getattr(arguments, option), f"--{option}")
        changes += [ConfigChange(name, value, operation) for name, value in values.items()]
    if not changes:
        raise ConfigError("configs alter: name a change with --set, --delete, --append or --subtract")
    texts = [*arguments.set, *arguments.append, *arguments.subtract, *arguments.delete]
    names = [text.partition("=")[0] for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is named twice; write a list's values together: KEY=a,b")
    return changes


def _alter(admin: Admin, arguments: argparse.Namespace, changes: list[ConfigChange]) -> int:
    """Change all resources or none: the brokers validate everything first."""
    wanted = dict.fromkeys(_resources(arguments), changes)
    tried = admin.alter_configs(wanted, validate_only=True, raise_errors=False)
    if report_errors({described(resource): error for resource, error in tried.items()}, "settings of"):
        if len(wanted) > 1:
            print("muster: nothing was changed", file=sys.stderr)
        if arguments.json:
            print_json({resource.name: error for resource, error in tried.items()})
        return 1
    results: Mapping[ConfigResource, KafkaError | None] = tried
    if not arguments.dry_run:
        risky = [change.name for change in changes if any(part in change.name for part in _DELETES_RECORDS)]
        if risky:
            names = some([described(resource) for resource in wanted])
            confirm(
                arguments, f"Changing {some(risky)} may make brokers delete records immediately. Change it for {names}?"
            )
        results = admin.alter_configs(wanted, raise_errors=False)
    if arguments.json:
        print_json({resource.name: error for resource, error in results.items()})
    else:
        done = "Would change" if arguments.dry_run else "Changed"
        for resource, error in results.items():
            if error is None:
                print(f"{done} settings of {described(resource)}.")
    return report_errors({described(resource): error for resource, error in results.items()}, "settings of")
