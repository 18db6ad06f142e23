"""The broker: its folder, its topics, its groups and its port, started and stopped together.

    async with Broker(config) as broker:
        ...  # broker.bootstrap is "127.0.0.1:9092"

At start: the folder is locked, who it belongs to is read, the topics' logs are opened (and recovered after a crash),
the groups are loaded from their topic, and only then is the port opened. At stop the order is the other way round.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from muster.broker import handlers, topic_settings
from muster.broker.calls import at_once
from muster.broker.clock import TICK_S, SteadyClock, now_ms
from muster.broker.config import BrokerConfig
from muster.broker.durability import Durability
from muster.broker.events import GroupLines
from muster.broker.fetch_sessions import FetchSessions
from muster.broker.handlers.fetch import ParkedFetches
from muster.broker.identity import Identity, load_identity, random_uuid, read_identity
from muster.broker.producer_ids import ProducerIds
from muster.broker.server import Server
from muster.broker.settings import Value
from muster.broker.side_thread import SideThread
from muster.broker.topics import NewTopic, Topic, TopicCatalogue, refuse_foreign
from muster.coordinator.effects import GroupEvent
from muster.coordinator.runtime import CoordinatorRuntime, GroupConfig
from muster.errors import ConfigError, ErrorCode, KafkaError, MusterError
from muster.log import (
    DISK,
    CleanupPolicy,
    Files,
    FolderLock,
    FsyncPolicy,
    LogConfig,
    LogStore,
    PartitionLog,
    TimestampType,
)
from muster.model import GROUP_METADATA_TOPIC, Node, TopicPartition

log = logging.getLogger("muster.broker")

MOST_CREATED_PARTITIONS = 10_000
"""Partitions that one request creates by asking for topics: what Kafka's controller takes at once."""

LOAD_BEFORE_START_S = 1.0
"""How long the start waits for the groups' logs to be read."""


