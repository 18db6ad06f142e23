"""A broker's part in a cluster on ZooKeeper: follows the session, and applies the image to this broker.

The rules are `muster.zookeeper.cluster.scheme`; this file runs them on the loop. Every event of the session triggers a
turn (`ClusterMember.turn`). After each turn this broker is brought in line with the image: topics that exist are in the
catalogue, logs of deleted topics are removed (even if they were deleted while this broker was down), partitions that
this broker leads are open under their epoch, and their groups are served.

A session whose state is unknown, or that has ended, changes nothing here: data is served as before, as in Kafka. There
is one replica of each partition, so no other broker can have become its leader meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from muster.broker.cluster import follower
from muster.broker.cluster.alterations import Alterations, Rule
from muster.broker.cluster.follower import Follower, Session
from muster.broker.cluster.frozen_process import FreezeDetector
from muster.broker.cluster.stray_partitions import FormerTopics
from muster.broker.config import BrokerConfig
from muster.broker.features import SUPPORTED, TRANSACTION_VERSION, Features, Levels
from muster.broker.groups.coordination import Coordination
from muster.broker.identity import Identity, last_start, random_uuid, uuid_bytes, uuid_text, write_start
from muster.broker.topics.catalogue import Topic, TopicCatalogue, TopicToCreate, invalid_name
from muster.broker.topics.changes import PartitionIncrease, TopicChanges
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions, warn_of_unusable
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.log import Files
from muster.model import Node
from muster.zookeeper.base.image import PartitionImage, TopicImage
from muster.zookeeper.base.operations import (
    Exists,
    NodeExistsError,
    SessionEvent,
    SetData,
    Watched,
    ZooKeeperError,
    ask,
)
from muster.zookeeper.base.znodes import BrokerEndpoint, BrokerRegistration, TopicRegistration, broker_path
from muster.zookeeper.cluster.data_dirs import DataDir, next_start, refusal, registered_data_dir
from muster.zookeeper.cluster.deletions import deletions_for, forget_deletions
from muster.zookeeper.cluster.features import agree_on_transaction_version, change_transaction_version
from muster.zookeeper.cluster.own_partition import own_partition
from muster.zookeeper.cluster.scheme import (
    ClusterMember,
    check_cluster,
    create_topic,
    join_cluster,
    live_brokers,
    load_of,
    raise_epoch,
    request_deletion,
    reserve_producer_ids,
    spread,
)
from muster.zookeeper.cluster.slots import agree_on_store

log = logging.getLogger("muster.broker")

LISTENER = "PLAINTEXT"

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a disk that may recover."""


class Parts(NamedTuple):
    """The parts of the broker that follow the image."""

    topics: TopicCatalogue
    changes: TopicChanges
    partitions: Partitions
    coordination: Coordination
    fetches: ParkedFetches
    features: Features


