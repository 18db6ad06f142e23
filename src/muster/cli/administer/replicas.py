"""Leaders and brokers of partitions: `muster topics elect-leaders`, `reassign` and `reassignments`, as
`kafka-leader-election` and `kafka-reassign-partitions` do it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from muster.cli.administer.asking import add_yes, confirm, some
from muster.cli.administer.reset_plan import named_partitions
from muster.cli.common import add_connection, add_timeout, partitions_of, print_json, report_errors
from muster.cli.numbers import natural_number
from muster.client.admin.admin import Admin
from muster.client.core.admin.partitions import ElectionType
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.model import TopicPartition

if TYPE_CHECKING:
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]

_SOME = "a topic, or some of its partitions"


def add_actions(actions: Actions) -> None:
    """The three actions."""
    elect = actions.add_parser("elect-leaders", help="have partitions led by their preferred, or by any replica")
    elect.add_argument("topics", nargs="*", metavar="TOPIC[:0,1]", help=f"{_SOME}; default: all that need it")
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="elect a replica that is not in sync where no other is left: what it has not read is lost",
    )
    reassign = actions.add_parser("reassign", help="move partitions to other brokers")
    reassign.add_argument("topics", nargs="+", metavar="TOPIC[:0,1]", help=_SOME)
    what = reassign.add_mutually_exclusive_group(required=True)
    what.add_argument("--replicas", metavar="ID,ID", help="the brokers of each, the preferred leader first")
    what.add_argument("--cancel", action="store_true", help="leave partitions where they were before")
    listing = actions.add_parser("reassignments", help="show which partitions are being moved")
    listing.add_argument("topics", nargs="*", metavar="TOPIC[:0,1]", help=f"{_SOME}; default: all")
    for action in (elect, reassign):
        add_yes(action)
    for action in (elect, reassign, listing):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection(action)
        add_timeout(action)


def elect_leaders(admin: Admin, arguments: argparse.Namespace) -> int:
    """Elect, and say of which partitions; those that are led as they should be are no error."""
    places = _partitions(admin, arguments) if arguments.topics else None
    if arguments.unclean:
        which = "all partitions without a leader" if places is None else some([str(place) for place in places])
        confirm(arguments, f"Elect leaders that are not in sync for {which}? (Records that they lack are lost.)")
    kind = ElectionType.UNCLEAN if arguments.unclean else ElectionType.PREFERRED
    results = admin.elect_leaders(kind, places, raise_errors=False)
    if arguments.json:
        print_json({str(place): found for place, found in sorted(results.items())})
    needless = [place for place, found in results.items() if _is(found, ErrorCode.ELECTION_NOT_NEEDED)]
    if not arguments.json:
        done = [place for place, found in results.items() if found is None]
        for sentence, found in (("Elected leaders of {}.", done), ("Led as they should be: {}.", needless)):
            if found:
                print(sentence.format(", ".join(map(str, sorted(found)))))
        if places is None and not results:
            print("All partitions are led as they should be.")
    return report_errors({place: results[place] for place in sorted(set(results) - set(needless))}, "partition")


def reassign(admin: Admin, arguments: argparse.Namespace) -> int:
    """Begin to move partitions, or cancel that; each may be refused by itself."""
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
        sentence = "Cancelled the reassignment of {}." if brokers is None else "Began the reassignment of {}."
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
    given = [natural_number(part.strip()) for part in text.split(",")]
    ids = [number for number in given if number is not None]
    if len(ids) < len(given):
        raise ConfigError(f"--replicas {text!r}: write broker ids as 1,2,3")
    return ids


def _partitions(admin: Admin, arguments: argparse.Namespace) -> list[TopicPartition]:
    return partitions_of(admin, named_partitions(arguments.topics, f"topics {arguments.action}:"))
