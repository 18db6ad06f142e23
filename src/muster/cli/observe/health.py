"""`muster health`: whether a cluster is healthy, in one line and by the exit code, for people, scripts and probes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from muster.cli.administer.confirmation import some
from muster.cli.common import add_connection, add_timeout, open_admin, print_json
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import TopicDescription
from muster.errors import ConfigError, ErrorCode, KafkaError, MusterError
from muster.model import GROUP_METADATA_TOPIC, TopicPartition

_ASKED_GROUP = "muster-health"
_MISSING = "coordinator not checked: there are no groups yet"


@dataclass(slots=True)
class Health:
    """What was found. `problems` describes each problem; if there are none, the cluster is healthy."""

    brokers: list[int] = field(default_factory=list)
    away: list[int] = field(default_factory=list)
    """Brokers that do not answer, or that have replicas but are not in the cluster now."""
    topics: int = 0
    partitions: int = 0
    leaderless: list[str] = field(default_factory=list)
    under_replicated: list[str] = field(default_factory=list)
    coordinator: str = _MISSING
    problems: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def line(self) -> str:
        """The result in one line."""
        if self.problems:
            return f"not healthy: {'; '.join(self.problems)}"
        counts = [(len(self.brokers), "broker"), (self.topics, "topic"), (self.partitions, "partition")]
        counted = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts)
        return f"healthy: {counted}, {self.coordinator}"


def judge(
    reached: Mapping[int, KafkaError | None], topics: Iterable[TopicDescription], coordinator: KafkaError | str | None
) -> Health:
    """The rules. `coordinator` is the error, None if one is available, or text if it was not checked."""
    found = Health(sorted(reached))
    away = {broker for broker, error in reached.items() if error is not None}
    for topic in topics:
        found.topics += 1
        found.partitions += len(topic.partitions)
        for part in topic.partitions:
            place = str(TopicPartition(topic.name, part.partition))
            if part.leader_id < 0:
                found.leaderless.append(place)
            elif len(part.isr) < len(part.replicas):
                found.under_replicated.append(place)
            away |= set(part.replicas) - set(reached)
    found.away = sorted(away)
    if found.away:
        names = some([str(broker) for broker in found.away])
        found.problems.append(f"broker {names} is down" if len(found.away) == 1 else f"brokers {names} are down")
    for places, what in ((found.leaderless, "without a leader"), (found.under_replicated, "under-replicated")):
        if places:
            found.problems.append(f"{len(places)} partition{'s' if len(places) > 1 else ''} {what}: {some(places)}")
    if coordinator is None:
        found.coordinator = "coordinator available"
    elif isinstance(coordinator, KafkaError):
        found.coordinator = f"no coordinator: {coordinator.code.name}"
        found.problems.append(found.coordinator)
    else:
        found.coordinator = coordinator
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster health`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection(parser)
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the result; returns 0 if the cluster is healthy, otherwise 1."""
    try:
        with open_admin(arguments) as admin:
            found = _examine(admin)
    except ConfigError:
        raise  # a mistake in the command, which says nothing about the cluster
    except MusterError as error:
        found = Health(coordinator="coordinator not checked", problems=[str(error).splitlines()[0]])
    if arguments.json:
        print_json({"healthy": found.healthy} | asdict(found))
    else:
        print(found.line())
    return 0 if found.healthy else 1


def _examine(admin: Admin) -> Health:
    reached = admin.reach_brokers()
    names = [topic.name for topic in admin.list_topics(include_internal=True)]
    topics = [
        topic
        for topic in admin.describe_topics(names, raise_errors=False).values()
        if isinstance(topic, TopicDescription)
    ]
    coordinator: KafkaError | str | None = _MISSING
    if GROUP_METADATA_TOPIC in names or admin.list_consumer_groups():
        answer = admin.describe_consumer_groups([_ASKED_GROUP], raise_errors=False)[_ASKED_GROUP]
        refused = isinstance(answer, KafkaError) and answer.code is not ErrorCode.GROUP_ID_NOT_FOUND
        coordinator = answer if refused and isinstance(answer, KafkaError) else None
    return judge(reached, topics, coordinator)
