"""`muster groups reset-offsets` and `delete-offsets`: change or delete the committed offsets of groups.

`reset-offsets` has the forms, scopes and CSV of `kafka-consumer-groups --reset-offsets`. It shows the plan,
and carries it out with `--execute`. Everything is checked first: if one group has members, or
one partition does not exist, no offset is changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from muster.cli.administer import reset_plan
from muster.cli.administer.confirmation import add_yes, confirm, some
from muster.cli.administer.reset_plan import NewOffset, PartitionOffsets, ResetForm
from muster.cli.common import FILES, completed, partitions_of, print_json, report_errors
from muster.cli.times import datetime_ms, duration_ms
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, ErrorCode, KafkaError, MusterError
from muster.model import CONSUMER_PROTOCOL_TYPE, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

_INACTIVE = ("Empty", "Dead")
Offsets = dict[TopicPartition, int]


def add_reset(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster groups reset-offsets`."""
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--all-groups", action="store_true", help="all groups")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--to-earliest", action="store_true", help="the beginning of each partition's log")
    form.add_argument("--to-latest", action="store_true", help="the end of each partition's log")
    form.add_argument(
        "--to-current", action="store_true", help="the committed offset, or the end of the log if there is none"
    )
    form.add_argument("--to-offset", type=int, metavar="N", help="this offset, or the nearest one in the log")
    form.add_argument("--shift-by", type=int, metavar="N", help="shift by N offsets; negative: backwards")
    form.add_argument(
        "--to-datetime",
        metavar="TIME",
        help="the first record at or after this time, such as 2013-06-13T17:00:00.000 (UTC)",
    )
    form.add_argument(
        "--by-duration", "--by-period", metavar="DURATION", help="the first record of the last PT1H30M (or 1h30m)"
    )
    completed(form.add_argument("--from-file", metavar="FILE", help="the offsets of an exported plan (CSV)"), FILES)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--topic", action="append", metavar="TOPIC[:0,1]", help="a topic, or some of its partitions (repeatable)"
    )
    scope.add_argument("--all-topics", action="store_true", help="all partitions with a committed offset")
    run = parser.add_mutually_exclusive_group()
    run.add_argument("--dry-run", action="store_true", help="only show the plan (the default)")
    run.add_argument("--execute", action="store_true", help="carry out the plan")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--export", action="store_true", help="print CSV, for --from-file")
    shape.add_argument("--json", action="store_true", help="print JSON")
    add_yes(parser)


def check_reset(arguments: argparse.Namespace) -> None:
    """Check the arguments before connecting."""
    if bool(arguments.groups) == arguments.all_groups:
        raise ConfigError("groups reset-offsets: name the groups, or use --all-groups")
    form = _form(arguments)
    scoped = arguments.topic is not None or arguments.all_topics
    if form is not ResetForm.FROM_FILE and not scoped:
        raise ConfigError("groups reset-offsets: name the partitions with --topic TOPIC[:0,1], or use --all-topics")
    reset_plan.named_partitions(arguments.topic or [])
    _timestamp(arguments, form)


def reset(admin: Admin, arguments: argparse.Namespace) -> int:
    """Show the plan; carry it out with --execute."""
    form = _form(arguments)
    groups = arguments.groups or [group.group_id for group in admin.list_consumer_groups() if _is_consumers(group)]
    groups = list(dict.fromkeys(groups))
    read = _read_plan(arguments.from_file, groups) if form is ResetForm.FROM_FILE else None
    if read is not None and (arguments.topic is not None or arguments.all_topics):  # Kafka's tool accepts both, too
        print("muster: --from-file names the partitions; --topic and --all-topics are ignored", file=sys.stderr)
    _check_inactive(admin, groups)
    plan = _plan(admin, arguments, form, groups, read)
    for line in plan:
        if line.remark is not None:
            print(f"muster: {line.remark}", file=sys.stderr)
    code = 0
    if arguments.execute and plan:
        table = "\n".join(reset_plan.plan_table(plan))
        confirm(arguments, f"{table}\n\nSet the offsets of {some(sorted({line.group for line in plan}))} to these?")
        code = _carry_out(admin, plan)
    _show(arguments, plan)
    if not plan:
        print("muster: there is nothing to reset", file=sys.stderr)
    elif not arguments.execute:
        print("muster: nothing was changed; --execute carries out the plan", file=sys.stderr)
    return code


