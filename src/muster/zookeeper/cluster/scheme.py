"""A cluster of brokers on ZooKeeper: the members, the controller, the leader of each partition.

Theory, as in Kafka until KRaft. Each broker has an ephemeral znode in `/brokers/ids`. One broker is the controller: the
one that created the ephemeral `/controller`. In the same transaction it increments `/controller_epoch`, and every write
of a controller checks the version of that znode. So if two brokers both believe that they are the controller (the older
one was frozen, and does not know that its session has ended), only the newer one can write.

Only the controller writes partitions' states: a leader among the live replicas, otherwise -1, and an epoch that
increases with each change. It also completes deletions. Requests to it are written to ZooKeeper: a topic is created by
writing its registration, deleted by a name in `/admin/delete_topics`. So any broker, and Kafka's own tools of that
time, can make them.

    a broker dies       its znode is deleted with its session; the controller writes -1 for partitions that only it had,
                        and for those that a broker reports that it cannot open
    it is back          it registers; the controller makes it the leader again, under a new epoch
    the controller dies the others see that `/controller` is deleted, and race for it; the new one catches up

All work is done in turns. Every event wakes `ClusterMember.turn`, which compares the whole state and does what is left
to do. So a turn that was interrupted anywhere, by a lost connection or the end of the process, is completed by the
next.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from muster.errors import ConfigError, MusterError
from muster.zookeeper.base.image import DELETE_TOPICS, NO_CONTROLLER, ClusterImage, PartitionImage, TopicImage
from muster.zookeeper.base.operations import (
    BadVersionError,
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Plan,
    SessionEvent,
    SessionId,
    SetData,
    Sync,
    Watched,
    Write,
    ask,
    create_ephemeral,
    ensure_path,
    side_by_side,
)
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    SLOTS,
    TOPIC_CONFIGS,
    BrokerRegistration,
    Controller,
    LeaderAndIsr,
    TopicRegistration,
    broker_path,
    partition_state_path,
    read_broker,
    read_controller_epoch,
    read_topic,
    topic_config_data,
    topic_config_path,
    topic_path,
)
from muster.zookeeper.cluster.data_dirs import DATA_DIRS, DataDir, claim_data_dir, refusal, registered_data_dir
from muster.zookeeper.cluster.deletions import DELETIONS, notes

CLUSTER_ID = "/cluster/id"
MUSTER_MARK = DATA_DIRS
"""A path that exists in every cluster of muster's brokers, and in no cluster of Apache Kafka."""
PRODUCER_IDS = "/latest_producer_id_block"
PERSISTENT = ("/consumers", BROKER_IDS, BROKER_TOPICS, TOPIC_CONFIGS, "/config/changes", DELETE_TOPICS, DELETIONS)
"""The znodes that a broker creates before it registers, with their parents; all but the last as Kafka does."""

NO_LEADER = -1
WRITES_OF_A_MULTI = 200
REFUSALS_OF_A_TURN = 20
"""A turn that was refused this many times is given up, and retried after a pause."""
PRODUCER_IDS_OF_A_BLOCK = 1_000
EPOCHS_SKIPPED = 1_000


class IdTakenError(MusterError):
    """Another session has registered under this process's id: another process, or one that was killed and whose session
    has not ended yet."""


