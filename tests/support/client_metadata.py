"""Answers for a client's metadata, by hand."""

from __future__ import annotations

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FLIGHTS = TopicPartition("flights", 0)
ID = bytes(range(16))


class Cluster:
    """Answers for a `ClusterMetadata`, by hand."""

    def __init__(self, *, settings=None, **more):
        self.now = 1_000_000
        self.config = ClientConfig(retry_backoff_ms=100, retry_backoff_max_ms=1000, **settings or {})
        self.metadata = ClusterMetadata(self.config, **more)
        self.brokers = [MetadataResponseBroker(1, "one", 9092), MetadataResponseBroker(2, "two", 9092)]

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
        send.on_reply(MetadataResponse(brokers=self.brokers, cluster_id="c", topics=list(topics), **more), self.now)

    def learn(self, *topics):
        self.reply(self.ask(), *topics)


def topic(name="flights", leader=1, epoch=3, topic_id=ID, code=0, count=1):
    parts = [MetadataResponsePartition(code, index, leader, epoch) for index in range(count)]
    return MetadataResponseTopic(0, name, topic_id, False, parts)


def missing(name, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    return MetadataResponseTopic(code, name)


def names(send, version=12):
    request = codec.decode(MetadataRequest, version, codec.encode(send.build(version), version))
    return request.topics and [found.name for found in request.topics]