def _show(arguments: argparse.Namespace, plan: list[NewOffset]) -> None:
    if arguments.json:
        print_json(plan)
    elif arguments.export:
        single = len(arguments.groups) == 1
        print(reset_plan.as_csv(plan, with_group=not single), end="")
    elif plan:
        print("\n".join(reset_plan.plan_table(plan)))


def _form(arguments: argparse.Namespace) -> ResetForm:
    options = {form: getattr(arguments, form.value.replace("-", "_")) for form in ResetForm}
    return next(form for form, given in options.items() if given is not None and given is not False)


def _timestamp(arguments: argparse.Namespace, form: ResetForm) -> int | None:
    match form:
        case ResetForm.TO_DATETIME:
            return datetime_ms(arguments.to_datetime, "--to-datetime")
        case ResetForm.BY_DURATION:
            return wall_clock_ms() - duration_ms(arguments.by_duration, "--by-duration")
        case _:
            return None


def _read_plan(path: str, groups: list[str]) -> dict[str, Offsets]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise ConfigError(f"cannot read {path}: {why}") from None
    plan = reset_plan.from_csv(text, groups, path)
    for group in groups:
        if group not in plan:
            raise MusterError(f"{path} has no plan for group {group}. Nothing was changed.")
    return plan


def _is_consumers(group: object) -> bool:
    return getattr(group, "protocol_type", CONSUMER_PROTOCOL_TYPE) in (CONSUMER_PROTOCOL_TYPE, "")


def _check_inactive(admin: Admin, groups: list[str]) -> None:
    """A group that does not exist counts as inactive: it may start with these offsets."""
    for group, found in admin.describe_consumer_groups(groups, raise_errors=False).items():
        if isinstance(found, KafkaError):
            if found.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise MusterError(f"group {group}: {found}. Nothing was changed.")
        elif not _is_consumers(found):
            raise MusterError(
                f"group {group} is not a consumer group: its type is {found.protocol_type}. Nothing was changed."
            )
        elif found.state not in _INACTIVE:
            raise MusterError(
                f"group {group} is {found.state}: its offsets can be reset only after all members have left."
                " Nothing was changed."
            )


# --- the plan --------------------------------------------------------------------------------------------------------


def _plan(
    admin: Admin, arguments: argparse.Namespace, form: ResetForm, groups: list[str], read: dict[str, Offsets] | None
) -> list[NewOffset]:
    """The plan for all groups. One request covers all of them: there may be hundreds."""
    committed = _committed(admin, groups)
    if read is not None:
        places = {group: sorted(read.get(group, {})) for group in groups}
    elif arguments.all_topics:
        places = {group: sorted(committed[group]) for group in groups}
    else:
        places = dict.fromkeys(
            groups, partitions_of(admin, reset_plan.named_partitions(arguments.topic), ". Nothing was changed.")
        )
    wanted = sorted({place for some in places.values() for place in some})
    facts = _partition_offsets(admin, wanted, _timestamp(arguments, form))
    plan: list[NewOffset] = []
    for group in groups:
        for place in places[group]:
            number = read[group][place] if read is not None else arguments.to_offset or arguments.shift_by or 0
            now = committed[group].get(place)
            try:
                offset, remark = reset_plan.new_offset(form, number, place, replace(facts[place], committed=now))
            except MusterError as error:
                raise MusterError(f"group {group}: {error}. Nothing was changed.") from None
            plan.append(NewOffset(group, *place, now, offset, remark))
    return plan


