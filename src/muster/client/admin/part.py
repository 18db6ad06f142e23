"""What the parts of `AsyncAdmin` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from muster.client.admin.calls import BrokerCalls
from muster.client.config import AdminConfig
from muster.client.core import offset_requests
from muster.client.core.admin import admin as rules
from muster.errors import AdminError, ErrorCode, KafkaError
from muster.model import Node, TopicPartition

K = TypeVar("K")
V = TypeVar("V")


def checked(outcomes: dict[K, V], raise_errors: bool) -> dict[K, V]:
    """The outcomes of a call; with `raise_errors`, all of them are successes.

    Raises:
        AdminError: an item failed, and `raise_errors` is set.
    """
    if raise_errors:
        error = AdminError.of(outcomes)
        if error is not None:
            raise error from error.first
    return outcomes


class AdminPart:
    """The settings, and the calls to brokers."""

    _config: AdminConfig
    _calls: BrokerCalls

    async def _check_broker(self, broker: int) -> None:
        """Raises KafkaError (BROKER_NOT_AVAILABLE) if the cluster does not have this broker now."""
        await self._calls.controller()  # waits until the brokers are known
        if broker not in {known.node_id for known in (await self._calls.describe([])).brokers}:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not in the cluster now")

    async def _of_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, V | KafkaError]]],
        retry: frozenset[ErrorCode],
    ) -> dict[TopicPartition, V | KafkaError]:
        """Ask each partition's leader, with one request per leader."""

        async def locate(pending: list[TopicPartition]) -> dict[TopicPartition, Node | KafkaError]:
            topics = list(offset_requests.by_topic(sorted(pending)))
            found = sorted(rules.leaders(await self._calls.describe(topics), pending).items())
            return {place: self._calls.node(leader) if isinstance(leader, int) else leader for place, leader in found}

        return await self._calls.of_nodes(partitions, locate, lambda node, led: ask(node.node_id, led), retry)