class BrokerIdTakenError(IdTakenError):
    """Another broker is registered with this id."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"another broker is registered with the id {broker_id}")
        self.broker_id = broker_id


class Term(NamedTuple):
    """The term of one controller."""

    epoch: int
    version: int
    """The version of `/controller_epoch`, which each of its writes checks."""

    @property
    def check(self) -> Check:
        """The part of a multi that refuses it once there is a newer controller."""
        return Check(CONTROLLER_EPOCH, self.version)


# --- rules without ZooKeeper -----------------------------------------------------------------------------------------


def next_state(
    replicas: Sequence[int], state: LeaderAndIsr | None, alive: Iterable[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """The state that a partition should have; None if it has that state, or nothing can be done.

    A partition that never had a leader waits for its first live replica. Only that replica is in sync, however many
    replicas Kafka's tools have asked for: these brokers do not replicate. Later only replicas that were in sync may
    lead, so that no acknowledged record is lost; without one of them the leader is -1 and `isr` names the last ones.
    """
    alive = set(alive)
    if state is None:
        first = next((replica for replica in replicas if replica in alive), None)
        return LeaderAndIsr(first, 0, [first], controller_epoch) if first is not None else None
    if state.leader in alive and state.leader in replicas:
        return None
    in_sync = [replica for replica in state.isr if replica in alive and replica in replicas]
    if not in_sync:
        if state.leader == NO_LEADER:
            return None
        return LeaderAndIsr(NO_LEADER, state.leader_epoch + 1, state.isr, controller_epoch)
    leader = next(replica for replica in replicas if replica in in_sync)
    return LeaderAndIsr(leader, state.leader_epoch + 1, in_sync, controller_epoch)


def spread(partitions: int, brokers: Iterable[int], load: Mapping[int, int]) -> dict[int, list[int]]:
    """One replica for each partition of a new topic, spread evenly over the brokers, the least loaded first."""
    order = sorted(brokers, key=lambda broker: (load.get(broker, 0), broker))
    return {number: [order[number % len(order)]] for number in range(partitions)}


def load_of(topics: Iterable[TopicImage]) -> dict[int, int]:
    """How many replicas each broker has."""
    load: dict[int, int] = {}
    for topic in topics:
        for replicas in topic.registration.partitions.values():
            for broker in replicas:
                load[broker] = load.get(broker, 0) + 1
    return load


# --- what any broker may do ------------------------------------------------------------------------------------------


def cluster_id(fresh: str) -> Plan[str]:
    """The id of the cluster, in Kafka's format; if there is none yet, it becomes `fresh`."""
    while True:
        try:
            data, _ = yield from ask(GetData(CLUSTER_ID))
            return _id_of(data)
        except NoNodeError:
            yield from ensure_path("/cluster")
        try:
            yield from ask(Create(CLUSTER_ID, b'{"version":"1","id":"%s"}' % fresh.encode()))
        except NodeExistsError:
            continue
        return fresh


def join_cluster(fresh: str) -> Plan[str]:
    """`cluster_id` of a cluster of these brokers, which the first of them marks as theirs.

    Raises:
        ConfigError: it is a cluster of Apache Kafka. A broker of another kind among its brokers, or as their
            controller, would damage its data.
    """
    # In this order: another of these brokers marks the cluster before it does anything else.
    has_controller = yield from ask(Exists(CONTROLLER_EPOCH))
    brokers = yield from _below(BROKER_IDS)
    if (yield from ask(Exists(MUSTER_MARK))) is None:
        if has_controller or brokers[:-1]:
            raise ConfigError("this ZooKeeper has an Apache Kafka cluster; give this one a chroot: HOST:PORT/CHROOT")
        if (yield from ask(Exists(SLOTS))) is not None:
            raise ConfigError(
                "this ZooKeeper has coordinators that run next to Apache Kafka; give this cluster a chroot: "
                "HOST:PORT/FOLDER"
            )
        yield from ensure_path(MUSTER_MARK)
    return (yield from cluster_id(fresh))


def check_cluster(expected: str) -> Plan[None]:
    """Make sure that this is still the same cluster.

    Raises:
        ConfigError: it is another one, or none: ZooKeeper was emptied, and missing topics were not deleted.
    """
    found = yield from _data_of(CLUSTER_ID)
    if found is None or _id_of(found) != expected:
        raise ConfigError(f"ZooKeeper has lost cluster {expected}: {CLUSTER_ID} contains {found!r}")


def cluster_id_there() -> Plan[str | None]:
    """The id of the cluster; None if there is none."""
    found = yield from _data_of(CLUSTER_ID)
    return None if found is None else _id_of(found)


def _data_of(path: str) -> Plan[bytes | None]:
    try:
        data, _ = yield from ask(GetData(path))
    except NoNodeError:
        return None
    return data or b""


def reserve_producer_ids(broker_id: int, now: int) -> Plan[range]:
    """Ids for idempotent producers that no other broker assigns, reserved as Kafka does.

    `now` is the wall-clock time in milliseconds, from which a lower limit of the ids is derived. A ZooKeeper that was
    restored from an older backup would assign ids that producers already have: logs would mistake the records of one
    producer for those of another, and drop them as duplicates.

    Raises:
        ConfigError: the znode cannot be parsed; a guess could assign an id twice.
    """
    while True:
        try:
            data, stat = yield from ask(GetData(PRODUCER_IDS))
        except NoNodeError:
            with suppress(NodeExistsError):
                yield from ask(Create(PRODUCER_IDS))
            continue
        first = max(_first_free_id(data), now * PRODUCER_IDS_OF_A_BLOCK)
        ids = range(first, first + PRODUCER_IDS_OF_A_BLOCK)
        block = {"version": 1, "broker": broker_id, "block_start": str(ids[0]), "block_end": str(ids[-1])}
        try:
            yield from ask(SetData(PRODUCER_IDS, json.dumps(block, separators=(",", ":")).encode(), stat.version))
        except BadVersionError:
            continue  # another broker has taken it
        return ids