def _committed(admin: Admin, groups: list[str]) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for group, answers in admin.list_offsets_of_consumer_groups(groups, raise_errors=False).items():
        if isinstance(answers, KafkaError):
            raise MusterError(f"group {group}: {answers}. Nothing was changed.")
        found[group] = {}
        for place, committed in answers.items():
            if isinstance(committed, KafkaError):
                raise MusterError(f"group {group}: {committed}. Nothing was changed.")
            found[group][place] = committed.offset
    return found


def _partition_offsets(
    admin: Admin, places: list[TopicPartition], timestamp: int | None
) -> dict[TopicPartition, PartitionOffsets]:
    _check_led(admin, places)
    begins = _listed(admin, places, EARLIEST_TIMESTAMP)
    ends = _listed(admin, places, LATEST_TIMESTAMP)
    times = {} if timestamp is None else _listed(admin, places, max(0, timestamp))
    return {
        place: PartitionOffsets(begins.get(place, 0), ends.get(place, 0), at_time=times.get(place)) for place in places
    }


def _check_led(admin: Admin, places: Iterable[TopicPartition]) -> None:
    """Fail immediately if a partition does not exist or has no leader: listing offsets would wait for a leader until
    its timeout."""
    wanted = list(places)
    topics = admin.describe_topics({place.topic for place in wanted}, raise_errors=False)
    for place in wanted:
        topic = topics[place.topic]
        if isinstance(topic, KafkaError):
            raise MusterError(f"topic {place.topic}: {topic.code.name}. Nothing was changed.")
        leader = {part.partition: part.leader_id for part in topic.partitions}.get(place.partition)
        if leader is None:
            count = len(topic.partitions)
            raise MusterError(
                f"partition {place} does not exist: the topic has {count} partitions. Nothing was changed."
            )
        if leader < 0:
            raise MusterError(f"partition {place} has no leader. Nothing was changed.")


def _listed(admin: Admin, places: list[TopicPartition], timestamp: int) -> Offsets:
    found: Offsets = {}
    for place, listed in admin.list_offsets(dict.fromkeys(places, timestamp), raise_errors=False).items():
        if isinstance(listed, KafkaError):
            raise MusterError(f"{listed}. Nothing was changed.")
        if listed is not None:
            found[place] = listed.offset
    return found


def _carry_out(admin: Admin, plan: list[NewOffset]) -> int:
    code = 0
    for group, lines in reset_plan.by_group(plan).items():
        results = admin.alter_consumer_group_offsets(
            group, {line.place: line.new_offset for line in lines}, raise_errors=False
        )
        code |= report_errors(results, f"group {group}: offset of")
    return code


# --- deleting --------------------------------------------------------------------------------------------------------


def add_delete(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster groups delete-offsets`."""
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument(
        "--topic",
        action="append",
        required=True,
        metavar="TOPIC[:0,1]",
        help="a topic, or some of its partitions (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_yes(parser)


def delete(admin: Admin, arguments: argparse.Namespace) -> int:
    """Delete a group's offsets of topics that none of its members subscribes to."""
    group, named = arguments.group, reset_plan.named_partitions(arguments.topic)
    described = admin.describe_consumer_groups([group], raise_errors=False)[group]
    if not isinstance(described, GroupDescription):
        raise MusterError(f"group {group}: {described}")
    committed = _committed(admin, [group])[group]
    places: list[TopicPartition] = []
    for topic, numbers in named.items():
        known = [place for place in sorted(committed) if place.topic == topic]
        wanted = known if numbers is None else [TopicPartition(topic, number) for number in numbers]
        missing = [place for place in wanted if place not in committed]
        if missing or not wanted:
            what = missing[0] if missing else f"topic {topic}"
            raise MusterError(f"group {group} has no committed offset for {what}. Nothing was deleted.")
        places += wanted
    confirm(arguments, f"Delete the committed offsets of group {group} for {some([str(place) for place in places])}?")
    results = admin.delete_consumer_group_offsets(group, places, raise_errors=False)
    if arguments.json:
        print_json({str(place): result for place, result in results.items()})
    else:
        for place, result in results.items():
            if result is None:
                print(f"Deleted the offset of {place}.")
    return report_errors(results, f"group {group}: offset of")
