"""`muster groups`: consumer groups with their offsets and members, in the columns of `kafka-consumer-groups.sh`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict

from muster.cli.administer import group_offsets, group_tables
from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.common import add_connection, add_timeout, open_admin, print_json, report_errors
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription, TopicDescription
from muster.client.core.admin.members import GroupMember
from muster.errors import ConfigError, KafkaError
from muster.model import CONSUMER_PROTOCOL_TYPE, OffsetAndMetadata, TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
"""The states of consumer groups, of the classic protocol and of KIP-848 (`GroupState.groupStatesForType`)."""

TYPES = ("Classic", "Consumer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster groups`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the groups of all coordinators")
    listing.add_argument(
        "--state",
        nargs="?",
        const="",
        metavar="STATES",
        help="show states; with STATES (comma-separated) only groups in these states",
    )
    listing.add_argument(
        "--type",
        nargs="?",
        const="",
        metavar="TYPES",
        help="show types; with TYPES (comma-separated) only groups of these types",
    )
    describe = actions.add_parser("describe", help="show offsets and lag, members, or the state")
    describe.add_argument("groups", nargs="*", metavar="GROUP")
    describe.add_argument("--all", action="store_true", help="all groups")
    what = describe.add_mutually_exclusive_group()
    what.add_argument("--offsets", action="store_true", help="offsets and lag of each partition (the default)")
    what.add_argument("--members", action="store_true", help="the members")
    what.add_argument("--state", action="store_true", help="state, coordinator and assignment strategy")
    describe.add_argument("--verbose", action="store_true", help="more columns")
    delete = actions.add_parser("delete", help="delete groups without members, with their offsets")
    delete.add_argument("groups", nargs="+", metavar="GROUP")
    add_yes(delete)
    reset = actions.add_parser("reset-offsets", help="reset committed offsets of inactive groups")
    group_offsets.add_reset(reset)
    delete_offsets = actions.add_parser("delete-offsets", help="delete committed offsets of a group")
    group_offsets.add_delete(delete_offsets)
    remove = actions.add_parser("remove-members", help="remove members from a group; running ones rejoin")
    _add_remove(remove)
    for action in (listing, describe, delete, reset, delete_offsets, remove):
        add_connection(action)
        add_timeout(action)
    for action in (listing, describe, delete, remove):
        action.add_argument("--json", action="store_true", help="print JSON")


def _add_remove(remove: argparse.ArgumentParser) -> None:
    remove.add_argument("group", metavar="GROUP")
    remove.add_argument("--member", action="append", default=[], metavar="ID", help="a member ID (repeatable)")
    remove.add_argument(
        "--instance", action="append", default=[], metavar="ID", help="a static member's group.instance.id (repeatable)"
    )
    remove.add_argument("--all", action="store_true", help="all members")
    remove.add_argument("--reason", metavar="TEXT", help="a reason for the coordinator's log")
    add_yes(remove)


def run(arguments: argparse.Namespace) -> int:
    """Run the action; returns 0 if everything succeeded."""
    if arguments.action == "describe" and bool(arguments.groups) == arguments.all:
        raise ConfigError("groups describe: name the groups, or use --all")
    if arguments.action == "list":
        _wanted(arguments)
    if arguments.action == "reset-offsets":
        group_offsets.check_reset(arguments)
    if arguments.action == "remove-members" and bool(arguments.member or arguments.instance) == arguments.all:
        raise ConfigError("groups remove-members: name members with --member or --instance, or use --all")
    with open_admin(arguments) as admin:
        return _ACTIONS[arguments.action](admin, arguments)


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    states, types = _wanted(arguments)
    groups = admin.list_consumer_groups(states=states, types=types)
    groups = [group for group in groups if group.protocol_type in (CONSUMER_PROTOCOL_TYPE, "")]
    if arguments.json:
        print_json(groups)
        return 0
    if arguments.state is None and arguments.type is None:
        lines = [group.group_id for group in groups]
    else:
        with_type, with_state = arguments.type is not None, arguments.state is not None
        lines = group_tables.listing_table(groups, with_type=with_type, with_state=with_state)
    for line in lines:
        print(line)
    return 0


def _wanted(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    return _words(arguments.state, STATES, "--state"), _words(arguments.type, TYPES, "--type")


def _words(text: str | None, known: tuple[str, ...], option: str) -> list[str]:
    """A comma-separated list. An unknown word is an error, as in Kafka's tool: brokers would silently find no
    groups."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word.lower() not in map(str.lower, known):
            raise ConfigError(f"{option}: {word!r} is not valid; choose from {', '.join(known)}")
    return words


