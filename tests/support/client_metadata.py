"""Hand-made answers for a client's metadata."""

from __future__ import annotations

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m

FLIGHTS = TopicPartition("flights", 0)
ID = bytes(range(16))


class Cluster:
    """Hand-made answers for a `ClusterMetadata`."""

    def __init__(self, *, settings=None, **more):
        self.now = 1_000_000
        self.config = ClientConfig(retry_backoff_ms=100, retry_backoff_max_ms=1000, **settings or {})
        self.metadata = ClusterMetadata(self.config, **more)
        self.brokers = [m.MetadataResponseBroker(1, "one", 9092), m.MetadataResponseBroker(2, "two", 9092)]

    @classmethod
    def knowing(cls, *topics, **more):
        """A client that is interested in flights, and has metadata of these topics."""
        made = cls(**more)
        made.metadata.add_interest({"flights"})
        made.learn(*topics)
        return made

    def ask(self):
        (send,) = self.metadata.poll(self.now)
        assert send.node_id == LEAST_LOADED
        assert not self.metadata.poll(self.now), "one at a time"
        return send

    def quiet(self):
        assert not self.metadata.poll(self.now)

    def deadline(self):
        found = self.metadata.next_deadline(self.now)
        assert found is not None
        return found

    def reply(self, send, *topics, **more):
        send.on_reply(m.MetadataResponse(brokers=self.brokers, cluster_id="c", topics=list(topics), **more), self.now)

    def learn(self, *topics):
        self.reply(self.ask(), *topics)

    def refresh(self, *topics):
        """Its metadata was found to be stale; it requests new metadata once the backoff is over."""
        self.metadata.request_update(self.now)
        self.now += 1_000
        self.learn(*topics)


def topic(name="flights", leader=1, epoch=3, topic_id=ID, code=0, count=1):
    parts = [m.MetadataResponsePartition(code, index, leader, epoch) for index in range(count)]
    return m.MetadataResponseTopic(0, name, topic_id, False, parts)


def missing(name, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    return m.MetadataResponseTopic(code, name)


def names(send, version=12):
    request = codec.decode(m.MetadataRequest, version, codec.encode(send.build(version), version))
    return request.topics and [found.name for found in request.topics]
