"""Groups in the columns of `kafka-consumer-groups.sh` (Kafka 4.2), space for space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.client.core.admin.admin import GroupDescription, GroupListing, MemberDescription
from muster.history.lag import lag
from muster.model import OffsetAndMetadata, TopicPartition

MISSING = "-"


@dataclass(slots=True)
class OffsetRow:
    """One partition of a group; None where a value is unknown or missing."""

    group: str
    topic: str
    partition: int
    leader_epoch: int | None
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None


def offset_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
) -> list[OffsetRow]:
    """The members' partitions, members with the most first, then committed partitions without an owner."""
    rows: list[OffsetRow] = []
    members = sorted(group.members, key=lambda member: (-len(member.assignment), member.member_id))
    for member in members:
        rows += [_offset_row(group.group_id, place, committed, ends, member) for place in sorted(member.assignment)]
    owned = {place for member in members for place in member.assignment}
    rows += [_offset_row(group.group_id, place, committed, ends, None) for place in sorted(set(committed) - owned)]
    return rows


def _offset_row(
    group_id: str,
    place: TopicPartition,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
    member: MemberDescription | None,
) -> OffsetRow:
    position, end = committed.get(place), ends.get(place)
    return OffsetRow(
        group_id,
        place.topic,
        place.partition,
        position.leader_epoch if position and position.leader_epoch >= 0 else None,
        position.offset if position else None,
        end,
        lag(position.offset if position else None, end),
        member.member_id if member else None,
        member.host if member else None,
        member.client_id if member else None,
    )


def offsets_table(rows: list[OffsetRow], *, verbose: bool = False) -> list[str]:
    """`--describe`, with LEADER-EPOCH if verbose."""
    heads = ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    heads += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
    lines = [heads] + [
        [
            row.group,
            row.topic,
            str(row.partition),
            _text(row.leader_epoch),
            _text(row.current_offset),
            _text(row.log_end_offset),
            _text(row.lag),
            _text(row.consumer_id),
            _text(row.host),
            _text(row.client_id),
        ]
        for row in rows
    ]
    wide = {0, 1, 7, 8}
    widths = [_widest(lines, index) if index in wide else 15 for index in range(len(heads))]
    widths[2], widths[9] = 10, 0
    columns = [index for index in range(len(heads)) if verbose or index != 3]
    return [" ".join(f"{line[index]:<{widths[index]}}" for index in columns) for line in lines]


def members_table(group: GroupDescription, *, verbose: bool = False) -> list[str]:
    """`--describe --members`, with assignments if verbose. Only groups of KIP-848 have epochs."""
    members = sorted(group.members, key=lambda member: (-len(member.assignment), member.member_id))
    static = any(member.group_instance_id for member in members)
    heads = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    heads += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    lines = [heads] + [
        [
            group.group_id,
            member.member_id,
            member.group_instance_id or "",
            member.host,
            member.client_id,
            str(len(member.assignment)),
            _text(member.epoch),
            assignment_text(member.assignment),
            _text(group.target_epoch if member.target is not None else None),
            MISSING if member.target is None else assignment_text(member.target),
        ]
        for member in members
    ]
    least = [15, 15, 17, 15, 15, 15, 15, 20, 15, 20]
    widths = [_widest(lines, index, least[index]) for index in range(len(heads))]
    columns = [index for index in range(len(heads) if verbose else 6) if static or index != 2]
    end = "" if verbose else " "
    return [" ".join(f"{line[index]:<{widths[index]}}" for index in columns) + end for line in lines]


def assignment_text(assignment: Iterable[TopicPartition]) -> str:
    """Partitions as Kafka's tool writes them: `a:0,1;b:0`."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        topics.setdefault(topic, []).append(partition)
    return ";".join(f"{topic}:{','.join(map(str, parts))}" for topic, parts in topics.items()) or MISSING


def state_table(group: GroupDescription, *, verbose: bool = False) -> list[str]:
    """`--describe --state`."""
    node = group.coordinator
    coordinator = f"{node.host}:{node.port}  ({node.node_id})"
    heads = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
    row = [group.group_id, coordinator, group.assignor or MISSING, spoken_state(group.state)]
    row += [_text(group.epoch), _text(group.target_epoch)]
    widths = [max(15, len(group.group_id)), max(25, len(coordinator)), 20, 20, 15, 25]
    columns = range(6) if verbose else range(4)
    return [
        " ".join([*(f"{line[index]:<{widths[index]}}" for index in columns), last])
        for line, last in ((heads, "#MEMBERS"), (row, str(len(group.members))))
    ]


def listing_table(groups: list[GroupListing], *, with_type: bool, with_state: bool) -> list[str]:
    """`--list` with `--type` or `--state`."""
    width = max([15, *(len(group.group_id) for group in groups)]) + 10
    lines = [("GROUP", "TYPE", "STATE")] + [
        (group.group_id, group.group_type.capitalize() or "Unknown", spoken_state(group.state)) for group in groups
    ]
    chosen = [1] * with_type + [2] * with_state
    return [f"{line[0]:<{width}}" + "".join(f" {line[index]:<20}" for index in chosen) for line in lines]


def note(group: GroupDescription) -> str | None:
    """What Kafka's tool prints about a group that is not stable."""
    if group.state == "Empty":
        return f"\nConsumer group '{group.group_id}' has no active members."
    if group.state != "Stable":
        return f"\nWarning: Consumer group '{group.group_id}' is rebalancing."
    return None


def spoken_state(state: str) -> str:
    """A state's name, which old brokers do not send."""
    return state or "Unknown"


def _text(value: object) -> str:
    return MISSING if value is None else str(value)


def _widest(lines: list[list[str]], index: int, least: int = 15) -> int:
    return max(least, *(len(line[index]) for line in lines[1:]), 0)