def _describe(admin: Admin, arguments: argparse.Namespace) -> int:
    group_ids = arguments.groups
    if arguments.all:
        group_ids = [group.group_id for group in admin.list_consumer_groups()]
    results = admin.describe_consumer_groups(sorted(group_ids), raise_errors=False)
    found = [group for group in results.values() if isinstance(group, GroupDescription)]
    rows: dict[str, list[group_tables.OffsetRow]] = {}
    refused: dict[str, KafkaError] = {}
    if arguments.json or not (arguments.members or arguments.state):
        rows, refused = _offset_rows(admin, found)
    shown = [group for group in found if group.group_id not in refused]
    if arguments.json:
        print_json({group.group_id: asdict(group) | {"offsets": _as_json(rows[group.group_id])} for group in shown})
    else:
        for group in shown:
            _print(group, rows.get(group.group_id, []), arguments)
    return report_errors({**results, **refused}, "group")


def _print(group: GroupDescription, rows: list[group_tables.OffsetRow], arguments: argparse.Namespace) -> None:
    verbose = arguments.verbose
    if arguments.members:
        lines = group_tables.members_table(group, verbose=verbose)
    elif arguments.state:
        lines = group_tables.state_table(group, verbose=verbose)
    else:
        lines = group_tables.offsets_table(rows, verbose=verbose) if rows else []
    note = group_tables.note(group)
    if note is not None:
        print(end="", flush=True)
        print(note, file=sys.stderr, flush=True)
    if lines:
        print("\n" + "\n".join(lines))


def _offset_rows(
    admin: Admin, groups: list[GroupDescription]
) -> tuple[dict[str, list[group_tables.OffsetRow]], dict[str, KafkaError]]:
    """The rows of each group, or the error of its coordinator. One request covers all groups: there may be hundreds."""
    committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    refused: dict[str, KafkaError] = {}
    for group_id, answers in admin.list_offsets_of_consumer_groups(
        [group.group_id for group in groups], raise_errors=False
    ).items():
        if isinstance(answers, KafkaError):
            refused[group_id] = answers
        else:
            committed[group_id] = {place: at for place, at in answers.items() if not isinstance(at, KafkaError)}
    places = {place for offsets in committed.values() for place in offsets}
    places |= {place for group in groups for member in group.members for place in member.assignment}
    found = admin.list_offsets(dict.fromkeys(_led(admin, places), LATEST_TIMESTAMP), raise_errors=False)
    ends = {place: end.offset for place, end in found.items() if end is not None and not isinstance(end, KafkaError)}
    return {
        group.group_id: group_tables.offset_rows(group, committed[group.group_id], ends)
        for group in groups
        if group.group_id in committed
    }, refused


def _led(admin: Admin, places: set[TopicPartition]) -> list[TopicPartition]:
    """The partitions with a leader. For one without, `list_offsets` would wait until its timeout."""
    topics = admin.describe_topics({place.topic for place in places}, raise_errors=False).values()
    found = [topic for topic in topics if isinstance(topic, TopicDescription)]
    led = {
        TopicPartition(topic.name, part.partition)
        for topic in found
        for part in topic.partitions
        if part.leader_id >= 0
    }
    return sorted(places & led)


def _as_json(rows: list[group_tables.OffsetRow]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def _delete(admin: Admin, arguments: argparse.Namespace) -> int:
    confirm(
        arguments,
        f"Delete {'groups' if len(arguments.groups) > 1 else 'group'} {some(arguments.groups)} with all offsets?",
    )
    results = admin.delete_consumer_groups(arguments.groups, raise_errors=False)
    if arguments.json:
        print_json(results)
    else:
        for group_id, error in results.items():
            if error is None:
                print(f"Deleted group {group_id}.")
    return report_errors(results, "group")


def _remove_members(admin: Admin, arguments: argparse.Namespace) -> int:
    named = [GroupMember(member) for member in arguments.member]
    named += [GroupMember("", instance) for instance in arguments.instance]
    who = "all members" if arguments.all else some([*arguments.member, *arguments.instance])
    confirm(arguments, f"Remove {who} from group {arguments.group}?")
    results = admin.remove_consumer_group_members(
        arguments.group, None if arguments.all else named, reason=arguments.reason, raise_errors=False
    )
    if arguments.json:
        print_json([{**member._asdict(), "error": error} for member, error in results.items()])
    else:
        for member, error in results.items():
            if error is None:
                print(f"Removed member {member.group_instance_id or member.member_id}.")
        if not results:
            print(f"muster: group {arguments.group} has no members", file=sys.stderr)
    outcomes = {member.group_instance_id or member.member_id: error for member, error in results.items()}
    return report_errors(outcomes, f"group {arguments.group}: member")


_ACTIONS: dict[str, Callable[[Admin, argparse.Namespace], int]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "reset-offsets": group_offsets.reset,
    "delete-offsets": group_offsets.delete,
    "remove-members": _remove_members,
}