def _first_free_id(data: bytes | None) -> int:
    if not data:
        return 0
    try:
        return int(json.loads(data)["block_end"]) + 1
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{PRODUCER_IDS} in ZooKeeper is not a block of producer ids: {data!r}") from None


def live_brokers(known: Collection[int]) -> Plan[list[int]]:
    """The brokers that are registered now; those that are `known` can be parsed.

    An image may lack a broker that has just reported that it is ready, although its user expects it to lead partitions
    of the next topic. So the brokers are read again for each topic, as Kafka's controller does.
    """
    yield from ask(Sync(BROKER_IDS))
    found = []
    for name in (yield from ask(GetChildren(BROKER_IDS))):
        if name.isdecimal() and int(name) in known:
            found.append(int(name))
            continue
        with suppress(NoNodeError):
            data, _ = yield from ask(GetData(f"{BROKER_IDS}/{name}"))
            registration = read_broker(name, data)
            if isinstance(registration, BrokerRegistration):
                found.append(registration.broker_id)
    return found


def create_topic(name: str, registration: TopicRegistration, settings: Mapping[str, str]) -> Plan[None]:
    """Create a topic; its partitions have leaders once the controller has seen it. Raises NodeExistsError."""
    config, topic = topic_config_path(name), topic_path(name)
    try:
        yield from ask(Multi(Create(topic, registration.encode()), Create(config, topic_config_data(settings))))
    except NodeExistsError as error:
        if error.path != config:
            raise
        # Settings of a deleted topic, or written in advance: the new topic has its own.
        again = Multi(Create(topic, registration.encode()), SetData(config, topic_config_data(settings)))
        yield from ask(again)


def request_deletion(name: str) -> Plan[None]:
    """Ask the controller to delete a topic. A second request changes nothing."""
    try:
        yield from ask(Create(f"{DELETE_TOPICS}/{name}"))
    except NodeExistsError:
        return


def raise_epoch(name: str, number: int, known: PartitionImage, newest: int) -> Plan[None]:
    """Raise a partition's leader epoch above one that was used before: an older backup of ZooKeeper was restored.

    The partition's leader writes it, since no other broker knows the old epoch. Otherwise clients with a newer epoch
    would not accept any leader, and epochs in the log would decrease. It skips epochs that clients may have learned
    while the leader was down: one, unless more were lost.
    """
    skipped = EPOCHS_SKIPPED if known.state.leader_epoch < newest else 1
    state = known.state._replace(leader_epoch=newest + 1 + skipped)
    with suppress(BadVersionError, NoNodeError):  # the image is stale, and will be read again
        yield from ask(SetData(partition_state_path(name, number), state.encode(), known.version))


# --- the controller --------------------------------------------------------------------------------------------------


def elect(broker_id: int, now: int) -> Plan[Term | None]:
    """Become the controller; None if another broker is. `now` is the wall-clock time in milliseconds."""
    while True:
        try:
            data, stat = yield from ask(GetData(CONTROLLER_EPOCH))
        except NoNodeError:
            with suppress(NodeExistsError):
                yield from ask(Create(CONTROLLER_EPOCH, b"0"))
            continue
        epoch = read_controller_epoch(data)
        term = Term(0 if isinstance(epoch, Unreadable) else epoch + 1, stat.version + 1)
        claim = Create(CONTROLLER, Controller(broker_id, now).encode(), ephemeral=True)
        try:
            yield from ask(Multi(claim, SetData(CONTROLLER_EPOCH, b"%d" % term.epoch, stat.version)))
        except NodeExistsError:
            return None
        except BadVersionError:
            continue  # another broker was the controller for a moment, and may be gone again
        return term


def settle(term: Term, image: ClusterImage) -> Plan[int]:
    """Write the states that differ from what they should be, and complete deletions; returns the number of writes.

    Raises the error of a refused write: BadVersionError of `/controller_epoch` if there is a newer controller, another
    error if the image is stale.
    """
    writes = 0
    for name in sorted(image.deletions):
        writes += yield from _delete(term, image, name)
    for name, topic in list(image.topics.items()):
        if name in image.deletions:
            continue
        if topic.registration.topic_id is None:
            writes += yield from _give_id(term, image, name)
        writes += yield from _lead(term, image, name, topic)
    return writes


