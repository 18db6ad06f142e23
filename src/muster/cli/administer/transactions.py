"""`muster transactions`: transactional ids, producers, and ending transactions that hang, in the columns of
`kafka-transactions.sh`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from muster.cli.administer.confirmation import add_yes, confirm
from muster.cli.common import add_connection, add_timeout, open_admin, print_json
from muster.client.admin.admin import Admin
from muster.client.admin.hanging import find_hanging
from muster.client.core.admin.transactions import (
    TRANSACTION_STATES,
    AbortTransactionSpec,
    HangingTransaction,
    all_listed,
)
from muster.clock import wall_clock_ms
from muster.errors import AdminError, ConfigError, KafkaError, MusterError
from muster.model import TopicPartition

_MINUTE_MS = 60_000

LIST = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBE = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
PRODUCERS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster transactions`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the transactional ids of all coordinators")
    _add_filters(listing)
    describe = actions.add_parser("describe", help="show the state of transactional ids")
    _add_id(describe)
    producers = actions.add_parser("describe-producers", help="show the active producers of a partition")
    producers.add_argument(
        "--broker-id", type=int, metavar="ID", help="ask the replica on this broker (default: the leader)"
    )
    _add_partition(producers)
    abort = actions.add_parser("abort", help="abort a transaction that hangs in a partition, without its coordinator")
    _add_abort(abort)
    hanging = actions.add_parser("find-hanging", help="find open transactions that no coordinator will end")
    _add_hanging(hanging)
    terminate = actions.add_parser(
        "force-terminate", help="fence the producer of a transactional id, and abort its transaction"
    )
    _add_id(terminate, "--transactionalId")
    add_yes(terminate)
    for action in (listing, describe, producers, abort, hanging, terminate):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection(action)
        add_timeout(action)


def _add_filters(listing: argparse.ArgumentParser) -> None:
    listing.add_argument(
        "--duration-filter",
        type=int,
        default=-1,
        metavar="MS",
        help="only ids whose transaction has lasted longer than this; negative means all",
    )
    listing.add_argument(
        "--transactional-id-pattern",
        metavar="REGEX",
        help="only ids that match this regular expression as a whole; the broker applies it",
    )
    listing.add_argument("--state", action="append", default=[], metavar="STATE", help="only this state (repeatable)")
    listing.add_argument(
        "--producer-id", action="append", type=int, default=[], metavar="ID", help="only this producer ID (repeatable)"
    )


def _add_id(parser: argparse.ArgumentParser, *other_names: str) -> None:
    parser.add_argument(
        "--transactional-id",
        *other_names,
        dest="transactional_id",
        action="append",
        required=True,
        metavar="ID",
        help="a transactional ID (repeatable)",
    )


def _add_partition(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--topic", required=required, metavar="TOPIC", help="the topic")
    parser.add_argument("--partition", type=int, required=required, metavar="N", help="the partition of the topic")


def _add_abort(abort: argparse.ArgumentParser) -> None:
    _add_partition(abort)
    abort.add_argument(
        "--start-offset", type=int, metavar="OFFSET", help="where the transaction begins (Kafka 3.0 and newer)"
    )
    older = "for brokers before Kafka 3.0"
    abort.add_argument("--producer-id", type=int, metavar="ID", help=f"its producer ID, {older}")
    abort.add_argument("--producer-epoch", type=int, metavar="EPOCH", help=f"its producer epoch, {older}")
    abort.add_argument("--coordinator-epoch", type=int, metavar="EPOCH", help=f"its coordinator epoch, {older}")
    add_yes(abort)


def _add_hanging(hanging: argparse.ArgumentParser) -> None:
    hanging.add_argument("--broker-id", type=int, metavar="ID", help="search the replicas on this broker")
    hanging.add_argument(
        "--max-transaction-timeout",
        type=int,
        default=15,
        metavar="MINUTES",
        help="the brokers' transaction.max.timeout.ms, in minutes; younger transactions are skipped (default 15)",
    )
    _add_partition(hanging, required=False)


def run(arguments: argparse.Namespace) -> int:
    """Run the action; returns 0 if it succeeded."""
    if arguments.action == "list":
        arguments.state = [_state(word) for text in arguments.state for word in text.split(",")]
    if arguments.action == "abort":
        _check_abort(arguments)
    if arguments.action == "find-hanging":
        _check_hanging(arguments)
    with open_admin(arguments) as admin:
        return _ACTIONS[arguments.action](admin, arguments)


def _state(word: str) -> str:
    for state in TRANSACTION_STATES:
        if state.lower() == word.strip().lower():
            return state
    raise ConfigError(f"--state: {word!r} is not valid; choose from {', '.join(TRANSACTION_STATES)}")


def _check_abort(arguments: argparse.Namespace) -> None:
    older = (arguments.producer_id, arguments.producer_epoch, arguments.coordinator_epoch)
    if (arguments.start_offset is None) == (arguments.producer_id is None):
        raise ConfigError(
            "transactions abort: name the transaction with --start-offset, or, for brokers before Kafka 3.0, with"
            " --producer-id, --producer-epoch and --coordinator-epoch"
        )
    if arguments.producer_id is not None and None in older:
        raise ConfigError("transactions abort: --producer-id needs --producer-epoch and --coordinator-epoch too")


def _check_hanging(arguments: argparse.Namespace) -> None:
    if arguments.topic is None and arguments.broker_id is None:
        raise ConfigError("transactions find-hanging: say where to search with --topic or --broker-id")
    if arguments.partition is not None and arguments.topic is None:
        raise ConfigError("transactions find-hanging: --partition needs --topic")


# --- listing and describing ------------------------------------------------------------------------------------------


def _list(admin: Admin, arguments: argparse.Namespace) -> int:
    by_broker = admin.list_transactions_by_broker(
        states=arguments.state,
        producer_ids=arguments.producer_id,
        duration_ms=arguments.duration_filter,
        pattern=arguments.transactional_id_pattern,
    )
    answers = {broker: listed for broker, listed in by_broker.items() if not isinstance(listed, KafkaError)}
    found = all_listed(answers or by_broker)
    if arguments.json:
        print_json(found)
    else:
        _print(LIST, [(each.transactional_id, each.coordinator_id, each.producer_id, each.state) for each in found])
    for broker, listed in by_broker.items():
        if isinstance(listed, KafkaError):
            print(f"muster: the ids that broker {broker} coordinates are missing: {listed}", file=sys.stderr)
    return 0 if len(answers) == len(by_broker) else 1


def _describe(admin: Admin, arguments: argparse.Namespace) -> int:
    found = admin.describe_transactions(arguments.transactional_id, raise_errors=False)
    described = {name: each for name, each in found.items() if not isinstance(each, KafkaError)}
    now = wall_clock_ms()
    durations = {
        name: None if each.transaction_start_time_ms is None else now - each.transaction_start_time_ms
        for name, each in described.items()
    }
    if arguments.json:
        print_json({name: asdict(each) | {"duration_ms": durations[name]} for name, each in described.items()})
    elif described:
        rows = [
            (
                each.coordinator_id,
                name,
                each.producer_id,
                each.producer_epoch,
                each.state,
                each.transaction_timeout_ms,
                _or_none(each.transaction_start_time_ms),
                _or_none(durations[name]),
                ",".join(map(str, each.partitions)),
            )
            for name, each in described.items()
        ]
        _print(DESCRIBE, rows)
    for each in found.values():
        if isinstance(each, KafkaError):
            print(f"muster: {each}", file=sys.stderr)
    return 0 if len(described) == len(found) else 1


def _producers(admin: Admin, arguments: argparse.Namespace) -> int:
    place = TopicPartition(arguments.topic, arguments.partition)
    found = admin.describe_producers([place], broker=arguments.broker_id)[place]
    if arguments.json:
        print_json(found)
        return 0
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            -1 if each.coordinator_epoch is None else each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp,
            _or_none(each.transaction_start_offset),
        )
        for each in found
    ]
    _print(PRODUCERS, rows)
    return 0


def _hanging(admin: Admin, arguments: argparse.Namespace) -> int:
    places = _places(admin, arguments)
    longer_than_ms = arguments.max_transaction_timeout * _MINUTE_MS
    found, errors = find_hanging(admin, places, longer_than_ms, wall_clock_ms(), broker=arguments.broker_id)
    if arguments.json:
        print_json(found)
    else:
        _print(HANGING, [_hanging_row(each) for each in found])
        for each in found:
            print(f"muster: end it with: {abort_command(each)}", file=sys.stderr)
    for sentence in _not_searched(errors):
        print(f"muster: {sentence}", file=sys.stderr)
    return 1 if errors else 0


def _not_searched(errors: Mapping[TopicPartition, KafkaError]) -> list[str]:
    """A sentence for each reason: a broker that is down may lead thousands of partitions."""
    by_reason: dict[str, list[TopicPartition]] = {}
    for place, error in errors.items():
        by_reason.setdefault(str(error), []).append(place)
    return [
        f"{places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''} could not be searched: {reason}"
        for reason, places in by_reason.items()
    ]


def _places(admin: Admin, arguments: argparse.Namespace) -> list[TopicPartition]:
    if arguments.partition is not None:
        return [TopicPartition(arguments.topic, arguments.partition)]
    names = [arguments.topic]
    if arguments.topic is None:
        names = [topic.name for topic in admin.list_topics(include_internal=True)]
    return [
        TopicPartition(topic.name, part.partition)
        for topic in admin.describe_topics(names).values()
        for part in topic.partitions
        if arguments.broker_id is None or arguments.broker_id in part.replicas
    ]


def _hanging_row(each: HangingTransaction) -> tuple[object, ...]:
    return (
        each.topic,
        each.partition,
        each.producer_id,
        each.producer_epoch,
        each.coordinator_epoch,
        each.start_offset,
        each.last_timestamp,
        each.duration_ms // _MINUTE_MS,
    )


def abort_command(each: HangingTransaction) -> str:
    """The command that ends a transaction that hangs."""
    where = f"--topic {each.topic} --partition {each.partition}"
    return f"muster transactions abort {where} --start-offset {each.start_offset}"


# --- ending a transaction --------------------------------------------------------------------------------------------


def _abort(admin: Admin, arguments: argparse.Namespace) -> int:
    place = TopicPartition(arguments.topic, arguments.partition)
    if arguments.start_offset is None:
        spec = AbortTransactionSpec(
            place, arguments.producer_id, arguments.producer_epoch, max(arguments.coordinator_epoch, 0)
        )
    else:
        spec = _beginning_at(admin, place, arguments.start_offset)
    of_producer = f"producer {spec.producer_id}, epoch {spec.producer_epoch}"
    confirm(arguments, f"Abort the transaction of {of_producer} in {place}? (Readers will not see its records.)")
    try:
        admin.abort_transaction(spec)
    except AdminError as error:
        raise MusterError(f"could not abort the transaction of {of_producer} in {place}: {error.first}") from None
    if arguments.json:
        print_json(spec._asdict() | {"partition": place})
    else:
        print(f"Aborted the transaction of {of_producer} in {place}.")
    return 0


def _beginning_at(admin: Admin, place: TopicPartition, offset: int) -> AbortTransactionSpec:
    for each in admin.describe_producers([place])[place]:
        if each.transaction_start_offset == offset:
            return AbortTransactionSpec(place, each.producer_id, each.producer_epoch, each.coordinator_epoch or 0)
    raise MusterError(
        f"no open transaction begins at offset {offset} of {place}; describe-producers shows where they begin"
    )


def _terminate(admin: Admin, arguments: argparse.Namespace) -> int:
    names = ", ".join(arguments.transactional_id)
    admin.describe_transactions(arguments.transactional_id)  # fencing would create an unknown id
    confirm(arguments, f"Fence the producers of {names}? (Their transactions are aborted; they must start again.)")
    found = admin.fence_producers(arguments.transactional_id, raise_errors=False)
    fenced = {name: each for name, each in found.items() if not isinstance(each, KafkaError)}
    if arguments.json:
        print_json({name: each._asdict() for name, each in fenced.items()})
    else:
        for name in fenced:
            print(f"Fenced the producer of {name}; it has no open transaction.")
    for each in found.values():
        if isinstance(each, KafkaError):
            print(f"muster: {each}", file=sys.stderr)
    return 0 if len(fenced) == len(found) else 1


# ---------------------------------------------------------------------------------------------------------------------


def _print(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table as Kafka's `ToolsUtils.prettyPrintTable` prints it: padded, with a tab after each column."""
    lines = [heads, *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("".join(f"{text:<{width}}\t" for text, width in zip(line, widths, strict=True)))


def _or_none(number: int | None) -> str:
    return "None" if number is None else str(number)


_ACTIONS: dict[str, Callable[[Admin, argparse.Namespace], int]] = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _producers,
    "abort": _abort,
    "find-hanging": _hanging,
    "force-terminate": _terminate,
}
