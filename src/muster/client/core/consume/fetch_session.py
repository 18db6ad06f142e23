"""Fetch sessions (KIP-227): send only what has changed since the last fetch from a broker.

A session belongs to one broker. Epoch 0 opens one with a full request; each later request carries the next epoch and
only the partitions that were added or changed, and those to be forgotten. After any error about the session it is
opened again: correctness never depends on it.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from muster.protocol.primitives import ZERO_UUID

INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class FetchSpec(NamedTuple):
    """What to fetch from one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[TopicPartition, FetchSpec] = {}
        """The partitions that the broker knows, once it has answered."""

    def request(self, wanted: dict[TopicPartition, FetchSpec], max_bytes_per_partition: int) -> FetchRequest:
        """A request for these partitions; the caller sets the rest (wait time, sizes, isolation)."""
        changed, forgotten = wanted, {}
        if self.epoch != INITIAL_EPOCH:
            changed = {p: spec for p, spec in wanted.items() if self.partitions.get(p) != spec}
            # A topic that was created again has another id: the old id is forgotten, and the new one is added.
            forgotten = {
                p: spec for p, spec in self.partitions.items() if p not in wanted or wanted[p].topic_id != spec.topic_id
            }
        self.partitions = dict(wanted)
        return FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=_topics(changed, max_bytes_per_partition),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def on_response(self, error: ErrorCode, session_id: int) -> None:
        """Process the broker's answer about the session."""
        if error is not ErrorCode.NONE or session_id == 0:
            self.reset()
            return
        self.epoch = 1 if session_id != self.session_id else self.epoch % 0x7FFFFFFF + 1
        self.session_id = session_id

    def reset(self) -> None:
        """Restart with a full request: the session is lost, or it is unknown what the broker processed."""
        self.session_id = 0
        self.epoch = INITIAL_EPOCH

    def closing_request(self) -> FetchRequest | None:
        """A request that closes the session at the broker; None if there is no session."""
        if self.session_id == 0:
            return None
        return FetchRequest(session_id=self.session_id, session_epoch=FINAL_EPOCH)


def _topics(partitions: dict[TopicPartition, FetchSpec], max_bytes: int) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for partition, spec in partitions.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = FetchTopic(partition.topic, spec.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=partition.partition,
                current_leader_epoch=spec.leader_epoch,
                fetch_offset=spec.offset,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(partitions: dict[TopicPartition, FetchSpec]) -> list[ForgottenTopic]:
    topics: dict[str, ForgottenTopic] = {}
    for partition, spec in partitions.items():
        topic = topics.setdefault(partition.topic, ForgottenTopic(partition.topic, spec.topic_id))
        topic.partitions.append(partition.partition)
    return list(topics.values())


def all_have_ids(partitions: dict[TopicPartition, FetchSpec]) -> bool:
    """Whether a version that names topics only by id can be used."""
    return all(spec.topic_id != ZERO_UUID for spec in partitions.values())
