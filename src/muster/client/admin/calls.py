"""Single requests to brokers, for asyncio: sent to the right broker, and retried after retriable errors.

Producers and consumers decide in their cores when to retry. An admin call is one request and one answer, so it is
simpler as a coroutine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from muster.client.config import AdminConfig
from muster.client.core.admin import admin as rules
from muster.client.core.backoff import Backoff
from muster.client.core.metadata import ClusterMetadata, metadata_request
from muster.client.core.sends import LEAST_LOADED, Failure, Send
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import (
    AuthenticationError,
    ClosedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from muster.model import Node
from muster.protocol.api import CoordinatorType
from muster.protocol.messages import (
    Coordinator,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
)
from muster.protocol.primitives import Request, Response

I = TypeVar("I")  # noqa: E741
V = TypeVar("V")
R = TypeVar("R", bound=Response)


class BrokerCalls:
    """Calls to the brokers of one cluster, each of which ends within `default_api_timeout_ms`."""

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        self._metadata = ClusterMetadata(config, allow_auto_topic_creation=False, seed=random.getrandbits(31))
        self._driver = Driver(config, self._metadata)
        self._loop = CoreLoop(self._driver, [self._metadata])
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Bind to the running event loop."""
        if self._closed:
            raise ClosedError("the admin client is closed")
        if not self._started:
            self._started = True
            await self._loop.start()

    async def close(self) -> None:
        """Close the connections."""
        if not self._closed:
            self._closed = True
            await self._loop.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        node_id: int,
        request_type: type[Request[R]],
        build: Callable[[int], Request[R]],
        newest_version: int | None = None,
    ) -> R:
        """Send one request, once. Raises KafkaConnectionError or UnsupportedVersionError if there is no response."""
        await self.start()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def on_reply(reply: R | Failure, now: int) -> None:
            if future.done():
                return
            if not isinstance(reply, Failure):
                future.set_result(reply)
            else:
                future.set_exception(reply.error())

        self._driver.dispatch([Send(node_id, request_type, build, on_reply, newest_version=newest_version)])
        return await future

    async def ask(self, node_id: int, request: Request[R]) -> R:
        """`send` for a request that is the same in every version."""
        return await self.send(node_id, type(request), lambda _: request)

    def node(self, node_id: int) -> Node:
        """A broker; its address is empty if it is not known."""
        return self._metadata.brokers.get(node_id) or Node(node_id, "", -1)

    async def describe(self, names: list[str] | None) -> MetadataResponse:
        """Metadata of topics; None means all. No topic is created."""
        build = partial(metadata_request, names, False)
        answer = await self.retried(lambda: self.send(LEAST_LOADED, MetadataRequest, build))
        for broker in answer.brokers:
            self._metadata.learn_node(Node(broker.node_id, broker.host, broker.port, broker.rack))
        return answer

    async def controller(self) -> int:
        """The node that creates and deletes topics: the controller, or any broker if the controller is not known."""
        await self.start()
        await self._loop.wait_for(lambda: self._metadata.version > 0, self._config.request_timeout_ms)
        known = self._metadata.controller_id
        return known if known in self._metadata.brokers else LEAST_LOADED

    async def coordinators(
        self, keys: list[str], kind: CoordinatorType = CoordinatorType.GROUP
    ) -> dict[str, Node | KafkaError]:
        """The coordinator of each group or transactional id, or why it is unknown."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)

        try:
            found = (await self.ask(LEAST_LOADED, request)).coordinators
        except UnsupportedVersionError:
            found = [await self._coordinator(key, kind) for key in keys]
        nodes: dict[str, Node | KafkaError] = {}
        for answer in found:
            error = rules.failure(answer.error_code, answer.error_message)
            node = Node(answer.node_id, answer.host, answer.port)
            if error is None and node.node_id not in self._metadata.brokers:
                self._metadata.learn_node(node)
            nodes[answer.key] = error or node
        return nodes

    async def _coordinator(self, key: str, kind: CoordinatorType) -> Coordinator:
        """The coordinator of one group or transactional id, for brokers before Kafka 3.0."""
        answer = await self.ask(LEAST_LOADED, FindCoordinatorRequest(key=key, key_type=kind))
        return Coordinator(key, answer.node_id, answer.host, answer.port, answer.error_code, answer.error_message)

    # --- retries -----------------------------------------------------------------------------------------------------

    async def of_coordinators(
        self,
        keys: Iterable[str],
        ask: Callable[[Node, list[str]], Awaitable[dict[str, V | KafkaError]]],
        retry: frozenset[ErrorCode],
        kind: CoordinatorType = CoordinatorType.GROUP,
    ) -> dict[str, V | KafkaError]:
        """Ask the coordinator of each group or transactional id, with one request per coordinator."""
        return await self.of_nodes(keys, lambda pending: self.coordinators(pending, kind), ask, retry)

    async def of_nodes(
        self,
        items: Iterable[I],
        locate: Callable[[list[I]], Awaitable[Mapping[I, Node | KafkaError]]],
        ask: Callable[[Node, list[I]], Awaitable[Mapping[I, V | KafkaError]]],
        retry: frozenset[ErrorCode],
    ) -> dict[I, V | KafkaError]:
        """Ask the broker of each item, with one request per broker, to all brokers at the same time.

        If some have not answered when the time is up, the outcome of their items is a KafkaTimeoutError that names the
        broker. If none has, it is raised."""
        order = list(dict.fromkeys(items))
        found: dict[I, V | KafkaError] = {}
        asked: dict[I, Node] = {}
        away: dict[Node, str] = {}

        async def attempt(pending: list[I]) -> dict[I, V | KafkaError]:
            by_node: dict[Node, list[I]] = {}
            for item, node in (await locate(pending)).items():
                if isinstance(node, KafkaError):
                    found[item] = node
                else:
                    by_node.setdefault(node, []).append(item)
                    asked[item] = node

            async def one(node: Node) -> None:
                found.update(await ask(node, by_node[node]))

            await _each(by_node, one, away)
            return {}

        try:
            return await self.settle(order, attempt, retry, found)
        except KafkaTimeoutError as error:
            missing = [item for item in order if item not in found]
            errors = {item: self._no_answer(asked[item], away) for item in missing if item in asked}
            if not found:
                raise next(iter(errors.values()), error) from None
            return {item: found[item] if item in found else errors.get(item, error) for item in order}

    async def of_brokers(
        self, ask: Callable[[int], Awaitable[V]], retry: frozenset[ErrorCode]
    ) -> dict[int, V | KafkaError]:
        """Ask all brokers of the cluster at the same time. The outcome of a broker that has not answered when the time
        is up is a KafkaTimeoutError that names it; if none has answered, it is raised.

        If a broker has left or joined the cluster meanwhile, coordinators may have moved: all are asked again."""
        nodes: dict[int, Node] = {}
        found: dict[int, V | KafkaError] = {}
        away: dict[Node, str] = {}

        async def one(node: Node) -> None:
            try:
                found[node.node_id] = await ask(node.node_id)
            except (KafkaConnectionError, AuthenticationError):
                raise
            except KafkaError as error:
                found[node.node_id] = error

        async def attempt() -> None:
            brokers = await self._brokers()
            if brokers.keys() != nodes.keys():
                found.clear()
                nodes.clear()
                nodes.update(brokers)
            await _each([node for number, node in nodes.items() if _is_open(number, found, retry)], one, away)
            refused = next((answer for answer in found.values() if _refused(answer, retry)), None)
            if isinstance(refused, KafkaError):
                raise refused

        try:
            await self.retried(attempt, retry)
        except KafkaTimeoutError as error:
            errors = {number: self._no_answer(node, away) for number, node in nodes.items()}
            if not found:
                raise next(iter(errors.values()), error) from None
            return {number: found[number] if number in found else errors[number] for number in sorted(nodes)}
        return {number: found[number] for number in sorted(nodes)}

    async def _brokers(self) -> dict[int, Node]:
        brokers = (await self.describe([])).brokers
        return {broker.node_id: Node(broker.node_id, broker.host, broker.port) for broker in brokers}

    def _no_answer(self, node: Node, away: Mapping[Node, str]) -> KafkaTimeoutError:
        limit = self._config.default_api_timeout_ms
        address = f" ({node.host}:{node.port})" if node.host else ""
        why = f": {away[node]}" if node in away else ""
        return KafkaTimeoutError(f"broker {node.node_id}{address} did not answer within {limit} ms{why}")

    async def settle(
        self,
        items: Iterable[I],
        attempt: Callable[[list[I]], Awaitable[dict[I, V]]],
        retry: frozenset[ErrorCode],
        found: dict[I, V] | None = None,
    ) -> dict[I, V]:
        """Ask for items until none of them is refused with an error in `retry`, or the time is up. An attempt may put
        outcomes into `found` as they arrive, so that they are not lost if the time is up before it returns."""
        order = list(dict.fromkeys(items))
        if found is None:
            found = {}

        async def rest() -> None:
            pending = [item for item in order if _is_open(item, found, retry)]
            found.update(await attempt(pending))
            for item in order:
                if item not in found:
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the broker's response does not mention {item}")
                answer = found[item]
                if isinstance(answer, KafkaError) and answer.code in retry:
                    raise answer

        if order:
            try:
                await self.retried(rest, retry)
            except KafkaTimeoutError:
                if len(found) < len(order):
                    raise
        return {item: found[item] for item in order}

    async def retried(self, attempt: Callable[[], Awaitable[V]], retry: frozenset[ErrorCode] = frozenset()) -> V:
        """Repeat an attempt while it fails for lack of a connection or with an error in `retry`."""
        limit = self._config.default_api_timeout_ms
        deadline = self._driver.now() + limit
        waits = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, random.getrandbits(31))
        last: Exception | None = None
        refusals = 0
        while waits.failures <= self._config.retries:
            try:
                async with asyncio.timeout(max(1, deadline - self._driver.now()) / 1000):
                    return await attempt()
            except TimeoutError:
                break
            except KafkaConnectionError as error:
                last = error
            except AuthenticationError as error:
                refusals += 1  # another broker may accept this client
                last = error
                if refusals >= (len(self._metadata.brokers) or len(self._config.bootstrap_servers)):
                    raise
            except KafkaError as error:
                if error.code not in retry:
                    raise
                last = error
                self._metadata.request_update(self._driver.now())
            wait_ms = waits.next_wait_ms()
            if self._driver.now() + wait_ms >= deadline:
                break
            await asyncio.sleep(wait_ms / 1000)
        why = last or self._metadata.last_error or "no answer"
        raise KafkaTimeoutError(f"gave up after {limit} ms: {why}")


async def _each(nodes: Iterable[Node], ask: Callable[[Node], Awaitable[None]], away: dict[Node, str]) -> None:
    """Ask all of these brokers at the same time; `away` gets the reason for each that cannot be reached.

    Raises:
        KafkaConnectionError: at least one could not be reached. All others have answered.
    """
    lost: list[KafkaConnectionError] = []

    async def one(node: Node) -> None:
        try:
            await ask(node)
        except KafkaConnectionError as error:
            away[node] = str(error)
            lost.append(error)

    tasks = [asyncio.ensure_future(one(node)) for node in nodes]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    if lost:
        raise lost[0]


def _is_open(item: I, found: Mapping[I, object], retry: frozenset[ErrorCode]) -> bool:
    return item not in found or _refused(found[item], retry)


def _refused(answer: object, retry: frozenset[ErrorCode]) -> bool:
    return isinstance(answer, KafkaError) and answer.code in retry