class ZooKeeperCluster(Follower):
    """This broker among the others. `connect` before the folder is opened, `join` once the port is known."""

    suspended = "data is still served"

    def __init__(self, config: BrokerConfig, session: Session) -> None:
        self.member = ClusterMember(config.integer("node.id"))
        super().__init__(self.member.broker_id, session, self.member.image)
        self._config = config
        self._had: DataDir | None = None
        """The folder with which this broker last registered."""
        self._freeze_detector: FreezeDetector | None = None
        self._parts: Parts
        self._former: FormerTopics
        self._alterations: Alterations
        self._registration: BrokerRegistration
        self._tasks: set[asyncio.Task[None]] = set()
        self._led: dict[tuple[str, int], tuple[bytes, int]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._creating: set[str] = set()
        self._disk_refused = False
        self._notes_are_read = False
        """Whether this broker has handled the deletions noted while it was down."""
        self.transaction_version = 0
        """The level that all brokers had when this one connected."""
        self._ids = range(0)
        self._next_ids = range(0)

    @property
    def is_registered(self) -> bool:
        """See `Follower.is_registered`."""
        return self.member.is_registered

    # ----------------------------------------------------------------------------------------------- start and stop

    async def connect(self) -> str:
        """Start the session, and read the cluster's id, which is returned.

        Raises:
            MusterError: ZooKeeper does not answer, or has a cluster of other brokers.
        """
        await self._open()
        fresh = uuid_text(random_uuid())
        found = self.member.cluster_id = await self._at_start(lambda: join_cluster(fresh))
        store = "log" if self._config["group.coordinator.store"] == "log" else "zookeeper"
        await self._at_start(lambda: agree_on_store(store))
        level = self._config.integer(TRANSACTION_VERSION)
        supported = SUPPORTED[TRANSACTION_VERSION]
        self.transaction_version = await self._at_start(lambda: agree_on_transaction_version(level, *supported))
        self._had = await self._at_start(lambda: registered_data_dir(self.member.broker_id))
        self._ids = await self._at_start(lambda: reserve_producer_ids(self.member.broker_id, wall_clock_ms()))
        return found

    def check_folder(self, folder: Path, identity: Identity | None) -> None:
        """Make sure that a folder is the one with this broker's records, before anything in it is touched.
        `identity` is None for a new one.

        Raises:
            ConfigError: it is a different folder, or an older copy.
        """
        mine = DataDir(identity.directory_id, *last_start(folder)) if identity is not None else None
        why = refusal(self.member.broker_id, self._had, mine, self._config.text_or_none("replaced.data.dir"))
        if why is not None:
            raise ConfigError(f"{folder}: {why}")

    def take_folder(self, folder: Path, identity: Identity, files: Files) -> None:
        """This broker has its records in the folder, and has been started with it again."""
        mine = DataDir(identity.directory_id, *last_start(folder))
        started = next_start(self._had, mine, uuid_text(random_uuid()))
        try:
            write_start(folder, started.starts, started.start, files)
        except OSError as error:  # a disk that is full must not keep records from being read
            log.warning("could not record this start in %s: %s", folder, error)
            started = mine
        self.member.data_dir = started
        self.member.given_up = self._config.text_or_none("replaced.data.dir")

    async def join(
        self,
        node: Node,
        draft_node: Node | None,
        topics: TopicCatalogue,
        changes: TopicChanges,
        partitions: Partitions,
        coordination: Coordination,
        fetches: ParkedFetches,
        features: Features,
    ) -> None:
        """Register, and follow the cluster from now on. The image has been read when this returns.

        Raises:
            BrokerIdTakenError: another live broker has this id (it outlived the session timeout).
        """
        self._parts = Parts(topics, changes, partitions, coordination, fetches, features)
        self._former = FormerTopics(topics, changes, partitions, fetches)
        self._alterations = Alterations(self.session, self.image, topics, self._brokers, self._until)
        endpoint = BrokerEndpoint(LISTENER, node.host, node.port)
        draft = BrokerEndpoint("DRAFT", draft_node.host, draft_node.port) if draft_node is not None else None
        self._registration = BrokerRegistration(
            node.node_id, (endpoint,), wall_clock_ms(), rack=node.rack, draft_listener=draft
        )
        await self._begin()
        self._freeze_detector = FreezeDetector(self.session.timeout_ms / 1000, self.wake)
        self._freeze_detector.start()
        partitions.is_doubtful = self._freeze_detector.is_doubtful

    async def leave(self) -> None:
        """See `Follower.leave`."""
        if self._freeze_detector is not None:
            self._freeze_detector.stop()
        for task in list(self._tasks):
            task.cancel()
            await asyncio.wait([task])
        await super().leave()

    # ----------------------------------------------------------------------------------------------- turns

    def _on_session_event(self, event: Watched | SessionEvent) -> bool:
        return self.member.on_event(event)

    async def _turn(self) -> None:
        term, asked_at = self.member.term, monotonic()
        try:
            if self._freeze_detector is not None and self._freeze_detector.is_doubtful():
                await self.session.run(ask(Exists(broker_path(self.node_id))))
            await self._say_what_is_offline()
            await self.session.run(self.member.turn(self._registration, wall_clock_ms()))
        finally:
            if self.member.term is not None and self.member.term != term:
                log.info("this broker is the controller, epoch %d", self.member.term.epoch)
            elif term is not None and self.member.term is None:
                log.info("this broker is no longer the controller")
        self._succeeded()
        if self._freeze_detector is not None:
            self._freeze_detector.answered(asked_at)
            if self._freeze_detector.is_doubtful():
                self.wake()  # it was frozen in the meantime
                return
        await self._follow()

    async def _say_what_is_offline(self) -> None:
        """Report to the controller the partitions that this broker cannot open, so that they have no leader."""
        offline = self._parts.partitions.offline
        if offline == self._registration.offline:
            return
        registration = self._registration._replace(offline=offline)
        if self.member.is_registered:
            await self.session.run(ask(SetData(broker_path(self.node_id), registration.encode())))
        self._registration = registration

    # ----------------------------------------------------------------------------------------------- following

    async def _follow(self) -> None:
        """Apply the image to this broker."""
        if self.image.transaction_version is not None:
            self._parts.features.follow(*self.image.transaction_version)
        wanted = {name: topic for name, topic in self.image.topics.items() if _is_usable(name, topic)}
        try:
            await self._remove(wanted)
            self._adopt(wanted)
        except OSError as error:  # a full disk takes no new topics; existing ones, and the groups, continue
            self._disk_refuses(error)
        else:
            self._disk_refused = False
        await self._lead(wanted)
        self._parts.changes.groups.topics_changed()
        self._parts.coordination.followed()
        nodes = (registration.node for registration in self.image.brokers.values())
        self._parts.changes.transactions.followed(node for node in nodes if node is not None)
        self._changed()
        if not self._next_ids:
            self._next_ids = await self.session.run(reserve_producer_ids(self.member.broker_id, wall_clock_ms()))

    def _disk_refuses(self, error: OSError) -> None:
        if not self._disk_refused:
            log.error("topics were created or deleted, but the disk is not writable; trying again: %s", error)
        self._disk_refused = True
        asyncio.get_running_loop().call_later(follower.PAUSE_S, self.wake)

    async def _remove(self, wanted: Mapping[str, TopicImage]) -> None:
        """Remove topics that are gone, or whose names belong to new ones."""
        gone = [topic for topic in self._parts.topics if self._is_gone(topic, wanted.get(topic.name))]
        if not gone and self._notes_are_read:
            return
        assert self.member.cluster_id is not None
        await self.session.run(check_cluster(self.member.cluster_id))
        noted = await self.session.run(deletions_for(self.member.broker_id))
        for key in [key for key in self._led if any(key[0] == topic.name for topic in gone)]:
            del self._led[key]
        await self._former.part_with(gone, noted)
        self.image.note_deleted(topic.name for topic in gone if uuid_text(topic.topic_id) in noted)
        there = {uuid_text(topic.topic_id) for topic in self._parts.topics}
        there.update(topic.registration.topic_id or "" for topic in self.image.topics.values())
        over = [topic_id for topic_id in noted if topic_id not in there]
        self._former.forget_asides(over)
        await self.session.run(forget_deletions(self.member.broker_id, over))
        self._notes_are_read = True

    def _is_gone(self, topic: Topic, found: TopicImage | None) -> bool:
        """A topic that cannot be used now, because its znode is damaged or one of Kafka's older tools has removed its
        id, still exists and keeps its records."""
        if found is not None:
            return _id(found) != topic.topic_id
        return not self.image.has_topic(topic.name)

    def _adopt(self, wanted: Mapping[str, TopicImage]) -> None:
        """Add existing topics to the catalogue, before their logs are created."""
        topics, parts = self._parts.topics, self._parts
        new = [
            TopicToCreate(name, _count(topic), topic.settings, _id(topic))
            for name, topic in wanted.items()
            if topics.get(name) is None
        ]
        if new:
            parts.changes.listing(new)
        for topic in topics:
            found = wanted.get(topic.name)
            if found is not None and _count(found) < topic.partitions:
                cut = range(_count(found), topic.partitions)
                for index in cut:
                    self._resign(topic.name, index)
                self._former.set_aside(topic, cut)
        changed = [
            (topic, _count(found), found.settings)
            for topic in topics
            if (found := wanted.get(topic.name)) is not None
            and (topic.partitions, topic.settings) != (_count(found), found.settings)
        ]
        for name in [*(one.name for one in new), *(topic.name for topic, _, _ in changed)]:
            warn_of_unusable(name, wanted[name].settings)
        if changed:
            topics.change_all(changed)
            for topic, _, _ in changed:
                parts.partitions.configure(topic)

    async def _lead(self, wanted: Mapping[str, TopicImage]) -> None:
        """Start leading the partitions that are this broker's, and resign from the others."""
        due: list[tuple[Topic, int, int]] = []
        raising: list[tuple[str, int, PartitionImage, int]] = []
        for name, image in wanted.items():
            topic = self._parts.topics.get(name)
            if topic is None or topic.topic_id != _id(image):
                continue  # the disk has refused it so far
            for index, known in list(image.states.items()):
                # It appeared after the catalogue was updated, or cannot be opened.
                if index >= topic.partitions or self._parts.partitions.is_offline(name, index):
                    continue
                if known.state.leader != self.member.broker_id:
                    self._resign(name, index)
                elif (
                    self._led.get((name, index)) != (topic.topic_id, known.state.leader_epoch)
                    and (newest := await self._opened(topic, index)) is not None
                ):
                    if self._is_newer(topic, index, known.state.leader_epoch, newest):
                        due.append((topic, index, known.state.leader_epoch))
                    else:
                        raising.append((name, index, known, newest))
        if due:
            # A disk that is full must not keep records from being read.
            with suppress(OSError):
                self._parts.topics.note_epochs(due)
        for topic, index, epoch in due:
            self._parts.partitions.lead(topic, index, epoch)
            self._led[topic.name, index] = topic.topic_id, epoch
            log.info("leads %s-%d under epoch %d", topic.name, index, epoch)
            self._parts.coordination.leads(topic, index, epoch)
            self._parts.changes.transactions.leads(topic, index, epoch)
        await asyncio.gather(*(self.session.run(raise_epoch(*one)) for one in raising))

    async def _opened(self, topic: Topic, index: int) -> int | None:
        """Prepare to lead a partition; returns the newest epoch under which it was led, -1 if none. None if it cannot
        be opened: the others are led anyway. Raises OSError for an error that may pass."""
        try:
            await self._former.take_back(topic, index)
            return self._parts.partitions.opened(topic, index)
        except OSError as error:
            if error.errno in _PASSING:
                raise
            self._parts.partitions.take_offline(topic, index, error)
            self.wake()  # so that the controller learns of it
            return None

    def _is_newer(self, topic: Topic, index: int, epoch: int, newest: int) -> bool:
        """Whether an epoch is newer than all those under which this broker has led the partition. If not, it is raised
        in ZooKeeper, and the watch then reports the new one. An equal epoch is not newer: clients may already know the
        next one."""
        if epoch > newest:
            return True
        if (topic.name, index) in self._led and epoch == newest:
            return True
        if epoch < newest:
            log.warning("ZooKeeper has epoch %d of %s-%d, after %d: raising it", epoch, topic.name, index, newest)
        return False

    def _resign(self, name: str, index: int) -> None:
        """Stop leading a partition, if this broker does."""
        led = self._led.pop((name, index), None)
        if led is None:
            return
        parts, found = self._parts, self.image.topics.get(name)
        known = found.states.get(index) if found is not None else None
        log.info("no longer leads %s-%d", name, index)
        epoch = known.state.leader_epoch if known is not None else led[1] + 1
        parts.coordination.resigns(name, index, epoch)
        parts.changes.transactions.resigns(name, index, epoch)
        parts.partitions.resign(name, index)
        for _ in parts.fetches.topics_deleted([name]):
            pass

    # ----------------------------------------------------------------------------------------------- topics

    def create(
        self,
        wanted: Sequence[TopicToCreate],
        assignments: Mapping[str, Mapping[int, list[int]]],
        timeout_ms: int,
        done: Callable[[dict[str, bytes | KafkaError]], None],
    ) -> None:
        """Create topics; `done` gets each one's id, or the error, once all have leaders or the timeout has passed."""
        self._spawn(self._create(wanted, assignments, timeout_ms, done))

    async def _create(
        self,
        wanted: Sequence[TopicToCreate],
        assignments: Mapping[str, Mapping[int, list[int]]],
        timeout_ms: int,
        done: Callable[[dict[str, bytes | KafkaError]], None],
    ) -> None:
        found: dict[str, bytes | KafkaError] = {}
        names: list[str] = []
        load, brokers = load_of(self.image.topics.values()), await self._brokers()
        for new in wanted:
            spread_over = assignments.get(new.name) or spread(new.partitions, brokers, load)
            for replicas in spread_over.values():
                load[replicas[0]] = load.get(replicas[0], 0) + 1
            # The controller derives its id from its creation, so that it can assign the same one again.
            registration = TopicRegistration(dict(spread_over), version=1)
            try:
                await self.session.run(create_topic(new.name, registration, new.settings))
                names.append(new.name)
            except NodeExistsError:
                found[new.name] = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
            except ZooKeeperError as error:
                found[new.name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper refused the topic: {error}")
        late = await self._until(timeout_ms, lambda: [name for name in names if not self._is_led(name)])
        for name in names:
            topic = self._parts.topics.get(name)
            if name in late or topic is None:
                found[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The topic was created, but has no leaders yet.")
            else:
                found[name] = topic.topic_id
        done(found)

    async def _brokers(self) -> Collection[int]:
        try:
            return await self.session.run(live_brokers(self.image.brokers)) or self.image.brokers
        except ZooKeeperError:
            return self.image.brokers  # the change will fail as well, and report why

    def _is_led(self, name: str) -> bool:
        image, topic = self.image.topics.get(name), self._parts.topics.get(name)
        return (
            image is not None
            and topic is not None
            and len(image.states) == len(image.registration.partitions)
            and all(known.state.leader >= 0 for known in image.states.values())
        )

    def delete(self, names: Sequence[str], timeout_ms: int, done: Callable[[dict[str, KafkaError]], None]) -> None:
        """Delete topics; `done` gets the failures once the other topics are gone or the timeout has passed."""
        self._spawn(self._delete(names, timeout_ms, done))

    async def _delete(
        self, names: Sequence[str], timeout_ms: int, done: Callable[[dict[str, KafkaError]], None]
    ) -> None:
        failed: dict[str, KafkaError] = {}
        former = {name: self._parts.topics.get(name) for name in names}
        for name in names:
            try:
                await self.session.run(request_deletion(name))
            except ZooKeeperError as error:
                failed[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper refused the change: {error}")
        left = [name for name in names if name not in failed]
        late = await self._until(
            timeout_ms, lambda: [name for name in left if self._parts.topics.get(name) is former[name]]
        )
        for name in late:
            failed[name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The topic will be deleted, but still exists.")
        done(failed)

    def grow(
        self, wanted: Sequence[PartitionIncrease], timeout_ms: int, done: Callable[[Mapping[str, KafkaError]], None]
    ) -> None:
        """Add partitions; `done` gets the failures by topic once the other topics' partitions have leaders or the
        timeout has passed."""
        self._spawn(self._alterations.grow(wanted, timeout_ms, done))

    def alter(self, wanted: Mapping[str, Rule], done: Callable[[Mapping[str, KafkaError]], None]) -> None:
        """Change settings of topics; `done` gets the failures by topic once this broker uses the other topics' new
        settings, or the timeout has passed."""
        self._spawn(self._alterations.alter(wanted, done))

    def update_features(
        self, change: Callable[[Levels], Levels], timeout_ms: int, done: Callable[[KafkaError | None], None]
    ) -> None:
        """Change levels of features; `done` gets the error, if there is one, once this broker has the new ones or the
        timeout has passed."""
        self._spawn(self._update_features(change, timeout_ms, done))

    async def _update_features(
        self, change: Callable[[Levels], Levels], timeout_ms: int, done: Callable[[KafkaError | None], None]
    ) -> None:
        features = self._parts.features

        def changed(level: int) -> int | None:
            return change({TRANSACTION_VERSION: level}).get(TRANSACTION_VERSION)

        try:
            present = features.levels[TRANSACTION_VERSION]
            epoch = await self.session.run(change_transaction_version(present, changed))
        except KafkaError as error:
            done(error)
        except ZooKeeperError as error:
            done(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper refused the change: {error}"))
        else:
            late = await self._until(timeout_ms, lambda: [TRANSACTION_VERSION] if features.epoch < epoch else [])
            text = "This broker does not know of the new level yet."
            done(KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) if late else None)

    def create_soon(self, names: Iterable[str], partitions: int, settings: Mapping[str, str]) -> None:
        """Create requested topics, without reporting when they exist."""
        names = [name for name in names if name not in self._creating and invalid_name(name) is None]
        if not names or not self.image.brokers:
            return
        self._creating.update(names)

        def done(found: dict[str, bytes | KafkaError]) -> None:
            self._creating.difference_update(names)
            for name, result in found.items():
                if isinstance(result, KafkaError) and result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    log.error("%s could not be created: %s", name, result.message)

        self.create([TopicToCreate(name, partitions, dict(settings)) for name in names], {}, 30_000, done)

    def own_partition(self, topic: str, exists: bool, settings: Mapping[str, str]) -> None:
        """Give this broker a new partition of a topic to lead, soon; creates the topic if it does not exist."""
        if topic in self._creating or not self.member.is_registered:
            return
        self._creating.add(topic)
        self._spawn(self._own_partition(topic, exists, settings))

    async def _own_partition(self, topic: str, exists: bool, settings: Mapping[str, str]) -> None:
        try:
            await self.session.run(own_partition(topic, self.node_id, exists, settings))
        except ZooKeeperError as error:  # it is requested again
            log.debug("no partition of %s yet: %s", topic, error)
        finally:
            self._creating.discard(topic)

    async def _until(self, timeout_ms: int, left: Callable[[], list[str]]) -> list[str]:
        """Wait until nothing is left; returns what is left at the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (found := left()) and loop.time() < deadline:
            waiting = loop.create_future()
            self._waiting.add(waiting)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiting
            except TimeoutError:
                pass
            finally:
                self._waiting.discard(waiting)
        return found

    def _changed(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a change of topics failed", exc_info=error)

    # ----------------------------------------------------------------------------------------------- producer ids

    def take(self) -> int:
        """A producer id that no other broker gives out. The next block is reserved while one is used up.

        Raises:
            OSError: ZooKeeper did not reserve a block in time.
        """
        if not self._ids:
            self._ids, self._next_ids = self._next_ids, range(0)
            self._wake.set()
        if not self._ids:
            raise OSError("ZooKeeper has not reserved a block yet")
        found, self._ids = self._ids[0], self._ids[1:]
        return found


def _is_usable(name: str, topic: TopicImage) -> bool:
    """Whether a topic has an id, and partitions from 0 on. The controller will soon give an id to a topic without
    one."""
    numbers = topic.registration.partitions
    if topic.registration.topic_id is None or not numbers or invalid_name(name):
        return False
    try:
        _id(topic)
    except ValueError:
        return False
    return set(numbers) == set(range(len(numbers)))


def _id(topic: TopicImage) -> bytes:
    return uuid_bytes(topic.registration.topic_id or "")


def _count(topic: TopicImage) -> int:
    return len(topic.registration.partitions)
