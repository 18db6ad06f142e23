"""`muster topics`: create, list, describe, alter and delete topics; replicas.py has leader election and
reassignment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from muster.cli.administer import replicas
from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.common import add_connection, add_timeout, open_admin, pairs, print_json, report_errors, topic_id_text
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import (
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import INTERNAL_TOPICS

V = TypeVar("V")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster topics`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create topics")
    create.add_argument("names", nargs="+", metavar="TOPIC")
    create.add_argument(
        "--partitions",
        type=int,
        default=-1,
        metavar="N",
        help="number of partitions (default: the broker's num.partitions)",
    )
    create.add_argument(
        "--replication-factor", type=int, default=-1, metavar="N", help="replication factor (default: the broker's)"
    )
    create.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="a topic setting (repeatable)"
    )
    create.add_argument("--if-not-exists", action="store_true", help="ignore topics that already exist")
    listing = actions.add_parser("list", help="list topics")
    listing.add_argument("--internal", action="store_true", help="include internal topics, such as __consumer_offsets")
    describe = actions.add_parser("describe", help="show partitions, leaders and replicas")
    describe.add_argument("names", nargs="*", metavar="TOPIC", help="default: all but internal topics")
    describe.add_argument("--internal", action="store_true", help="include internal topics if no topics are named")
    which = describe.add_mutually_exclusive_group()
    which.add_argument("--under-replicated", action="store_true", help="only partitions with out-of-sync replicas")
    which.add_argument("--unavailable", action="store_true", help="only partitions without a leader")
    alter = actions.add_parser("alter", help="add partitions to topics (for settings: muster configs alter)")
    alter.add_argument("names", nargs="+", metavar="TOPIC")
    alter.add_argument("--partitions", type=int, required=True, metavar="N", help="new total number of partitions")
    delete = actions.add_parser("delete", help="delete topics with all their records")
    delete.add_argument("names", nargs="+", metavar="TOPIC")
    for action in (alter, delete):
        action.add_argument("--if-exists", action="store_true", help="ignore topics that do not exist")
        add_yes(action)
    for action in (create, listing, describe, alter, delete):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection(action)
        add_timeout(action)
    replicas.add_actions(actions)


def run(arguments: argparse.Namespace) -> int:
    """Run the action; returns 0 if everything succeeded."""
    with open_admin(arguments) as admin:
        return _ACTIONS[arguments.action](admin, arguments)


def _create(admin: Admin, arguments: argparse.Namespace) -> int:
    configs = pairs(arguments.config, "--config")
    topics = [NewTopic(n, arguments.partitions, arguments.replication_factor, configs) for n in arguments.names]
    results = admin.create_topics(topics, raise_errors=False)
    _print_results(arguments, results, "Created topic {}.")
    if arguments.if_not_exists:
        results = _without(results, ErrorCode.TOPIC_ALREADY_EXISTS)
    return report_errors(results, "topic")


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    topics = admin.list_topics(include_internal=arguments.internal)
    if arguments.json:
        print_json(topics)
    else:
        for topic in topics:
            print(topic.name)
    return 0


def _describe(admin: Admin, arguments: argparse.Namespace) -> int:
    names = arguments.names or [topic.name for topic in admin.list_topics(include_internal=arguments.internal)]
    results = admin.describe_topics(names, raise_errors=False)
    found = [topic for topic in results.values() if isinstance(topic, TopicDescription)]
    if arguments.under_replicated or arguments.unavailable:
        return _describe_some(arguments, results, found)
    if arguments.json:
        print_json(results)
    else:
        configs = admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic.name) for topic in found], raise_errors=False
        )
        for topic in found:
            settings = configs[ConfigResource(ConfigResourceType.TOPIC, topic.name)]
            own = {} if isinstance(settings, KafkaError) else settings
            text = ",".join(f"{entry.name}={entry.value}" for entry in own.values() if not entry.is_default)
            print("\n".join(description(topic, text)))
    return report_errors(results, "topic")


def description(topic: TopicDescription, configs: str) -> list[str]:
    """A topic as `kafka-topics.sh --describe` prints it, without the eligible leader replicas."""
    factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    head = (
        f"Topic: {topic.name}\tTopicId: {topic_id_text(topic.topic_id)}\tPartitionCount: {len(topic.partitions)}\t"
        f"ReplicationFactor: {factor}\tConfigs: {configs}"
    )
    return [head, *partition_lines(topic)]


def _describe_some(
    arguments: argparse.Namespace, results: dict[str, TopicDescription | KafkaError], found: list[TopicDescription]
) -> int:
    """Only the partitions with the chosen problem."""

    def has_it(part: PartitionDescription) -> bool:
        return part.leader_id < 0 if arguments.unavailable else len(part.isr) < len(part.replicas)

    for topic in found:
        topic.partitions = [part for part in topic.partitions if has_it(part)]
    if arguments.json:
        print_json({topic.name: topic for topic in found if topic.partitions})
    else:
        for line in (line for topic in found for line in partition_lines(topic)):
            print(line)
    return report_errors(results, "topic")


def partition_lines(topic: TopicDescription) -> list[str]:
    """The partitions of a topic as `kafka-topics.sh --describe` prints them, without the eligible leader replicas."""
    lines = []
    for part in topic.partitions:
        leader = "none" if part.leader_id < 0 else part.leader_id
        replicas, isr = (",".join(map(str, ids)) for ids in (part.replicas, part.isr))
        lines.append(
            f"\tTopic: {topic.name}\tPartition: {part.partition}\tLeader: {leader}\tReplicas: {replicas}\tIsr: {isr}"
        )
    return lines


def _alter(admin: Admin, arguments: argparse.Namespace) -> int:
    """Change all topics or none: the brokers validate first, since partitions cannot be removed again."""
    own = [name for name in arguments.names if name in INTERNAL_TOPICS]
    if own:
        raise MusterError(
            f"{own[0]} is an internal topic: with more partitions, brokers would look for its data in the wrong ones."
        )
    topics = dict.fromkeys(arguments.names, arguments.partitions)
    tried = admin.create_partitions(topics, validate_only=True, raise_errors=False)
    if arguments.if_exists:
        tried = _without(tried, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if report_errors(tried, "topic"):
        if len(topics) > 1:
            print("muster: no topic was changed", file=sys.stderr)
        if arguments.json:
            print_json(tried)
        return 1
    if not tried:
        _print_results(arguments, tried, "")
        return 0
    keys = "a key may map to a different partition than before, and partitions cannot be removed again"
    confirm(arguments, f"Increase {some(list(tried))} to {arguments.partitions} partitions? (Then {keys}.)")
    results = admin.create_partitions(dict.fromkeys(tried, arguments.partitions), raise_errors=False)
    _print_results(arguments, results, f"Topic {{}} has {arguments.partitions} partitions.")
    return report_errors(results, "topic")


def _delete(admin: Admin, arguments: argparse.Namespace) -> int:
    """Delete all topics or none: a typo in the last name must not cost the topics before it."""
    names = list(dict.fromkeys(arguments.names))
    known = {topic.name: topic.is_internal for topic in admin.list_topics(include_internal=True)}
    internal = [name for name in names if known.get(name, name in INTERNAL_TOPICS)]
    if internal:
        own = f"{internal[0]} is an internal topic: deleting it would lose all that it holds, such as groups"
        raise MusterError(f"{own}. Nothing was deleted.")
    missing = [name for name in names if name not in known]
    if missing and not arguments.if_exists:
        raise MusterError(f"topic {missing[0]} does not exist. Nothing was deleted; --if-exists ignores it.")
    existing = [name for name in names if name in known]
    if existing:
        confirm(arguments, f"Delete {'topics' if len(existing) > 1 else 'topic'} {some(existing)} with all records?")
    results = admin.delete_topics(existing, raise_errors=False)
    _print_results(arguments, results, "Deleted topic {}.")
    if arguments.if_exists:
        results = _without(results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return report_errors(results, "topic")


def _print_results(arguments: argparse.Namespace, results: Mapping[str, object], sentence: str) -> None:
    """Print what was done, topic by topic."""
    if arguments.json:
        print_json(results)
        return
    for name, result in results.items():
        if not isinstance(result, KafkaError):
            print(sentence.format(name))


def _without(results: dict[str, V], code: ErrorCode) -> dict[str, V]:
    return {
        name: answer for name, answer in results.items() if not (isinstance(answer, KafkaError) and answer.code is code)
    }


_ACTIONS: dict[str, Callable[[Admin, argparse.Namespace], int]] = {
    "create": _create,
    "list": _list,
    "describe": _describe,
    "alter": _alter,
    "delete": _delete,
    "elect-leaders": replicas.elect_leaders,
    "reassign": replicas.reassign,
    "reassignments": replicas.reassignments,
}
