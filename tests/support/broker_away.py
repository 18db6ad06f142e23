"""A cluster of two brokers, one of which is frozen or down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from muster.errors import ErrorCode
from muster.local.ports import free_ports
from muster.model import TopicPartition
from muster.protocol import admin_messages as am
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from tests.support.scripted_server import Peer, ScriptedServer

LIMIT_MS = 10_000
PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]


class World:
    """Broker 1 answers. Broker 2 is frozen (it accepts connections, and answers nothing), or down."""

    def __init__(self) -> None:
        self.leaves_at = 0
        """The number of the Metadata request from which broker 2 is not registered."""
        self.asked: list[type] = []
        self.refuse: ErrorCode = ErrorCode.NONE
        self.is_any_open = True
        """Whether the partitions led by broker 1 have an open transaction."""
        self.other_port = 0
        self.limit_ms = LIMIT_MS
        """How long the calls wait for broker 2."""
        self.first = ScriptedServer(self._serve)

    def _metadata(self) -> m.MetadataResponse:
        count = self.asked.count(m.MetadataRequest)
        others = [] if self.leaves_at and count >= self.leaves_at else [self.other_port]
        found = self.first.metadata(*others)
        parts = [m.MetadataResponsePartition(0, place.partition, 1 + place.partition) for place in PLACES]
        found.topics = [m.MetadataResponseTopic(0, "t", partitions=parts)]
        return found

    async def _serve(self, peer: Peer) -> None:
        await peer.handshake()
        while True:
            request = await peer.read()
            self.asked.append(type(request))
            await peer.reply(self._answer(request))

    def _answer(self, request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return self._metadata()
        if isinstance(request, m.ListGroupsRequest):
            return m.ListGroupsResponse(groups=[m.ListedGroup("here", "consumer", "Stable", "classic")])
        if isinstance(request, t.ListTransactionsRequest):
            states = [t.ListTransactionsResponseTransactionState("here", 7, "Ongoing")]
            return t.ListTransactionsResponse(error_code=self.refuse, transaction_states=states)
        if isinstance(request, m.FindCoordinatorRequest):
            ports = {"here": (1, self.first.port)}
            at = {key: ports.get(key, (2, self.other_port)) for key in request.coordinator_keys}
            found = [m.Coordinator(key, node, "127.0.0.1", port) for key, (node, port) in at.items()]
            return m.FindCoordinatorResponse(coordinators=found)
        if isinstance(request, m.DescribeClusterRequest):
            both = enumerate([self.first.port, self.other_port], 1)
            brokers = [m.DescribeClusterBroker(number, "127.0.0.1", port) for number, port in both]
            return m.DescribeClusterResponse(cluster_id="scripted", controller_id=1, brokers=brokers)
        return self._as_coordinator(request) or self._as_leader(request)

    def _as_coordinator(self, request: Any) -> Any:
        if isinstance(request, m.DescribeGroupsRequest):
            return m.DescribeGroupsResponse(
                groups=[
                    m.DescribedGroup(group_id=name, group_state="Empty", protocol_type="consumer")
                    for name in request.groups
                ]
            )
        if isinstance(request, m.OffsetFetchRequest):
            parts = [m.OffsetFetchResponsePartitions(place.partition, 2) for place in PLACES]
            topics = [m.OffsetFetchResponseTopics("t", partitions=parts)]
            return m.OffsetFetchResponse(
                groups=[m.OffsetFetchResponseGroup(g.group_id, topics) for g in request.groups]
            )
        if isinstance(request, t.DescribeTransactionsRequest):
            return t.DescribeTransactionsResponse(
                transaction_states=[
                    t.DescribeTransactionsResponseTransactionState(0, name, "Ongoing", producer_id=7)
                    for name in request.transactional_ids
                ]
            )
        return None

    def _as_leader(self, request: Any) -> Any:
        if isinstance(request, am.DescribeProducersRequest):
            return self._producers(request)
        assert isinstance(request, m.ListOffsetsRequest)
        parts = [m.ListOffsetsPartitionResponse(p.partition_index, offset=5) for p in request.topics[0].partitions]
        return m.ListOffsetsResponse(topics=[m.ListOffsetsTopicResponse("t", parts)])

    def _producers(self, request: am.DescribeProducersRequest) -> am.DescribeProducersResponse:
        """Open a transaction of a producer that no coordinator knows."""
        opened = [] if not self.is_any_open else [am.ProducerState(producer_id=8, current_txn_start_offset=3)]
        parts = [
            am.PartitionResponse(number, active_producers=opened) for number in request.topics[0].partition_indexes
        ]
        return am.DescribeProducersResponse(topics=[am.TopicResponse("t", parts)])


async def _silence(peer: Peer) -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(state: str) -> AsyncIterator[World]:
    """The cluster, with broker 2 "frozen" or "down"."""
    found = World()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(found.first.running())
        if state == "frozen":
            found.other_port = (await stack.enter_async_context(ScriptedServer(_silence).running())).port
        else:
            found.other_port = free_ports(1)[0]
        yield found