class Broker:
    """One broker in this process, on the running loop.

    Args:
        files: the disk; tests give one that fails or waits.
        on_event: told of what happens to groups, beside the log.
    """

    def __init__(
        self, config: BrokerConfig, files: Files = DISK, on_event: Callable[[GroupEvent], None] | None = None
    ) -> None:
        self.config = config
        self._files = files
        self._group_lines = GroupLines()
        self._listener = on_event
        self.identity: Identity
        self.node: Node
        self.topics: TopicCatalogue
        self.producer_ids: ProducerIds
        self.durability: Durability
        self.runtime: CoordinatorRuntime
        self.loop: asyncio.AbstractEventLoop
        self.fetches = ParkedFetches()
        self.side_thread = SideThread()
        self.sessions = FetchSessions(
            config.integer("max.incremental.fetch.session.cache.slots"),
            config.integer("max.incremental.fetch.session.cache.partitions"),
        )
        self.max_fetch_bytes = config.integer("fetch.max.bytes")
        self._clock = SteadyClock()
        self._fsync = FsyncPolicy(config.text("fsync"))
        self._store: LogStore
        self._server: Server
        self._partitions: dict[str, dict[int, PartitionLog]] = {}
        self._clean_ups: dict[str, Generator[None, None, None]] = {}
        """What is under way to remove the rest of topics that are gone, by their names."""
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: int | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.has_groups = False
        """Whether the topic of the groups is there and the coordinator serves."""
        self._arming = False
        self._group_flush_due = False
        self._started = False
        self.on_rest: Callable[[], None] = lambda: None
        """Called now and then when no request about very many things is under way."""
        self.broken = asyncio.Event()
        """Set when a sync has failed: nothing that was not synced before is acknowledged any more. To be stopped."""

    # ------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the folder and the port.

        Raises:
            ConfigError: the folder belongs to another broker, or a setting does not fit it.
            MusterError: the folder is in use, or the port cannot be opened.
        """
        self.loop = asyncio.get_running_loop()
        self._open_folder()
        try:
            self._start_groups()
            await self._listen()
        except BaseException:
            self._store.close()
            raise
        self.durability.start(self.config.integer("log.retention.check.interval.ms"))
        self._tick()
        self._started = True

    async def stop(self) -> None:
        """Answer what can be answered, close the port and the folder. A second call does nothing.

        What was appended is synced and acknowledged; members that wait in a rebalance are sent away, to come back.
        """
        if not self._started:
            return
        self._started = False
        if self._deadline is not None:
            self._deadline.cancel()
        if self._ticking is not None:
            self._ticking.cancel()
        self._server.stop_listening()
        self._server.slices.stop()
        self.side_thread.stop()
        self._flush_groups()
        await self.durability.stop()
        self.runtime.release_durable()
        self.runtime.close()
        await self._server.close()
        await self.loop.run_in_executor(None, self._store.close)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def cluster_id(self) -> str:
        """The id that all brokers of the cluster have."""
        return self.identity.cluster_id

    @property
    def bootstrap(self) -> str:
        """The address that clients are told, as `bootstrap.servers` takes it."""
        host = f"[{self.node.host}]" if ":" in self.node.host else self.node.host
        return f"{host}:{self.node.port}"

    def _open_folder(self) -> None:
        folder = self.config.data_dir
        node_id = self.config.integer("node.id")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Looked at before anything is written, the lock's file included, and again once nobody else can change it.
            read_identity(folder, node_id)
            refuse_foreign(folder)
            lock = FolderLock.take(folder)
            try:
                refuse_foreign(folder)
                self.identity = load_identity(folder, node_id, self._files)
                self.topics = TopicCatalogue.load(folder, self._files)
                self.producer_ids = ProducerIds(folder, self._files)
                self._check_group_topic()
                self._open_store(folder, lock)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename not in (None, str(folder)) else ""
            raise MusterError(f"cannot use {folder} as the data folder: {where}{error.strerror or error}") from None

    def _open_store(self, folder: Path, lock: FolderLock) -> None:
        """Open every topic's partitions, and finish the deletions that a crash interrupted."""
        self._store = LogStore.open(
            folder,
            now=now_ms(),
            fsync=self._fsync,
            defaults=self._log_config({}),
            configs=self._config_of,
            partitions=[partition for topic in self.topics for partition in topic.topic_partitions],
            deleted=[partition for topic in self.topics.deleting for partition in topic.topic_partitions],
            lock=lock,
            files=self._files,
        )
        for topic in self.topics.deleting:
            self._finish_deletion(topic)
        for topic in self.topics:
            self._open_partitions(topic)

    def _check_group_topic(self) -> None:
        topic = self.topics.get(GROUP_METADATA_TOPIC)
        wanted = self.config.integer("offsets.topic.num.partitions")
        if topic is not None and topic.partitions != wanted and self.config.is_set("offsets.topic.num.partitions"):
            raise ConfigError(
                f"{GROUP_METADATA_TOPIC} has {topic.partitions} partitions in this folder, so "
                f"offsets.topic.num.partitions cannot be {wanted}: groups would be looked for in the wrong place"
            )

    def _start_groups(self) -> None:
        self.durability = Durability(self._store, self._fsync, self._flushed, self._disk_failed)
        self.runtime = CoordinatorRuntime(
            self._group_config(),
            self._open_group_log,
            clock=self._clock,
            topics=self.topics,
            on_event=self._on_event,
            new_member_id=_new_member_id,
            schedule_flush=self._schedule_group_flush,
            on_deadline_moved=self._deadline_moved,
            later=self._load_later,
            wall_clock=now_ms,
        )
        topic = self.topics.get(GROUP_METADATA_TOPIC)
        if topic is not None:
            logs = [self._partitions[GROUP_METADATA_TOPIC][index] for index in range(topic.partitions)]
            self._serve_groups(topic, [index for index, found in enumerate(logs) if found.log_end_offset])
            # What can be read in a moment is there from the first request on; the rest follows between requests.
            until = time.monotonic() + LOAD_BEFORE_START_S
            while self.runtime.is_loading and time.monotonic() < until:
                self.runtime.load_a_piece()
        self._arm_deadline()

    async def _listen(self) -> None:
        config = self.config
        host, port = config.listener
        self._server = Server(
            handlers.table(self),
            unsupported=handlers.unsupported(),
            max_connections=config.integer("max.connections"),
            max_request_bytes=config.integer("socket.request.max.bytes"),
            max_bytes_in_flight=config.integer("queued.max.request.bytes"),
            max_unread_bytes=config.integer("queued.max.response.bytes"),
            max_idle_ms=config.integer("connections.max.idle.ms"),
            backlog=config.integer("socket.listen.backlog.size"),
            on_turn=self._turn_done,
            on_rest=lambda: self.on_rest(),
        )
        try:
            bound = await self._server.listen(host, port)
        except OSError as error:
            raise MusterError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        advertised_host, advertised_port = config.advertised
        rack = config["broker.rack"]
        self.node = Node(
            self.identity.node_id, advertised_host, advertised_port or bound, str(rack) if rack is not None else None
        )

    # ------------------------------------------------------------------------------------- topics

    def partition(self, topic: str, index: int) -> PartitionLog | None:
        """The log of a partition, None if there is no such partition."""
        found = self._partitions.get(topic)
        return found.get(index) if found is not None else None

    def create_topic(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        """Create a topic that does not exist. OSError: it could not be stored."""
        return self.create_topics([NewTopic(name, partitions, settings)])[0]

    def create_topics(self, wanted: Sequence[NewTopic]) -> list[Topic]:
        """Create topics that do not exist, all or none. OSError: they could not be stored."""
        return at_once(self.creating(wanted))

    def creating(self, wanted: Sequence[NewTopic]) -> Generator[None, None, list[Topic]]:
        """The same a slice at a time. The topics exist from the first slice on, their partitions appear. Each may be
        deleted, and even be created anew, before its turn comes."""
        at_once(self.cleaning_up(new.name for new in wanted))
        for new in wanted:
            if (former := self.topics.deleting_of(new.name)) is not None:
                self._finish_deletion(former)
        self._store.make_room(TopicPartition(new.name, index) for new in wanted for index in range(new.partitions))
        if any(self.topics.deleting_of(new.name) for new in wanted):
            # The next start would finish it, and take the new topic's records for the former's.
            raise OSError(errno.EBUSY, "the former topic of that name is not removed yet")
        topics = self.topics.create_all(wanted)
        for topic in topics:
            yield from self._opening(topic)
            log.info("created topic %s with %d partition(s)", topic.name, topic.partitions)
            if topic.name == GROUP_METADATA_TOPIC and self._is_there(topic):
                self._serve_groups(topic, [])
        return topics

    def auto_create(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Create topics because they were asked for, as far as the settings allow it: with one write of the catalogue
        for all of them, a slice at a time."""
        if not self.config.flag("auto.create.topics.enable"):
            return
        names = list(names)
        yield from self.cleaning_up(names)
        partitions = self.config.integer("num.partitions")
        wanted: dict[str, NewTopic] = {}  # by what would collide: metrics know no difference between '.' and '_'
        for name in names:
            if name == GROUP_METADATA_TOPIC:
                self.open_groups()
            elif (len(wanted) + 1) * partitions <= MOST_CREATED_PARTITIONS and not self._taken(name):
                wanted.setdefault(name.replace(".", "_"), NewTopic(name, partitions, {}))
        if not wanted:
            return
        try:
            yield from self.creating(list(wanted.values()))
        except (OSError, MusterError) as error:
            some = next(iter(wanted.values())).name
            log.error("%d topic(s), %s the first, could not be created: %s", len(wanted), some, error)

    def _taken(self, name: str) -> bool:
        return self.topics.get(name) is not None or self.topics.colliding(name) is not None

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic, as `deleting` does, in one go."""
        at_once(self.deleting([topic]))

    def deleting(self, topics: Sequence[Topic]) -> Generator[None, None, None]:
        """Delete topics, their records and the offsets committed for them, a slice at a time. OSError: they are still
        there, all of them. From the first slice on they are gone, also after a crash; the rest is removed by and by,
        and before a topic of such a name can be created.

        With the topic of the groups all groups go at once, and their members are sent away: to the coordinator that
        comes with the new topic.
        """
        self.topics.delete_all(topics)
        for topic in topics:
            self._partitions.pop(topic.name, None)
        groups = [topic for topic in topics if topic.name == GROUP_METADATA_TOPIC]
        if groups:
            self.has_groups = False
            self.runtime.unload_all()
        # The topic of the groups by itself: its next request creates it anew, and should not wait for the others.
        for some in (groups, [topic for topic in topics if topic not in groups]):
            clean_up = self._clean_up(some)
            self._clean_ups |= {topic.name: clean_up for topic in some}
        yield from self.cleaning_up(topic.name for topic in topics)

    def cleaning_up(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Remove what is left of topics of these names that are gone, if that is under way, a slice at a time. Several
        requests may do so in turn: each goes on where another one is."""
        for clean_up in dict.fromkeys(self._clean_ups[name] for name in names if name in self._clean_ups):
            yield from clean_up

    def is_cleaning_up(self, name: str) -> bool:
        """Whether the rest of a topic of that name is still being removed."""
        return name in self._clean_ups

    def _clean_up(self, topics: list[Topic]) -> Generator[None, None, None]:
        names = [topic.name for topic in topics]
        try:
            yield from self.fetches.topics_deleted(names)
            yield from self.runtime.topics_deleted(names)
            left = yield from self._store.deleting(each for topic in topics for each in topic.topic_partitions)
            for topic in topics:
                self._deleted(topic, left)
                log.info("deleted topic %s", topic.name)
                yield
        finally:
            for name in names:
                del self._clean_ups[name]

    def _finish_deletion(self, topic: Topic) -> None:
        """Remove the folders of a topic that is gone. What cannot be done now is logged, and done at the next start, or
        when a topic of that name is to be created."""
        self._deleted(topic, self._store.delete_all(topic.topic_partitions))

    def _deleted(self, topic: Topic, left: set[TopicPartition]) -> None:
        if not left or left.isdisjoint(topic.topic_partitions):
            self.topics.deleted(topic)

    def _open_partitions(self, topic: Topic) -> None:
        at_once(self._opening(topic))

    def _opening(self, topic: Topic) -> Generator[None, None, None]:
        config = self._log_config(topic.settings)
        for index in range(topic.partitions):
            if not self._is_there(topic):
                return
            log = self._store.create(TopicPartition(topic.name, index), config)
            self._partitions.setdefault(topic.name, {})[index] = log
            yield

    def _is_there(self, topic: Topic) -> bool:
        """Whether it was not deleted meanwhile."""
        return self.topics.get(topic.name) is topic

    def _config_of(self, topic: str) -> LogConfig:
        found = self.topics.get(topic)
        return self._log_config(found.settings if found is not None else {})

    def _log_config(self, settings: dict[str, str]) -> LogConfig:
        values = topic_settings.values(settings, self.config)
        return LogConfig(
            segment_bytes=_number(values["segment.bytes"]),
            segment_ms=_number(values["segment.ms"]),
            retention_ms=_number(values["retention.ms"]),
            retention_bytes=_number(values["retention.bytes"]),
            max_message_bytes=_number(values["max.message.bytes"]),
            cleanup_policy=_cleanup_policy(str(values["cleanup.policy"])),
            delete_retention_ms=_number(values["delete.retention.ms"]),
            min_cleanable_dirty_ratio=float(values["min.cleanable.dirty.ratio"] or 0),
            min_compaction_lag_ms=_number(values["min.compaction.lag.ms"]),
            index_interval_bytes=_number(values["index.interval.bytes"]),
            message_timestamp_type=_timestamp_type(values["message.timestamp.type"]),
            message_timestamp_after_max_ms=_number(values["message.timestamp.after.max.ms"]),
            message_timestamp_before_max_ms=_number(values["message.timestamp.before.max.ms"]),
            producer_id_expiration_ms=self.config.integer("producer.id.expiration.ms"),
        )

    # ------------------------------------------------------------------------------------- groups

    def open_groups(self) -> Topic:
        """The topic of the groups; the first request of any group creates it."""
        topic = self.topics.get(GROUP_METADATA_TOPIC)
        if topic is None:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self.config.integer("offsets.topic.segment.bytes")),
            }
            topic = self.create_topic(
                GROUP_METADATA_TOPIC, self.config.integer("offsets.topic.num.partitions"), settings
            )
        return topic

    def _serve_groups(self, topic: Topic, written: list[int]) -> None:
        """Begin to coordinate, with the groups in those partitions of the topic that were ever written."""
        self.runtime.config.offsets_topic_num_partitions = topic.partitions
        self.runtime.load_all(written)
        self.has_groups = True

    def _load_later(self, load: Callable[[], None]) -> None:
        """Read a piece of the groups' logs in the next turn of the loop, so that others are served in between."""

        def load_and_arm() -> None:
            load()
            self._arm_deadline()

        self.loop.call_soon(load_and_arm)

    def _group_config(self) -> GroupConfig:
        config = self.config
        return GroupConfig(
            group_min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
            group_initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            group_max_size=config.integer("group.max.size"),
            offsets_retention_minutes=config.integer("offsets.retention.minutes"),
            offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
            offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
            offsets_topic_num_partitions=config.integer("offsets.topic.num.partitions"),
        )

    def _open_group_log(self, partition: int) -> PartitionLog:
        found = self.partition(GROUP_METADATA_TOPIC, partition)
        if found is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no {GROUP_METADATA_TOPIC}-{partition}")
        return found

    def _on_event(self, event: GroupEvent) -> None:
        self._group_lines(event)
        if self._listener is not None:
            self._listener(event)

    def _schedule_group_flush(self) -> None:
        """The coordinator has records: they are written together with all others of this turn of the loop."""
        if not self._group_flush_due:
            self._group_flush_due = True
            self.loop.call_soon(self._flush_groups)

    def _flush_groups(self) -> None:
        self._group_flush_due = False
        self.runtime.flush()
        if self._fsync is FsyncPolicy.ALWAYS:
            self.durability.want()
        else:
            self.fetches.wake(self.partition)

    def _arm_deadline(self) -> None:
        """Wake up when the first group has something due."""
        due = self.runtime.next_deadline()
        if due == self._deadline_at:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_at = due
        if due is not None:
            self._deadline = self.loop.call_later(max(due - self._clock(), 0) / 1000 + 0.001, self._on_deadline)

    def _tick(self) -> None:
        """Read the clock now and then: it tells by its readings whether the process runs."""
        before = self._clock.stalled_ms
        self._clock()
        if self._clock.stalled_ms > before:
            log.warning(
                "nothing ran for %.1f s: sessions go on from where they were", (self._clock.stalled_ms - before) / 1e3
            )
        if not len(self._server.slices):
            self.on_rest()
        self._ticking = self.loop.call_later(TICK_S, self._tick)

    def _deadline_moved(self) -> None:
        """A group has something due earlier than all others: look once, for all the reads of this turn of the loop."""
        if not self._arming:
            self._arming = True
            self.loop.call_soon(self._arm_moved)

    def _arm_moved(self) -> None:
        self._arming = False
        self._arm_deadline()

    def _on_deadline(self) -> None:
        self._deadline = self._deadline_at = None
        self.runtime.on_deadlines(self._clock())
        self._arm_deadline()

    # ------------------------------------------------------------------------------------- turns of the loop

    def _turn_done(self) -> None:
        """The requests of one read were handled."""
        if self._fsync is not FsyncPolicy.ALWAYS:
            self.fetches.wake(self.partition)

    def _disk_failed(self, reason: str) -> None:
        """A sync failed. Kafka ends when its only log directory does, and so does `muster serve`."""
        if not self.broken.is_set():
            log.critical("%s; only a start that reads anew what the disk has can tell what is left", reason)
            self.broken.set()

    def _flushed(self) -> None:
        """The logs were synced."""
        self.runtime.release_durable()
        if self._fsync is FsyncPolicy.ALWAYS:
            self.fetches.wake(self.partition)


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _cleanup_policy(text: str) -> CleanupPolicy:
    words = {word.strip() for word in text.split(",") if word.strip()}
    if words == {"compact", "delete"}:
        return CleanupPolicy.COMPACT_AND_DELETE
    return CleanupPolicy.COMPACT if words == {"compact"} else CleanupPolicy.DELETE


def _timestamp_type(value: Any) -> TimestampType:
    return TimestampType.LOG_APPEND_TIME if value == "LogAppendTime" else TimestampType.CREATE_TIME


def _new_member_id(prefix: str) -> str:
    """A member id as Kafka makes them: what the member calls itself, and something that nobody else has."""
    raw = random_uuid().hex()
    return f"{prefix}-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


__all__ = ["Broker"]
