"""`muster topics`: create, list, describe and delete topics."""

from __future__ import annotations

import argparse
from typing import TypeVar

from muster.cli.common import add_connection, add_timeout, open_admin, pairs, print_json, report_errors, topic_id_text
from muster.client.admin import Admin
from muster.client.core.admin import ConfigResource, ConfigResourceType, NewTopic, TopicDescription
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import INTERNAL_TOPICS

V = TypeVar("V")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster topics`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create topics")
    create.add_argument("names", nargs="+", metavar="TOPIC")
    create.add_argument("--partitions", type=int, default=-1, metavar="N", help="default: the broker's num.partitions")
    create.add_argument("--replication-factor", type=int, default=-1, metavar="N", help="default: the broker's")
    create.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="a setting of the topic")
    create.add_argument("--if-not-exists", action="store_true", help="leave topics alone that are there already")
    listing = actions.add_parser("list", help="list topics")
    listing.add_argument("--internal", action="store_true", help="with internal topics, such as __consumer_offsets")
    describe = actions.add_parser("describe", help="show partitions, leaders and replicas")
    describe.add_argument("names", nargs="*", metavar="TOPIC", help="default: all that are not internal")
    delete = actions.add_parser("delete", help="delete topics with all that is in them")
    delete.add_argument("names", nargs="+", metavar="TOPIC")
    delete.add_argument("--if-exists", action="store_true", help="say nothing of topics that are not there")
    for action in (create, listing, describe, delete):
        add_connection(action)
        add_timeout(action)
    for action in (listing, describe):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it; the exit code says whether all of it succeeded."""
    with open_admin(arguments) as admin:
        return {"create": _create, "list": _list, "describe": _describe, "delete": _delete}[arguments.action](
            admin, arguments
        )


def _create(admin: Admin, arguments: argparse.Namespace) -> int:
    configs = pairs(arguments.config, "--config")
    topics = [NewTopic(n, arguments.partitions, arguments.replication_factor, configs) for n in arguments.names]
    results = admin.create_topics(topics)
    for name, result in results.items():
        if not isinstance(result, KafkaError):
            print(f"Created topic {name}.")
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
    names = arguments.names or [topic.name for topic in admin.list_topics()]
    results = admin.describe_topics(names)
    found = [topic for topic in results.values() if isinstance(topic, TopicDescription)]
    if arguments.json:
        print_json(results)
    else:
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name) for topic in found])
        for topic in found:
            settings = configs[ConfigResource(ConfigResourceType.TOPIC, topic.name)]
            own = {} if isinstance(settings, KafkaError) else settings
            text = ",".join(f"{entry.name}={entry.value}" for entry in own.values() if not entry.is_default)
            print("\n".join(description(topic, text)))
    return report_errors(results, "topic")


def description(topic: TopicDescription, configs: str) -> list[str]:
    """A topic as `kafka-topics.sh --describe` prints it, without the replicas that are eligible to lead."""
    factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    lines = [
        f"Topic: {topic.name}\tTopicId: {topic_id_text(topic.topic_id)}\tPartitionCount: {len(topic.partitions)}\t"
        f"ReplicationFactor: {factor}\tConfigs: {configs}"
    ]
    for part in topic.partitions:
        leader = "none" if part.leader_id < 0 else part.leader_id
        replicas, isr = (",".join(map(str, ids)) for ids in (part.replicas, part.isr))
        lines.append(
            f"\tTopic: {topic.name}\tPartition: {part.partition}\tLeader: {leader}\tReplicas: {replicas}\tIsr: {isr}"
        )
    return lines


def _delete(admin: Admin, arguments: argparse.Namespace) -> int:
    """Delete all or none: a mistake in the last name must not cost the topics before it."""
    names = list(dict.fromkeys(arguments.names))
    known = {topic.name: topic.is_internal for topic in admin.list_topics(include_internal=True)}
    internal = [name for name in names if known.get(name, name in INTERNAL_TOPICS)]
    if internal:
        own = f"{internal[0]} is the brokers' own: all that it keeps, such as groups, would be gone"
        raise MusterError(f"{own}. Nothing was deleted.")
    missing = [name for name in names if name not in known]
    if missing and not arguments.if_exists:
        raise MusterError(f"topic {missing[0]} does not exist. Nothing was deleted; --if-exists passes over it.")
    results = admin.delete_topics([name for name in names if name in known])
    for name, result in results.items():
        if not isinstance(result, KafkaError):
            print(f"Deleted topic {name}.")
    if arguments.if_exists:
        results = _without(results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return report_errors(results, "topic")


def _without(results: dict[str, V], code: ErrorCode) -> dict[str, V]:
    return {
        name: answer for name, answer in results.items() if not (isinstance(answer, KafkaError) and answer.code is code)
    }