def _give_id(term: Term, image: ClusterImage, name: str) -> Plan[int]:
    """Give an id to a topic that Kafka's tools before 2.8 created without one, as Kafka's controller does."""
    path = topic_path(name)
    data, stat = yield from ask(GetData(path))
    found = read_topic(name, data)
    if isinstance(found, TopicRegistration) and found.topic_id is None:  # otherwise the image is stale
        named = found._replace(topic_id=_id_of_creation(name, stat.czxid), version=3)
        yield from ask(Multi(term.check, SetData(path, named.encode(), stat.version)))
    image.reread(path)
    return 1


def _id_of_creation(name: str, czxid: int) -> str:
    """An id that no other topic has, not even a former topic of this name: that was created by another transaction."""
    raw = bytearray(hashlib.sha256(f"{name}/{czxid}".encode()).digest()[:16])
    raw[0] &= 0x7F  # as text it must not begin with '-'
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _lead(term: Term, image: ClusterImage, name: str, topic: TopicImage) -> Plan[int]:
    due: dict[int, LeaderAndIsr] = {}
    for number, replicas in topic.registration.partitions.items():
        if partition_state_path(name, number) in image.unreadable:
            continue
        known = topic.states.get(number)
        able = image.able(topic, number)
        state = next_state(replicas, None if known is None else known.state, able, term.epoch)
        if state is not None:
            due[number] = state
    if not due:
        return 0
    groups: list[list[Write[Any]]] = []
    if any(number not in topic.states for number in due):
        there = yield from _partitions_of(name)
        if there is None:
            groups.append([Create(f"{topic_path(name)}/partitions")])
        groups += [_new_state(name, number, due[number], there or []) for number in due if number not in topic.states]
    for number in due:
        if number in topic.states:
            path = partition_state_path(name, number)
            groups.append([SetData(path, due[number].encode(), topic.states[number].version)])
    yield from _write(term, groups)
    for number, state in due.items():
        version = topic.states[number].version + 1 if number in topic.states else 0
        topic.states[number] = PartitionImage(state, version)
    return len(due)


def _new_state(name: str, number: int, state: LeaderAndIsr, there: Sequence[str]) -> list[Write[Any]]:
    path = partition_state_path(name, number)
    parent = [] if str(number) in there else [Create(path.rpartition("/")[0])]
    return [*parent, Create(path, state.encode())]


def _partitions_of(name: str) -> Plan[list[str] | None]:
    try:
        return (yield from ask(GetChildren(f"{topic_path(name)}/partitions")))
    except NoNodeError:
        return None


def _write(term: Term, groups: Iterable[list[Write[Any]]]) -> Plan[None]:
    """Write in order, in batches, each of them only if there is no newer controller."""
    waiting: list[Write[Any]] = []
    for group in groups:
        if len(waiting) + len(group) > WRITES_OF_A_MULTI:
            yield from ask(Multi(term.check, *waiting))
            waiting = []
        waiting += group
    if waiting:
        yield from ask(Multi(term.check, *waiting))


def _delete(term: Term, image: ClusterImage, name: str) -> Plan[int]:
    """Delete a topic's znodes, the deletion request last, so that an interrupted deletion is found again. The brokers'
    notes come first: without one, a broker keeps a topic that disappears."""
    noted = yield from _note_deletion(image, name)
    below = yield from _below(topic_path(name))
    config = yield from _below(topic_config_path(name))
    asked = yield from _below(f"{DELETE_TOPICS}/{name}")
    deletes: list[list[Write[Any]]] = [[Delete(path)] for path in (*below, *config, *asked)]
    writes = [*noted, *deletes]
    yield from _write(term, writes)
    image.deletions.discard(name)
    image.topics.pop(name, None)
    return len(writes)


def _note_deletion(image: ClusterImage, name: str) -> Plan[list[list[Write[Any]]]]:
    """The notes that are still missing, for all brokers: a broker without the topic's records may have groups with its
    offsets."""
    try:
        data, stat = yield from ask(GetData(topic_path(name)))
    except NoNodeError:
        return []  # an interrupted deletion: of the topic's znodes, its own is deleted last
    found = read_topic(name, data)
    if isinstance(found, Unreadable):
        return []  # its id is not known
    topic_id = found.topic_id or _id_of_creation(name, stat.czxid)
    brokers = {*image.brokers, *(replica for replicas in found.partitions.values() for replica in replicas)}
    return [[note] for note in (yield from notes(name, topic_id, brokers))]


def _below(path: str) -> Plan[list[str]]:
    """A znode and all znodes below it, children before parents; empty if it does not exist."""
    try:
        children = yield from ask(GetChildren(path))
    except NoNodeError:
        return []
    below = yield from side_by_side(_below(f"{path}/{child}") for child in children)
    return [*chain.from_iterable(below), path]


