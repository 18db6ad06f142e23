"""Writes the events of groups to the internal topic `__group_events`: what happened to a group, when and why.

A record's key is the group's id; its value is a JSON object on one line: `{"v":1,"event":"RebalanceStarted","at_ms":…}`
and the event's fields, named as in the output of `--events`. Apache Kafka has no such topic: its coordinator only logs
such events.

The rules do not depend on events, and nothing waits for them. They are collected while requests are handled, and
written together a moment later, after the answers have gone out: a thousand members that join cost a few appends.
Killing the process can lose the events collected at that moment. If they cannot be written (the disk is full, this
broker leads no partition of the topic), only the events are lost; this is logged once until it works again.

The topic is created by the first event, with one partition. In a cluster each broker writes to a partition that it
leads, and adds one if there is none (`zookeeper/cluster/own_partition.py`): a group's events are in the partitions of
the brokers that coordinated it, in chronological order.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple, Protocol

from muster.broker.config import BrokerConfig
from muster.broker.topics.catalogue import EVENTS_TOPIC_SETTINGS, Topic, TopicCatalogue
from muster.broker.topics.changes import TopicChanges
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions
from muster.clock import wall_clock_ms
from muster.coordinator.groups.effects import GroupEvent
from muster.errors import MusterError
from muster.log import PartitionLog
from muster.model import GROUP_EVENTS_TOPIC
from muster.protocol.records.record_batch import BatchBuilder

log = logging.getLogger("muster.broker")

DELAY_S = 0.01
"""How long events are collected; answers go out before them."""

RETRY_S = 1.0
"""How long to wait before looking for a partition again."""

AT_ONCE = 500
"""The maximum number of events in one append, which takes a few milliseconds; more are written in the next turn of the
loop."""

MOST_KEPT = 10_000
"""How many events may wait for a partition; beyond that the oldest are lost."""

LONGEST_TEXT = 1_000
"""The longest text in a record, in characters: ids and reasons come from clients, and may be long."""

SEGMENT_BYTES = 16 * 1024 * 1024
DAY_MS = 86_400_000


class EventPartitions(Protocol):
    """A cluster, which creates the topic for all brokers (zookeeper_cluster.py)."""

    def own_partition(self, topic: str, exists: bool, settings: Mapping[str, str]) -> None:
        """Give this broker a new partition of a topic to lead, soon; creates the topic if it does not exist."""


class EventPartition(NamedTuple):
    """A partition that this broker leads."""

    partition: int
    log: PartitionLog


def settings_of(config: BrokerConfig) -> dict[str, str]:
    """The settings of the new topic. Retention removes whole segments, so their time is limited too."""
    retention_ms = config.integer("group.events.retention.ms")
    segment_ms = DAY_MS if retention_ms < 0 else min(max(retention_ms // 7, 1), DAY_MS)
    return {
        **EVENTS_TOPIC_SETTINGS,
        "retention.ms": str(retention_ms),
        "segment.bytes": str(SEGMENT_BYTES),
        "segment.ms": str(segment_ms),
    }


class EventTopic:
    """Writes events to the topic. `on_written` is called after each append; `cluster_admin` is the cluster, None for a
    standalone broker."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicCatalogue,
        changes: TopicChanges,
        partitions: Partitions,
        fetches: ParkedFetches,
        on_written: Callable[[], None],
        cluster_admin: EventPartitions | None,
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._partitions = partitions
        self._fetches = fetches
        self._on_written = on_written
        self._elsewhere = cluster_admin
        self._settings = settings_of(config)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[GroupEvent] = []
        self._times: list[int] = []
        """The events' times in milliseconds. (A tuple for each event would take more memory.)"""
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = ""
        self._stopped = False

    def __call__(self, event: GroupEvent) -> None:
        """Take an event."""
        at_ms = wall_clock_ms()
        self._times.append(self._times[-1] if self._times and self._times[-1] == at_ms else at_ms)
        self._waiting.append(event)
        if self._timer is None and not self._stopped:
            self._timer = self._loop.call_later(DELAY_S, self._write)

    def start(self) -> None:
        """Apply the settings of this start to an existing topic; in a cluster the topic keeps those that it was created
        with."""
        topic = self._topics.get(GROUP_EVENTS_TOPIC)
        if self._elsewhere is None and topic is not None and topic.internal and topic.settings != self._settings:
            try:
                self._topics.change_all([(topic, topic.partitions, self._settings)])
            except OSError as error:
                log.warning("%s keeps its previous settings: %s", GROUP_EVENTS_TOPIC, error)
            self._partitions.configure(topic)

    def stop(self) -> None:
        """Write the events collected so far."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._write()

    def ensure(self) -> None:
        """Create the topic: a client asks for it before the first event."""
        self._place()

    # ------------------------------------------------------------------------------------- writing

    def _write(self) -> None:
        """Write some events, and the rest in the next turn."""
        self._timer = None
        place = self._place()
        if place is None:
            self._keep()
            return
        batch = BatchBuilder()
        for at_ms, event in zip(self._times[:AT_ONCE], self._waiting[:AT_ONCE], strict=True):
            batch.append(at_ms, event.group_id.encode("utf-8", "replace"), encoded(at_ms, event))
        self._drop(AT_ONCE)
        data = batch.build()
        try:
            appended = place.log.append(data, now=wall_clock_ms(), origin="coordinator")
        except (OSError, MusterError) as error:
            self._fails(str(error))
        else:
            self._works()
            self._fetches.appended(GROUP_EVENTS_TOPIC, place.partition, len(data), appended.last_offset + 1)
            self._on_written()
        if self._waiting and not self._stopped:
            self._timer = self._loop.call_later(0, self._write)

    def _keep(self) -> None:
        """There is no partition now. In a cluster there will be one soon; on a full disk, once there is space."""
        most = 0 if self._stopped else MOST_KEPT
        if len(self._waiting) > most:
            self._fails(self._trouble or "this broker leads no partition of it")
            self._drop(len(self._waiting) - most)
        if self._waiting:
            self._timer = self._loop.call_later(RETRY_S, self._write)

    def _drop(self, count: int) -> None:
        del self._waiting[:count], self._times[:count]

    def _fails(self, why: str) -> None:
        if self._trouble != why:
            log.error("events of groups are being lost: cannot write to %s: %s", GROUP_EVENTS_TOPIC, why)
        self._trouble = why

    def _works(self) -> None:
        if self._trouble:
            log.info("events of groups are written to %s again", GROUP_EVENTS_TOPIC)
        self._trouble = ""

    # ------------------------------------------------------------------------------------- where to

    def _place(self) -> EventPartition | None:
        """A partition that this broker leads; if there is none, one is requested."""
        topic = self._topics.get(GROUP_EVENTS_TOPIC)
        if topic is None and self._elsewhere is None:
            topic = self._create()
        if topic is not None and not topic.internal:
            self._fails("a topic of that name exists, but was not created for events; it is left unchanged")
            self._drop(len(self._waiting))
            return None
        found = self._led(topic) if topic is not None else None
        if found is None and self._elsewhere is not None:
            self._elsewhere.own_partition(GROUP_EVENTS_TOPIC, topic is not None, self._settings)
        return found

    def _led(self, topic: Topic) -> EventPartition | None:
        for index in range(topic.partitions):
            found = self._partitions.get(topic.name, index)
            if found is not None:
                return EventPartition(index, found)
        return None

    def _create(self) -> Topic | None:
        try:
            return self._changes.create_topic(GROUP_EVENTS_TOPIC, 1, self._settings)
        except (OSError, MusterError) as error:
            self._fails(str(error))
            return None


# ----------------------------------------------------------------------------------------------- a record's value

_Values = Callable[[GroupEvent], tuple[object, ...]]
_KINDS: dict[type[GroupEvent], tuple[str, _Values]] = {}
_text = json.encoder.encode_basestring_ascii


def encoded(at_ms: int, event: GroupEvent) -> bytes:
    """The value of an event's record. Thousands may arrive together, and `json.dumps` takes six times as long."""
    known = _KINDS.get(type(event))
    layout, values = known if known is not None else _learn(type(event))
    shown = [_text(one) if type(one) is str else "null" if one is None else _other(one) for one in values(event)]
    value = layout % (at_ms, *shown)
    if len(value) > LONGEST_TEXT:
        value = layout % (at_ms, *["null" if one is None else _other(one) for one in values(event)])
    return value.encode()


def _learn(kind: type[GroupEvent]) -> tuple[str, _Values]:
    names = [each.name for each in fields(kind)]
    layout = "".join([f'{{"v":1,"event":"{kind.__name__}","at_ms":%d', *(f',"{name}":%s' for name in names), "}"])
    known = _KINDS[kind] = layout, attrgetter(*names)
    return known


def _other(value: object) -> str:
    """A value of any type as JSON; text that is too long is truncated."""
    if isinstance(value, str):
        return _text(value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…")
    return str(value)
