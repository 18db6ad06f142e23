"""Clients for Kafka clusters: consumers, producers, admin; blocking, and for asyncio.

from muster.client import Consumer, Producer, Admin, AsyncConsumer, AsyncProducer, AsyncAdmin

Names are loaded when they are first used, so that a process that only produces does not pay for consuming.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.client.admin.admin import Admin
    from muster.client.admin.async_admin import AsyncAdmin
    from muster.client.consumer.async_consumer import AsyncConsumer
    from muster.client.consumer.consumer import Consumer
    from muster.client.consumer.listener import RebalanceListener
    from muster.client.core.admin.admin import NewTopic
    from muster.client.hooks import ConsumerHooks, ProducerHooks
    from muster.client.producer.async_producer import AsyncProducer
    from muster.client.producer.producer import Producer

_HOMES = {
    "Admin": "muster.client.admin.admin",
    "AsyncAdmin": "muster.client.admin.async_admin",
    "AsyncConsumer": "muster.client.consumer.async_consumer",
    "AsyncProducer": "muster.client.producer.async_producer",
    "Consumer": "muster.client.consumer.consumer",
    "ConsumerHooks": "muster.client.hooks",
    "NewTopic": "muster.client.core.admin.admin",
    "Producer": "muster.client.producer.producer",
    "ProducerHooks": "muster.client.hooks",
    "RebalanceListener": "muster.client.consumer.listener",
}

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "ConsumerHooks",
    "NewTopic",
    "Producer",
    "ProducerHooks",
    "RebalanceListener",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
