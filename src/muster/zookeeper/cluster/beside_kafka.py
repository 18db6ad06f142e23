"""A coordinator next to Apache Kafka's brokers in ZooKeeper mode: it registers, and reads what they write.

Theory. Kafka's own znodes are read and never written. The coordinators write below `/muster`, which Kafka ignores:
their registrations and the groups, as in a cluster of muster's brokers (slots.py, group_store.py), and

    /muster/kafka     the id of Kafka's cluster, once it was seen

Offsets of a deleted topic are removed permanently. So the coordinator first makes sure that ZooKeeper still has the
cluster of these groups: a ZooKeeper that was emptied, or has another Kafka cluster, lacks these topics too.

Brokers of muster coordinate their groups themselves, in the same znodes. A ZooKeeper has one or the other.
"""

from __future__ import annotations

from muster.errors import ConfigError
from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.operations import (
    Create,
    Exists,
    GetData,
    NodeExistsError,
    NoNodeError,
    Plan,
    SessionEvent,
    Watched,
    ask,
    create_ephemeral,
    ensure_path,
)
from muster.zookeeper.base.znodes import COORDINATORS, CoordinatorRegistration, broker_path, coordinator_path
from muster.zookeeper.cluster.scheme import MUSTER_MARK, IdTakenError, check_cluster, cluster_id_there

KAFKA = "/muster/kafka"


class CoordinatorIdTakenError(IdTakenError):
    """Another coordinator is registered with this id."""

    def __init__(self, coordinator_id: int) -> None:
        super().__init__(f"another coordinator is registered with the id {coordinator_id}")


class BesideKafka:
    """One coordinator. The owner of the session passes on its events (`on_event`) and runs `turn` after each that
    requires it, and again after a failed turn."""

    def __init__(self, coordinator_id: int) -> None:
        self.coordinator_id = coordinator_id
        self.cluster_id: str | None = None
        """The id of Kafka's cluster; None until it is seen, and for Kafka before 0.10.1."""
        self.image = ClusterImage()
        self.is_registered = False
        self._was_registered = False

    def on_event(self, event: Watched | SessionEvent) -> bool:
        """Handle an event of the session; returns whether a turn is due."""
        if event is SessionEvent.EXPIRED:
            self.is_registered = False
        return self.image.changed(event) or event is SessionEvent.CONNECTED

    def turn(self, registration: CoordinatorRegistration) -> Plan[None]:
        """Register, and learn what has changed.

        Raises:
            CoordinatorIdTakenError: try again until the session of a coordinator that was killed has ended.
            ConfigError: this coordinator may not run here, or Kafka's cluster is no longer the same.
            ZooKeeperError: what an operation raised; the next turn begins where this one ended.
        """
        if not self.is_registered:
            yield from self._register(registration)
        yield from self.image.refresh()
        if self.cluster_id is None and (self.image.brokers or self.image.topics):
            yield from self._learn_cluster()

    def check(self) -> Plan[None]:
        """Make sure that ZooKeeper has not lost its data. Raises ConfigError."""
        if self.cluster_id is not None:
            yield from check_cluster(self.cluster_id)

    def _register(self, registration: CoordinatorRegistration) -> Plan[None]:
        if (yield from ask(Exists(MUSTER_MARK))) is not None:
            raise ConfigError(
                "this ZooKeeper has a cluster of muster's brokers, which coordinate their groups themselves"
            )
        taken = yield from ask(Exists(broker_path(self.coordinator_id)))
        if taken is not None and not self._was_registered:
            raise ConfigError(f"a broker already has id {self.coordinator_id}: give the coordinator another id")
        yield from self._learn_cluster()
        yield from ensure_path(COORDINATORS)
        try:
            yield from create_ephemeral(coordinator_path(self.coordinator_id), registration.encode())
        except NodeExistsError:
            raise CoordinatorIdTakenError(self.coordinator_id) from None
        self.is_registered = self._was_registered = True

    def _learn_cluster(self) -> Plan[None]:
        """Read the id of Kafka's cluster; the first coordinator that sees the cluster stores its id."""
        while True:
            try:
                data, _ = yield from ask(GetData(KAFKA))
            except NoNodeError:
                found = yield from cluster_id_there()
                if found is None:
                    return
                yield from ensure_path(KAFKA.rpartition("/")[0])
                try:
                    yield from ask(Create(KAFKA, found.encode()))
                except NodeExistsError:
                    continue
                self.cluster_id = found
                return
            expected = (data or b"").decode(errors="replace")
            yield from check_cluster(expected)
            self.cluster_id = expected
            return
