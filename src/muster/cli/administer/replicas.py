"""Leader election and reassignment: `muster topics elect-leaders`, `reassign` and `reassignments`, as
`kafka-leader-election` and `kafka-reassign-partitions` do them.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.administer.reset_plan import named_partitions
from muster.cli.common import add_connection, add_timeout, natural_number, partitions_of, print_json, report_errors
from muster.client.admin.admin import Admin
from muster.client.core.admin.partitions import ElectionType
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import TopicPartition

if TYPE_CHECKING:
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]

_SOME = "a topic, or some of its partitions"


def add_actions(actions: Actions) -> None:
    """The three actions."""
    elect = actions.add_parser("elect-leaders", help="trigger a preferred or unclean leader election")
    elect.add_argument(
        "topics", nargs="*", metavar="TOPIC[:0,1]", help=f"{_SOME}; default: all partitions that need one"
    )
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="elect an out-of-sync replica if no in-sync one is left; the records it lacks are lost",
    )
    reassign = actions.add_parser("reassign", help="move partitions to other brokers")
    reassign.add_argument("topics", nargs="+", metavar="TOPIC[:0,1]", help=_SOME)
    what = reassign.add_mutually_exclusive_group(required=True)
    what.add_argument("--replicas", metavar="ID,ID", help="the brokers of each partition, the preferred leader first")
    what.add_argument("--cancel", action="store_true", help="cancel the reassignment")
    listing = actions.add_parser("reassignments", help="show ongoing reassignments")
    listing.add_argument("topics", nargs="*", metavar="TOPIC[:0,1]", help=f"{_SOME}; default: all")
    for action in (elect, reassign):
        add_yes(action)
    for action in (elect, reassign, listing):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection(action)
        add_timeout(action)


def elect_leaders(admin: Admin, arguments: argparse.Namespace) -> int:
    """Elect leaders and print the result; a partition that needs no election is not an error."""
    places = _partitions(admin, arguments) if arguments.topics else None
    if arguments.unclean:
        which = "all partitions without a leader" if places is None else some([str(place) for place in places])
        confirm(arguments, f"Elect out-of-sync leaders for {which}? (Records that they lack are lost.)")
    kind = ElectionType.UNCLEAN if arguments.unclean else ElectionType.PREFERRED
    results = admin.elect_leaders(kind, places, raise_errors=False)
    if arguments.json:
        print_json({str(place): found for place, found in sorted(results.items())})
    needless = [place for place, found in results.items() if _is(found, ErrorCode.ELECTION_NOT_NEEDED)]
    if not arguments.json:
        done = [place for place, found in results.items() if found is None]
        for sentence, found in (("Elected leaders of {}.", done), ("No election needed: {}.", needless)):
            if found:
                print(sentence.format(", ".join(map(str, sorted(found)))))
        if places is None and not results:
            print("No partition needs an election.")
    return report_errors({place: results[place] for place in sorted(set(results) - set(needless))}, "partition")


def reassign(admin: Admin, arguments: argparse.Namespace) -> int:
    """Start moving partitions, or cancel it; brokers may refuse each partition separately."""
    brokers = None if arguments.cancel else _brokers(arguments.replicas)
    places = _partitions(admin, arguments)
    if brokers is not None:
        where = ", ".join(map(str, brokers))
        confirm(
            arguments, f"Move {some([str(place) for place in places])} to broker {where}? (All records are copied.)"
        )
    results = admin.alter_partition_reassignments(dict.fromkeys(places, brokers), raise_errors=False)
    if arguments.json:
        print_json({str(place): found for place, found in sorted(results.items())})
    else:
        sentence = "Cancelled the reassignment of {}." if brokers is None else "Started the reassignment of {}."
        for place in sorted(place for place, found in results.items() if found is None):
            print(sentence.format(place))
    return report_errors(dict(sorted(results.items())), "partition")


def reassignments(admin: Admin, arguments: argparse.Namespace) -> int:
    """Show what is in progress, as `kafka-reassign-partitions --list` does."""
    found = admin.list_partition_reassignments(_partitions(admin, arguments) if arguments.topics else None)
    if arguments.json:
        print_json({str(place): one for place, one in sorted(found.items())})
        return 0
    if not found:
        print("No partition reassignments found.")
        return 0
    print("Current partition reassignments:")
    for place, one in sorted(found.items()):
        parts = [("replicas", one.replicas), ("adding", one.adding_replicas), ("removing", one.removing_replicas)]
        print(f"{place}:", " ".join(f"{name}: {','.join(map(str, ids))}." for name, ids in parts if ids))
    return 0


def _is(found: KafkaError | None, code: ErrorCode) -> bool:
    return found is not None and found.code is code


def _brokers(text: str) -> list[int]:
    numbers = [natural_number(part.strip()) for part in text.split(",")]
    ids = [number for number in numbers if number is not None]
    if len(ids) < len(numbers):
        raise ConfigError(f"--replicas {text!r}: write broker IDs as 1,2,3")
    return ids


def _partitions(admin: Admin, arguments: argparse.Namespace) -> list[TopicPartition]:
    return partitions_of(admin, named_partitions(arguments.topics, f"topics {arguments.action}:"))
