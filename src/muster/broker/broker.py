"""The broker: its folder, its topics, its groups and its port, started and stopped together.

    async with Broker(config) as broker:
        ...  # broker.bootstrap is "127.0.0.1:9092"

At start the folder is locked, its identity is read, the topics' logs are opened (and recovered after a crash), the
groups are loaded from their topic, and only then is the port opened. Stop does the reverse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster.broker import handlers
from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.dynamic_settings import DynamicSettings
from muster.broker.features import TRANSACTION_VERSION, Features
from muster.broker.group_server import GroupServer
from muster.broker.groups.coordination import OF_TRANSACTIONS, ClusterCoordination, Coordination, StandaloneCoordination
from muster.broker.groups.event_topic import EventTopic
from muster.broker.groups.service import Groups, GroupTopics
from muster.broker.identity import Identity, load_identity, read_identity
from muster.broker.links.links import Links
from muster.broker.net.side_thread import SideThread
from muster.broker.operators import metrics as gathering
from muster.broker.topics.catalogue import TopicCatalogue, refuse_foreign
from muster.broker.topics.changes import TopicChanges
from muster.broker.topics.durability import Durability
from muster.broker.topics.fetch_sessions import FetchSessions
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.log_reads import LogReader
from muster.broker.topics.partitions import Partitions, log_config, warn_of_unusable
from muster.broker.topics.producer_ids import ProducerIds
from muster.broker.transactions.markers import MarkerWriter
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.broker.transactions.service import TransactionService
from muster.broker.transactions.verification import Verifier
from muster.clock import wall_clock_ms
from muster.coordinator.groups.effects import GroupEvent
from muster.errors import ConfigError, MusterError
from muster.log import DISK, Files, FolderLock, FsyncPolicy, LogConfig, LogStore, put_whole
from muster.model import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from muster.broker.cluster.zookeeper_cluster import ZooKeeperCluster

log = logging.getLogger("muster.broker")

PROBE, PROBE_BYTES = "health-probe", 1 << 20
"""The file that is written and removed to check whether a full disk accepts data again."""


class Broker(GroupServer):
    """One broker in this process, on the running loop.

    Args:
        files: the file system; tests pass one that fails or blocks.
        on_event: called with each event of a group, in addition to the log message.
        zookeeper: the cluster to join; without it the broker is standalone.
    """

    def __init__(
        self,
        config: BrokerConfig,
        files: Files = DISK,
        on_event: Callable[[GroupEvent], None] | None = None,
        zookeeper: ZooKeeperCluster | None = None,
    ) -> None:
        super().__init__(config, on_event)
        self.identity: Identity
        self.topics: TopicCatalogue
        self.changes: TopicChanges
        self.partitions: Partitions
        self.producer_ids: ProducerIds
        self.dynamic: DynamicSettings
        self.features: Features
        self.durability: Durability
        self.fetches = ParkedFetches()
        self.side_thread = SideThread()
        self.sessions = FetchSessions(
            config.integer("max.incremental.fetch.session.cache.slots"),
            config.integer("max.incremental.fetch.session.cache.partitions"),
        )
        self._files = files
        self._zookeeper = zookeeper
        self._fsync = FsyncPolicy(config.text("fsync"))
        self._store: LogStore
        self._events: EventTopic | None = None
        self.transactions: TransactionService
        self.locator: PartitionLocator
        self.verifier: Verifier
        self._turn_done: Callable[[], None]
        self.broken = asyncio.Event()
        """Set when a sync has failed: records not yet synced are never acknowledged. The owner stops the broker."""

    # ------------------------------------------------------------------------------------- start and stop

    @property
    def ends(self) -> list[asyncio.Event]:
        """See `GroupServer.ends`."""
        return [self.broken] if self._zookeeper is None else [self.broken, self._zookeeper.lost]

    async def start(self) -> None:
        """Open the folder and the port.

        Raises:
            ConfigError: the folder belongs to another broker, or a setting conflicts with it.
            MusterError: the folder is in use, or the port cannot be opened.
        """
        self.loop = asyncio.get_running_loop()
        self._check_store()
        if self._zookeeper is None:
            self._open_folder()
            await self._open_port()
        else:
            await self._join(self._zookeeper)
        self._accept()
        self.durability.start(
            self.config.integer("log.retention.check.interval.ms"),
            lambda: self.config.integer("log.cleaner.backoff.ms"),
        )

    async def _open_port(self) -> None:
        try:
            self._start_groups()
            await self._listen()
        except BaseException:
            self._store.close()
            raise

    async def _join(self, zookeeper: ZooKeeperCluster) -> None:
        """Start as a broker of a cluster. Connections wait until it has read the cluster's state: before that it would
        report a cluster without brokers."""
        try:
            self._open_folder(await zookeeper.connect())
            await self._open_port()
            try:
                await self._follow(zookeeper)
            except BaseException:
                await self._server.close()
                self._store.close()
                raise
        except BaseException:
            await zookeeper.leave()
            raise

    async def _follow(self, zookeeper: ZooKeeperCluster) -> None:
        """Register, and make this broker's parts follow the cluster."""
        parts = (self.topics, self.changes, self.partitions, self.coordination, self.fetches, self.features)
        await zookeeper.join(self.node, self.cluster.draft_node, *parts)

    async def stop(self) -> None:
        """Answer the requests that can be answered, close the port and the folder. A second call does nothing.

        Appended records are synced and acknowledged; members that wait in a rebalance get a retriable error.
        """
        if not self._accept_no_more():
            return
        self.side_thread.stop()
        self.groups.stop()
        self.transactions.stop()
        if self._events is not None:
            self._events.stop()
        await self.durability.stop()
        self._release_durable()
        self.groups.runtime.close()
        self.transactions.runtime.close()
        await self._server.close()
        if self._zookeeper is not None:
            await self._zookeeper.leave()
        await self.loop.run_in_executor(None, self._store.close)

    def _open_folder(self, cluster_id: str | None = None) -> None:
        folder = self.config.data_dir
        node_id = self.config.integer("node.id")
        try:
            # Checked before anything is written, even the lock file, and again once the lock is held.
            found = read_identity(folder, node_id, cluster_id)
            if self._zookeeper is not None:
                self._zookeeper.check_folder(folder, found)
            refuse_foreign(folder)
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock.take(folder)
            try:
                refuse_foreign(folder)
                self.identity = load_identity(folder, node_id, self._files, cluster_id)
                if self._zookeeper is not None:
                    self._zookeeper.take_folder(folder, self.identity, self._files)
                self.cluster = self._view()
                self.dynamic = DynamicSettings(self.config, folder, self._files)
                level = self._zookeeper.transaction_version if self._zookeeper is not None else None
                self.features = Features(self.config, folder, self._files, level)
                self.topics = TopicCatalogue.load(folder, self._files)
                for topic in self.topics:
                    warn_of_unusable(topic.name, topic.settings)
                self.producer_ids = ProducerIds(folder, self._files)
                if self._zookeeper is None:
                    self._check_group_topic()
                self._open_store(folder, lock)
                if self._zookeeper is None:  # in a cluster, ids come from ZooKeeper
                    logs = self._store.logs.values()
                    self.producer_ids.pass_over(id for log in logs for id in log.producers.producers)
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
            now=wall_clock_ms(),
            fsync=self._fsync,
            defaults=log_config({}, self.config),
            configs=self._config_of,
            partitions=[
                partition for topic in self.topics for partition in topic.topic_partitions if self._has(partition)
            ],
            deleted=[partition for topic in self.topics.deleting for partition in topic.topic_partitions],
            lock=lock,
            files=self._files,
        )
        _warn_of_few_descriptors(len(self._store.logs))
        self.partitions = Partitions(self.config, self.topics, self._store)
        self.changes = TopicChanges(self.config, self.topics, self.partitions, self.fetches)
        self.changes.cluster_admin = self._zookeeper
        self.cluster.is_offline = self.partitions.is_offline
        self.topics.reserve.fill()
        self._store.after_housekeeping = self.topics.reserve.fill
        self.changes.open_all()

    def _has(self, partition: TopicPartition) -> bool:
        """Whether this broker hosts a partition: in a cluster, one without a folder here is on another broker."""
        return self._zookeeper is None or (self.config.data_dir / str(partition)).exists()

    def _view(self) -> ClusterView:
        if self._zookeeper is None:
            return ClusterView(self.identity.cluster_id, self._advertised())
        from muster.broker.cluster.image_view import ImageView

        return ImageView(self.identity.cluster_id, self._advertised(), self._zookeeper.image)

    def _check_group_topic(self) -> None:
        topic = self.topics.get(GROUP_METADATA_TOPIC)
        wanted = self.config.integer("offsets.topic.num.partitions")
        if topic is not None and topic.partitions != wanted and self.config.is_set("offsets.topic.num.partitions"):
            raise ConfigError(
                f"{GROUP_METADATA_TOPIC} has {topic.partitions} partitions in this folder, so "
                f"offsets.topic.num.partitions cannot be {wanted}: groups would be looked up in the wrong partition"
            )

    def _start_groups(self) -> None:
        self.durability = Durability(self._store, self._fsync, self._flushed, self._disk_failed)
        always = self._fsync is FsyncPolicy.ALWAYS
        written = self.durability.want if always else partial(self.fetches.wake, self.partitions.get)
        # Called after the requests of one socket read. With fsync=always the sync decides what may be read.
        self._turn_done = _nothing if always else written
        self.coordination = self._coordination()
        self.groups = Groups(
            self.config,
            self._clock,
            GroupTopics(self.topics, self.cluster),
            self.coordination,
            written,
            self._listeners,
        )
        self.changes.groups = self.groups
        self._make_transactions(written)
        if self.config.flag("group.events.enable"):
            self._keep_events(written)
        self.groups.start()
        self.transactions.start()

    def _make_transactions(self, written: Callable[[], None]) -> None:
        parts = (self.config, self.topics, self.partitions, self.changes, self.cluster)
        self.locator = PartitionLocator(self.cluster, self.topics, self.coordination)
        writer = MarkerWriter(self.partitions, self.locator, self.groups, self.durability, self.fetches, written)
        links = Links(f"broker-{self.node.node_id}")
        self.transactions = self.changes.transactions = TransactionService(
            self.config,
            self._clock,
            (StandaloneCoordination if self._zookeeper is None else ClusterCoordination)(*parts, OF_TRANSACTIONS),
            self.partitions,
            self.groups,
            writer,
            self.locator,
            links,
            written,
            (self._zookeeper or self.producer_ids).take,
        )
        self.verifier = Verifier(self.config, self.transactions, self.locator, links)

        def follow() -> None:
            self.transactions.runtime.config.transaction_version = self.features.levels[TRANSACTION_VERSION]

        follow()
        self.features.on_change.append(follow)

    def _keep_events(self, written: Callable[[], None]) -> None:
        parts = (self.config, self.topics, self.changes, self.partitions, self.fetches, written, self._zookeeper)
        self._events = self.changes.events = EventTopic(*parts)
        self._listeners.append(self._events)
        self._events.start()

    def _check_store(self) -> None:
        store = self.config["group.coordinator.store"]
        if self._zookeeper is None:
            if store == "zookeeper":
                raise ConfigError("group.coordinator.store=zookeeper needs zookeeper.connect")
        elif store != "log":
            from muster.broker.cluster.slot_coordination import check_settings

            check_settings(self.config)

    def _coordination(self) -> Coordination:
        """Decides which broker coordinates a group."""
        if self._zookeeper is not None and self.config["group.coordinator.store"] != "log":
            from muster.broker.cluster.slot_coordination import ZooKeeperCoordination

            return ZooKeeperCoordination(self._zookeeper, self.cluster)
        kind = StandaloneCoordination if self._zookeeper is None else ClusterCoordination
        return kind(self.config, self.topics, self.partitions, self.changes, self.cluster)

    def parts(self) -> handlers.BrokerParts:
        """The parts that the handlers use."""
        max_bytes = self.config.integer("fetch.max.bytes")
        return handlers.BrokerParts(
            config=self.config,
            cluster=self.cluster,
            topics=self.topics,
            changes=self.changes,
            partitions=self.partitions,
            reader=LogReader(self.cluster, self.topics, self.partitions, max_bytes),
            groups=self.groups,
            durability=self.durability,
            fetches=self.fetches,
            sessions=self.sessions,
            loop=self.loop,
            side_thread=self.side_thread,
            transactions=self.transactions,
            verifier=self.verifier,
            locator=self.locator,
            dynamic=self.dynamic,
            features=self.features,
            cluster_admin=self._zookeeper,
        )

    async def _listen(self) -> None:
        await self._bind(handlers.table(self.parts()), self._turn_done)

    def _config_of(self, topic: str) -> LogConfig:
        found = self.topics.get(topic)
        return log_config(found.settings if found is not None else {}, self.config)

    # ------------------------------------------------------------------------------------- for operators

    def trouble(self) -> str | None:
        """See `GroupServer.trouble`, for causes in this broker alone."""
        found = super().trouble()
        if found is None and self._zookeeper is not None and not self._zookeeper.is_registered:
            return "it is not registered in ZooKeeper: other brokers do not see it"
        return found

    def refusing(self) -> list[TopicPartition]:
        """The partitions whose last write or read failed, or that could not be opened."""
        failing = [log.topic_partition for log in self.partitions.led() if log.in_trouble or log.failed is not None]
        return [*failing, *self._store.offline]

    def probe_disk(self) -> str | None:
        """Why the data folder is not writable, None if it is; blocks, so it runs in a thread."""
        path = self.config.data_dir / PROBE
        try:
            put_whole(self._files, path, bytes(PROBE_BYTES), sync=True)
            self._files.unlink(path)
        except OSError as error:
            for left in (path, path.with_name(f"{PROBE}.tmp")):
                with contextlib.suppress(OSError):
                    self._files.unlink(left)
            return f"the data folder is not writable: {error.strerror or error}"
        return None

    def _gather_more(self) -> gathering.Steps:
        late_before_ms = wall_clock_ms() - self.config.integer("transaction.max.timeout.ms") - gathering.LATE_BUFFER_MS
        found = yield from gathering.of_logs(self.partitions.led(), self.partitions.former, late_before_ms)
        states, unmarked = yield from self.transactions.runtime.count()
        refused, timed_out = self.transactions.sender.refused, self.transactions.timed_out
        found += gathering.of_transactions(states, unmarked, refused, timed_out)
        return found

    # ------------------------------------------------------------------------------------- turns of the loop

    def _disk_failed(self, reason: str) -> None:
        """A sync failed. Kafka stops when its only log directory fails, and so does `muster serve`."""
        if not self.broken.is_set():
            log.critical("%s; stopping: what the disk holds is known only after a restart", reason)
            self.broken.set()

    def _flushed(self) -> None:
        """The logs have been synced."""
        self._release_durable()
        if self._fsync is FsyncPolicy.ALWAYS:
            self.fetches.wake(self.partitions.get)

    def _release_durable(self) -> None:
        self.groups.runtime.release_durable()
        self.transactions.runtime.release_durable()


def _warn_of_few_descriptors(partitions: int) -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and partitions > most // 2:
        log.warning(
            "%d partitions may need that many open files, in addition to connections, but this process may open only "
            "%d: raise the limit (ulimit -n), or records will be refused with KAFKA_STORAGE_ERROR",
            partitions,
            most,
        )


def _nothing() -> None:
    """Do nothing."""


__all__ = ["Broker"]