def _id_of(data: bytes | None) -> str:
    try:
        found = json.loads(data or b"")
    except ValueError:
        found = None
    name = found.get("id") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{CLUSTER_ID} in ZooKeeper is not a cluster id: {data!r}")
    return name


# --- a broker's part -------------------------------------------------------------------------------------------------


class ClusterMember:
    """One broker's part in the cluster: its registration, its image, and the controller's work while it is controller.

    The owner of the session passes on its events (`on_event`), and runs `turn` after each that requires it, and again
    after a failed turn.
    """

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.cluster_id: str | None = None
        """Set once it is known. In another cluster this broker does not register."""
        self.data_dir: DataDir | None = None
        """Set once it is known. A broker of this id with another folder does not register."""
        self.given_up: str | None = None
        """The id of a data folder that the operator has given up."""
        self.image = ClusterImage()
        self.term: Term | None = None
        """Set while this broker believes that it is the controller."""
        self.is_registered = False

    def on_event(self, event: Watched | SessionEvent) -> bool:
        """Handle an event of the session; returns whether a turn is due."""
        if event is SessionEvent.EXPIRED:
            self.term, self.is_registered = None, False
        return self.image.changed(event) or event is SessionEvent.CONNECTED

    def turn(self, registration: BrokerRegistration, now: int) -> Plan[None]:
        """Do what is left to do: register, read what has changed, control the cluster if no other broker does.

        Raises:
            BrokerIdTakenError: retry until the session of a killed broker has ended.
            ConfigError: ZooKeeper no longer has the same cluster.
            ZooKeeperError: an operation failed; the next turn begins where this one ended.
        """
        if not self.is_registered:
            yield from self._register(registration)
        refusals = 0
        while True:
            yield from self.image.refresh()
            if self.term is not None and self.image.controller_id != self.broker_id:
                self.term = None  # another broker is the controller, or `/controller` was deleted by hand
            if self.term is None and not (yield from self._take_control(now)):
                return
            assert self.term is not None
            try:
                written = yield from settle(self.term, self.image)
            except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError) as error:
                yield from self._reread(error.path)
                refusals += 1
                if refusals == REFUSALS_OF_A_TURN:
                    raise
                continue
            if not written and self.image.is_current:
                return

    def _register(self, registration: BrokerRegistration) -> Plan[None]:
        if self.cluster_id is not None:
            yield from check_cluster(self.cluster_id)
        for path in PERSISTENT:
            yield from ensure_path(path)
        if self.data_dir is not None:
            yield from self._check_data_dir(self.data_dir)
        try:
            yield from create_ephemeral(broker_path(self.broker_id), registration.encode())
        except NodeExistsError:
            raise BrokerIdTakenError(self.broker_id) from None
        if self.data_dir is not None:  # only a registered broker may claim it
            yield from claim_data_dir(self.broker_id, self.data_dir, self.given_up)
        self.is_registered = True

    def _check_data_dir(self, mine: DataDir) -> Plan[None]:
        found = yield from registered_data_dir(self.broker_id)
        why = refusal(self.broker_id, found, mine, self.given_up)
        if why is not None:
            raise ConfigError(why)

    def _take_control(self, now: int) -> Plan[bool]:
        """Become the controller if there is none; returns whether this broker is the controller now."""
        if self.image.controller_id == self.broker_id and not (yield from self._give_up_a_lost_claim()):
            return False
        if self.image.controller_id not in (NO_CONTROLLER, self.broker_id):
            return False
        if self.cluster_id is not None:  # a ZooKeeper that was emptied has no controller either
            yield from check_cluster(self.cluster_id)
        self.term = yield from elect(self.broker_id, now)
        if self.term is None:
            yield from self._reread(CONTROLLER)
            return False
        self.image.controller_id = self.broker_id
        return True

    def _give_up_a_lost_claim(self) -> Plan[bool]:
        """Delete `/controller` if it is this session's. The sequence: the claim is sent, the connection is lost, the
        claim was carried out. Its term is unknown, and `/controller_epoch` could already be a later controller's."""
        try:
            _, stat = yield from ask(GetData(CONTROLLER))
            if stat.ephemeral_owner != (yield from ask(SessionId())):
                return False  # it belongs to the previous session, and ends with it
            yield from ask(Delete(CONTROLLER, stat.version))
        except NoNodeError:
            return True
        return True

    def _reread(self, path: str) -> Plan[None]:
        """A write was refused because it was based on stale data. A read after a sync is not stale."""
        if path == CONTROLLER_EPOCH:
            self.term = None
        yield from ask(Sync(path))
        self.image.forget()
        yield from self.image.refresh()
