"""Scheme 1: every member watches ZooKeeper and rebalances on its own, as Kafka 0.8.2.2's consumer does.

Theory. A member registers with an ephemeral id, and watches the ids of its group and the partitions of its topics. When
one of them changes, each member stops fetching, commits, deletes its owner znodes, reads all ids and all partitions,
computes the same assignment as every other member, and claims its partitions with ephemeral owner znodes. If another
owner's znode exists, it deletes its claims, waits, and tries again: `rebalance_max_retries` times, with
`rebalance_backoff_ms` between attempts, in total longer than a session can outlive its member. No member watches
owners.

So each change costs the group N² reads and two writes for each partition, and only the owner znodes keep two members
from reading one partition. They cannot always do so: a member that was frozen until its session ended resumes, and
returns the records that it had, until it learns that its session has ended. Nothing fences it, and its commits may set
the group back, because an offset is written without checking the partition's owner. This flaw is inherent in the scheme
(Z6); the later schemes were made to avoid it.

`WatcherMember` has the rules and does no I/O. Events arrive through `watched` and `session`, at any time; they only set
flags, so that many changes lead to one rebalance. Its plans ask for operations on ZooKeeper and for the effects in
`asks.py`; one plan is carried out at a time: `attend` whenever `wants_attention`, `commit` and `shut_down`.

Differences from 0.8.2.2, and why:
- An unreadable id, topic or broker is logged and skipped, as is a list that takes too long to match. In 0.8.2.2 just
  one of these ends every member's rebalance, or keeps it busy.
- An id that is deleted while the ids are read is skipped: its member has left, and the watch reports it. In 0.8.2.2 it
  costs an attempt and a backoff.
- Offsets are read when the partition is claimed, not before: the former owner has committed by then. In 0.8.2.2,
  records in between are handled twice.
- Claims of an attempt that ended with an error are deleted. In 0.8.2.2 they stay until the session ends, and block
  others.
- Whether an owner znode or an id belongs to a member depends on the session that created it, not on its text.
- When the answer to the deletion of an owner znode is lost, the znode's owner is read before it is deleted again. In
  0.8.2.2 the second deletion may hit the znode of the partition's next owner, which then reads without one.
- Its own id is written again if another program has deleted it. In 0.8.2.2 the member never rebalances again.
- A deleted topic starts a rebalance.
- A member whose attempts have all failed starts again when its user polls again (`try_again`) or the connection to
  ZooKeeper is back. In 0.8.2.2 it waits for a change that it watches, which may never come: no member watches owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import (
    Create,
    Exists,
    GetData,
    NodeExistsError,
    NoNodeError,
    Plan,
    SessionEvent,
    SessionExpiredError,
    SetData,
    Stat,
    Watched,
    ZnodeChange,
    ZooKeeperError,
    ask,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    BrokerRegistration,
    GroupPaths,
)
from muster.zookeeper.watchers.asks import (
    ClaimedPartition,
    GiveUp,
    Level,
    NotifyUser,
    Pause,
    RebalanceFailedError,
    StartFetching,
    StopFetching,
    TimeOfDay,
)
from muster.zookeeper.watchers.assignment import Assignment, UnequalSubscriptionsError, strategy, thread_ids
from muster.zookeeper.watchers.plans import GONE, SessionPlans
from muster.zookeeper.watchers.settings import WatcherSettings
from muster.zookeeper.watchers.states import TRANSITIONS, WatcherEvent, WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription
from muster.zookeeper.watchers.topic_expression import TooCostlyError

A = TypeVar("A")

_NO_OFFSET = -1
"""In `_written`: the partition has no committed offset."""


class _GroupView(NamedTuple):
    """What a member read about its group in one attempt."""

    topics: dict[str, int]
    """Its own topics, with its streams."""
    threads: dict[str, list[str]]
    partitions: dict[str, list[int]]


class WatcherMember(SessionPlans):
    """One consumer in a group of scheme 1. See the top of this file."""

    def __init__(self, settings: WatcherSettings, subscription: WatcherSubscription) -> None:
        super().__init__()
        self.settings = settings
        self.subscription = subscription
        self.state = WatcherState.UNREGISTERED
        self.owned: dict[TopicPartition, str] = {}
        """The thread of each partition that it reads."""
        self.rebalances = 0
        self.tries = 0
        self.conflicts = 0
        """Counts of its rebalances, for the comparison of schemes."""
        self._paths = GroupPaths(settings.group_id)
        self._id_path = self._paths.member(settings.consumer_id)
        self._assign = strategy(settings.partition_assignment_strategy)
        self._lost: set[TopicPartition] = set()
        """The partitions that it owned when a session ended, if its user has not been notified yet."""
        self._is_giving_up = False
        """Whether the user is being notified of a release."""
        self._claims: set[TopicPartition] = set()
        """Its own owner znodes: those of `owned`, and during an attempt those that it has claimed so far."""
        self._written: dict[TopicPartition, int] = {}
        """The offsets in ZooKeeper, as far as it knows: unchanged ones are not written again."""
        self._topics: set[str] = set()
        """The topics in the last rebalance, if a white or black list is subscribed."""
        self._unarmed: dict[str, ZnodeChange] = {}
        """Paths whose watches must be set, each with its last change."""
        self._seen: dict[str, Any] = {}
        """What the last rebalance saw at each path."""
        self._changed = False
        """Something has changed that needs a rebalance."""
        self._reported: set[Unreadable] = set()
        self._watch_all()

    # --- news --------------------------------------------------------------------------------------------------------

    def watched(self, event: Watched) -> None:
        """A watch has fired, or is lost."""
        if self._is_watched(event.path) and self._unarmed.get(event.path) in (None, ZnodeChange.LOST):
            self._unarmed[event.path] = event.change

    def session(self, event: SessionEvent) -> None:
        """The state of the session has changed.

        Without a connection the member continues, as in 0.8, because its session may be alive. Only when the session
        has ended does it know that it owns nothing. It does not commit then: others own its partitions.
        """
        if event is SessionEvent.EXPIRED and self.state is not WatcherState.CLOSED:
            self._sessions += 1
            self._forget()
        elif event is SessionEvent.CONNECTED:
            self.try_again()

    def try_again(self) -> None:
        """The user has seen that all attempts failed, and polls again."""
        if self.state is WatcherState.GAVE_UP:
            self._changed = True

    @property
    def wants_attention(self) -> bool:
        """Whether `attend` has something to do."""
        if self.state is WatcherState.CLOSED:
            return False
        without_id = self.state in (WatcherState.UNREGISTERED, WatcherState.REGISTERING)
        return without_id or bool(self._unarmed) or self._changed

    # --- plans -------------------------------------------------------------------------------------------------------

    def attend(self) -> Plan[None]:
        """Register if there is no id yet, set watches, and rebalance if something has changed."""
        self._plan_session = self._sessions
        try:
            yield from self._attend()
        except SessionExpiredError:
            if self._plan_session == self._sessions:  # the error arrived before the event
                self._forget()
        except ZooKeeperError as error:
            yield from ask(NotifyUser(Level.ERROR, f"ZooKeeper refused the consumer: {error}", error))
            yield from ask(Pause(max(1_000, self.settings.rebalance_backoff_ms)))

    def _attend(self) -> Plan[None]:
        yield from self._announce_lost()
        if self.state is WatcherState.UNREGISTERED:
            self._move(WatcherEvent.BEGINS)
        if self.state is WatcherState.REGISTERING:
            yield from self._register()
            self._move(WatcherEvent.REGISTERED)
            self._changed = True
        yield from self._arm()
        if self._changed:
            yield from self._synced_rebalance()

    def commit(self, positions: Mapping[TopicPartition, int]) -> Plan[list[TopicPartition]]:
        """Write offsets of partitions that it owns. Returns those that it does not own: they were not written.

        Neither owner nor version is checked: a member that does not know yet that it has lost a partition sets the
        group back. Errors of ZooKeeper are raised; some offsets may have been written by then. It may run while
        `GiveUp` or `StartFetching` are carried out, but not concurrently with other plans.
        """
        before, self._plan_session = self._plan_session, self._sessions
        try:
            yield from self._write_offsets(positions)
        finally:
            self._plan_session = before  # belongs to the plan that waits while the user is notified
        return [partition for partition in positions if partition not in self.owned]

    def committed(self, partitions: Iterable[TopicPartition]) -> Plan[dict[TopicPartition, int | None]]:
        """The group's committed offsets; None for a partition without one. It may run concurrently with other plans."""
        found: dict[TopicPartition, int | None] = {}
        for partition in partitions:
            path = self._paths.offset(znodes.check_name("a topic", partition.topic), partition.partition)
            offset: int | Unreadable = _NO_OFFSET
            with suppress(NoNodeError):
                data, _ = yield from ask(GetData(path))
                offset = znodes.read_offset(path, data)
            found[partition] = offset if isinstance(offset, int) and offset >= 0 else None
        return found

    def brokers(self) -> Plan[list[BrokerRegistration]]:
        """The brokers that are registered now. They are not watched: 0.8 looks for them when it finds no leader."""
        self._plan_session = self._sessions
        return (yield from self._read_registrations((yield from self._children(BROKER_IDS)) or ()))

    def shut_down(self) -> Plan[None]:
        """Stop fetching and commit. The session must be closed afterwards: id and owners are deleted with it."""
        self._plan_session = self._sessions
        try:
            positions = yield from ask(StopFetching())
            try:
                if self.settings.auto_commit_enable:
                    yield from self._write_offsets(positions)
            except ZooKeeperError as error:
                yield from ask(NotifyUser(Level.WARNING, f"the last offsets could not be committed: {error}"))
            yield from self._announce_lost()
            yield from self._announce_release()
        finally:
            self._move(WatcherEvent.CLOSES)
            self.owned.clear()

    # --- registering and watching ------------------------------------------------------------------------------------

    def _register(self) -> Plan[None]:
        """Create the id. If another session has created the same id, wait until that is gone, as long as it takes.

        That id may be left from an expired session (ZOOKEEPER-1740), from a process that was killed and started again
        with its `consumer_id`, or belong to a live consumer with the same one.
        """
        while True:
            now = yield from self._ask(TimeOfDay())
            data = self.subscription.registration(now).encode()
            if (yield from self._create_own(self._id_path, data)):
                return
            wait = self.settings.zookeeper_session_timeout_ms
            text = f"another session has the id {self.settings.consumer_id}; trying again in {wait} ms"
            yield from self._ask(NotifyUser(Level.WARNING, text))
            yield from self._ask(Pause(wait))

    def _watch_all(self) -> None:
        """Set every watch again. Those on a list's topics are set by the next rebalance, which reads them."""
        paths = [self._paths.ids]
        if self.subscription.is_list:
            paths.append(BROKER_TOPICS)
        else:
            paths += [znodes.topic_path(topic) for topic in self.subscription.streams]
        if self.settings.watch_brokers:
            paths.append(BROKER_IDS)
        self._unarmed = dict.fromkeys(paths, ZnodeChange.LOST)

    def _is_watched(self, path: str) -> bool:
        if path in (self._paths.ids, BROKER_IDS, BROKER_TOPICS):
            return True
        topic = path.removeprefix(f"{BROKER_TOPICS}/")
        return topic in self._topics or (not self.subscription.is_list and topic in self.subscription.streams)

    def _arm(self) -> Plan[None]:
        """Set the watches that are not set. This comes before a rebalance reads anything, so no change is lost in
        between."""
        while self._unarmed:
            path, change = next(iter(self._unarmed.items()))
            del self._unarmed[path]  # before asking: the next change may be reported before the answer is processed
            try:
                value = yield from self._set_watch(path)
            except ZooKeeperError:
                self._unarmed[path] = change
                raise
            if path == BROKER_TOPICS:
                changed = self._reads_other_topics(value or ())
            else:
                changed = change is not ZnodeChange.LOST or value != self._seen.get(path)
            self._changed = self._changed or changed

    def _reads_other_topics(self, existing: Iterable[str]) -> bool:
        try:
            return set(self.subscription.topics(existing)) != self._topics
        except TooCostlyError:
            return True  # the rebalance reports it

    def _set_watch(self, path: str) -> Plan[Any]:
        """Set the watch as 0.8's ZkClient does: `exists` also reports a znode that does not exist yet."""
        stat = yield from self._zk(Exists(path, watch=True))
        if path in (self._paths.ids, BROKER_IDS, BROKER_TOPICS):
            return (yield from self._children(path, watch=True))
        return _identity(stat)

    # --- rebalancing -------------------------------------------------------------------------------------------------

    def _synced_rebalance(self) -> Plan[None]:
        """Rebalance, with retries."""
        if self.state is not WatcherState.REBALANCING:
            self._move(WatcherEvent.NOTIFIED)
        self._changed = False
        self.rebalances += 1
        for left in reversed(range(self.settings.rebalance_max_retries)):
            self.tries += 1
            if (yield from self._try()):
                return
            self._move(WatcherEvent.FAILED)
            yield from self._stop_after_failure()
            yield from self._ask(Pause(self.settings.rebalance_backoff_ms))
            self._move(WatcherEvent.TRIES_AGAIN if left else WatcherEvent.OUT_OF_TRIES)
        text = f"{self.settings.consumer_id} can't rebalance after {self.settings.rebalance_max_retries} retries"
        yield from self._ask(NotifyUser(Level.ERROR, text, RebalanceFailedError(text)))

    def _try(self) -> Plan[bool]:
        try:
            return (yield from self._rebalance())
        except SessionExpiredError:
            raise
        except (ZooKeeperError, UnequalSubscriptionsError, TooCostlyError) as error:
            yield from self._ask(NotifyUser(Level.WARNING, f"an attempt to rebalance failed: {error}"))
            return False

    def _stop_after_failure(self) -> Plan[None]:
        """After a failed attempt: own nothing while waiting, or two members would wait for each other."""
        for step in (self._stop, self._release):
            try:
                yield from step()
            except SessionExpiredError:
                raise
            except ZooKeeperError as error:
                yield from self._ask(NotifyUser(Level.WARNING, f"after a failed attempt to rebalance: {error}"))

    def _rebalance(self) -> Plan[bool]:
        """One attempt; returns whether all of its partitions are claimed."""
        try:
            yield from self._zk(GetData(self._id_path))
        except NoNodeError:
            yield from self._register()  # another program has deleted it
        brokers = yield from self._read_brokers()
        if not brokers:
            yield from self._ask(NotifyUser(Level.WARNING, "no broker is registered in ZooKeeper; waiting for one"))
            self._unarmed.setdefault(BROKER_IDS, ZnodeChange.LOST)
            self._move(WatcherEvent.NO_BROKER)
            return True
        yield from self._stop()
        yield from self._release()
        view = yield from self._read_group()
        assignment = self._assign(view.threads, view.partitions)
        own = set(thread_ids(self.settings.consumer_id, max(view.topics.values(), default=0)))
        mine = {partition: thread for partition, thread in assignment.items() if thread in own}
        if not (yield from self._claim(mine)):
            return False
        readable = yield from self._readable(mine)
        readings = {}
        for partition, thread in readable.items():
            readings[partition] = ClaimedPartition(thread, (yield from self._read_offset(partition)))
        self.owned = readable
        self._move(WatcherEvent.CLAIMED)
        yield from self._ask(StartFetching(readings, assignment, brokers))
        return True

    def _stop(self) -> Plan[None]:
        """Stop fetching, and commit before anything is released: the next owner begins at the committed offsets."""
        positions = yield from self._ask(StopFetching())
        if self.settings.auto_commit_enable:
            yield from self._write_offsets(positions)

    def _announce_lost(self) -> Plan[None]:
        if self._lost:
            lost, self._lost = self._lost, set()
            yield from ask(GiveUp(lost, lost=True))

    def _announce_release(self) -> Plan[None]:
        """Notify the user of the partitions that will be released: after the commit, like 0.8.2's listener."""
        if self.owned:
            self._is_giving_up = True
            try:
                yield from ask(GiveUp(self.owned))
            finally:
                self._is_giving_up = False

    def _release(self) -> Plan[None]:
        yield from self._announce_release()
        self.owned.clear()
        self._check_session()
        for partition in sorted(self._claims):
            yield from self._delete_own(self._paths.owner(*partition))
            self._claims.discard(partition)

    def _claim(self, mine: Assignment) -> Plan[bool]:
        """Create the owner znodes. False if another owner's znode exists; then those that it created are deleted."""
        conflicts = []
        for partition, thread in sorted(mine.items()):
            if (yield from self._create_own(self._paths.owner(*partition), thread.encode())):
                self._claims.add(partition)
            else:
                conflicts.append(str(partition))
        if not conflicts:
            return True
        self.conflicts += len(conflicts)
        yield from self._ask(NotifyUser(Level.INFO, f"waiting for owners to release: {', '.join(conflicts)}"))
        return False

    # --- reading the group -------------------------------------------------------------------------------------------

    def _read_group(self) -> Plan[_GroupView]:
        ids = yield from self._children(self._paths.ids, watch=True)
        self._seen[self._paths.ids] = ids
        subscriptions: dict[str, WatcherSubscription] = {}
        for consumer_id in ids or ():
            found = yield from self._read_member(consumer_id)
            if found is not None:
                subscriptions[consumer_id] = found
        if self.settings.consumer_id not in subscriptions:
            raise NoNodeError(self._id_path)  # deleted since the attempt began: the next one writes it
        existing: list[str] = []
        if any(subscription.is_list for subscription in subscriptions.values()):
            existing = (yield from self._children(BROKER_TOPICS, watch=self.subscription.is_list)) or []
        topics = self.subscription.topics(existing)
        readers: dict[str, list[tuple[str, int]]] = {}
        for consumer_id, subscription in subscriptions.items():
            try:
                expanded = subscription.topics(existing)
            except TooCostlyError as error:
                yield from self._report(Unreadable(self._paths.member(consumer_id), str(error)))
                continue
            for topic, streams in expanded.items():
                readers.setdefault(topic, []).append((consumer_id, streams))
        self._topics = set(topics)
        partitions = {}
        for topic in topics:
            partitions[topic] = yield from self._read_partitions(topic)
        return _GroupView(topics, _threads(readers), partitions)

    def _read_member(self, consumer_id: str) -> Plan[WatcherSubscription | None]:
        """A member's subscription; None if it has left, or its id cannot be read."""
        path = self._paths.member(consumer_id)
        data = yield from self._data(path)
        if data is GONE:
            return None
        if consumer_id == self.settings.consumer_id:
            return self.subscription
        found = znodes.read_member(path, data)
        if isinstance(found, Unreadable):
            yield from self._report(found)
            return None
        if found.poison is not None:
            yield from self._report(Unreadable(path, f"{found.poison}; it stops Java's 0.8 consumers"))
        try:
            return WatcherSubscription(found.pattern, found.subscription)
        except ConfigError as error:
            yield from self._report(Unreadable(path, str(error)))
            return None

    def _read_partitions(self, topic: str) -> Plan[list[int]]:
        """A topic's partitions; none if the topic does not exist, or its znode cannot be read."""
        path = znodes.topic_path(topic)
        try:
            data, stat = yield from self._zk(GetData(path, watch=True))
        except NoNodeError:
            self._seen[path] = None
            return []
        self._seen[path] = _identity(stat)
        found = znodes.read_topic(topic, data)
        if isinstance(found, Unreadable):
            yield from self._report(found)
            return []
        return list(found.partitions)

    def _readable(self, mine: Assignment) -> Plan[Assignment]:
        """Those of the member's partitions that can exist on a broker. The rest is claimed too, because the other
        members also assign it."""
        for topic in sorted({partition.topic for partition in mine if not znodes.is_topic_name(partition.topic)}):
            yield from self._report(Unreadable(znodes.topic_path(topic), "Kafka allows no topic with such a name"))
        return {partition: thread for partition, thread in mine.items() if znodes.is_topic_name(partition.topic)}

    def _read_brokers(self) -> Plan[list[BrokerRegistration]]:
        """The brokers from which this consumer can read."""
        names = yield from self._children(BROKER_IDS, watch=self.settings.watch_brokers)
        self._seen[BROKER_IDS] = names
        return (yield from self._read_registrations(names or ()))

    def _read_registrations(self, names: Iterable[str]) -> Plan[list[BrokerRegistration]]:
        brokers = []
        for name in names:
            path = f"{BROKER_IDS}/{name}"
            data = yield from self._data(path)
            if data is GONE:
                continue
            found = znodes.read_broker(name, data)
            if isinstance(found, Unreadable):
                yield from self._report(found)
            elif found.endpoint(self.settings.security_protocol) is None:
                protocol = self.settings.security_protocol
                why = f"it has no listener for this consumer, whose security_protocol is {protocol}"
                yield from self._report(Unreadable(path, why))
            else:
                brokers.append(found)
        return brokers

    def _report(self, found: Unreadable) -> Plan[None]:
        """Log it once."""
        if found not in self._reported:
            self._reported.add(found)
            yield from self._ask(NotifyUser(Level.WARNING, f"skipped: {found}"))

    # --- offsets -----------------------------------------------------------------------------------------------------

    def _read_offset(self, partition: TopicPartition) -> Plan[int | None]:
        path = self._paths.offset(*partition)
        data = yield from self._data(path)
        self._written[partition] = _NO_OFFSET
        if data is GONE:
            return None
        found = znodes.read_offset(path, data)
        if isinstance(found, Unreadable):
            yield from self._ask(NotifyUser(Level.ERROR, f"no committed offset for {partition}: {found}"))
            return None
        self._written[partition] = found
        return found if found >= 0 else None

    def _write_offsets(self, positions: Mapping[TopicPartition, int]) -> Plan[None]:
        for partition, offset in positions.items():
            if partition in self.owned:
                yield from self._write_offset(partition, offset)

    def _write_offset(self, partition: TopicPartition, offset: int) -> Plan[None]:
        if partition not in self.owned or self._written.get(partition) == offset:
            return
        path, data = self._paths.offset(*partition), str(offset).encode()
        while True:
            try:
                yield from self._zk(SetData(path, data))
                break
            except NoNodeError:
                yield from self._make(path.rpartition("/")[0])
            try:
                yield from self._zk(Create(path, data))
                break
            except NodeExistsError:
                continue
        self._written[partition] = offset

    # --- states ------------------------------------------------------------------------------------------------------

    def _move(self, happening: WatcherEvent) -> None:
        self.state = TRANSITIONS[self.state, happening]

    def _forget(self) -> None:
        """The session has ended, and with it its id, owner znodes and watches. Nothing is deleted or committed."""
        self._move(WatcherEvent.EXPIRED)
        if not self._is_giving_up:
            self._lost |= set(self.owned)
        self.owned.clear()
        self._claims.clear()
        self._watch_all()


def _threads(readers: Mapping[str, list[tuple[str, int]]]) -> dict[str, list[str]]:
    """The threads by topic. Topics with the same readers share a list: there may be thousands of both."""
    lists: dict[tuple[tuple[str, int], ...], list[str]] = {}
    found = {}
    for topic, members in readers.items():
        key = tuple(members)
        if key not in lists:
            lists[key] = [thread for member in members for thread in thread_ids(*member)]
        found[topic] = lists[key]
    return found


def _identity(stat: Stat | None) -> tuple[int, int] | None:
    """Distinguishes one state of a znode from another."""
    return (stat.czxid, stat.mzxid) if stat is not None else None
