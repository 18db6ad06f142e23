"""A testing kit: real brokers for tests of code that uses Kafka, with any client, and faults, waits and a clock.

    import muster.testing

    with muster.testing.kafka() as kafka:
        topic = kafka.topic(partitions=2, records=[b"a", b"b"])
        ...  # any client, in any language: bootstrap.servers = kafka.bootstrap
        kafka.until_assigned("billing", members=2)

`kit.py` is the kit itself, `async_kit.py` the same for asyncio, and `pytest_plugin.py` has the fixtures for pytest.
Each name is loaded when it is first used: pytest imports this file in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from muster.testing.async_kit import AsyncFault, AsyncGroup, AsyncGroupClock, AsyncKafka, AsyncReplay
    from muster.testing.clients import (
        AdminFactory,
        AsyncAdminFactory,
        AsyncConsumerFactory,
        AsyncProducerFactory,
        ConsumerFactory,
        ProducerFactory,
        TopicFactory,
    )
    from muster.testing.cluster_recording import record_past
    from muster.testing.kit import Fault, Group, GroupClock, Kafka, Replay, WaitTimeoutError, assert_handled_once
    from muster.testing.schedules import chaos

_NAMES = {
    "async_kit": "AsyncFault AsyncGroup AsyncGroupClock AsyncKafka AsyncReplay",
    "clients": (
        "AdminFactory AsyncAdminFactory AsyncConsumerFactory AsyncProducerFactory ConsumerFactory ProducerFactory "
        "TopicFactory"
    ),
    "kit": "Fault Group GroupClock Kafka Replay WaitTimeoutError assert_handled_once",
    "cluster_recording": "record_past",
    "schedules": "chaos",
}
"""The public names, by the module that defines them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AdminFactory",
    "AsyncAdminFactory",
    "AsyncConsumerFactory",
    "AsyncFault",
    "AsyncGroup",
    "AsyncGroupClock",
    "AsyncKafka",
    "AsyncProducerFactory",
    "AsyncReplay",
    "ConsumerFactory",
    "Fault",
    "Group",
    "GroupClock",
    "Kafka",
    "ProducerFactory",
    "Replay",
    "TopicFactory",
    "WaitTimeoutError",
    "assert_handled_once",
    "chaos",
    "kafka",
    "record_past",
]


def kafka(
    settings: Mapping[str, object] | None = None,
    folder: Path | str | None = None,
    *,
    brokers: int = 1,
    in_process: bool = False,
    seed: int = 0,
    strict: bool = False,
) -> Kafka:
    """Brokers for a `with` block: one in a process of its own, unless the arguments say otherwise.

    Args:
        settings: broker settings, by Kafka's names (`{"auto.create.topics.enable": False}`).
        folder: where their data are kept; by default in a temporary folder, which is deleted at the end.
        brokers: how many; several are coordinated by a ZooKeeper, which needs Java.
        in_process: the broker runs in a thread of this process. It starts sooner than one in a process of its own, but
            shares the interpreter with the code under test, and cannot be killed or frozen.
        seed: the seed for faults that have a probability.
        strict: raise at the end if a fault never struck.
    """
    from muster.testing.kit import Kafka

    return Kafka(settings, folder, brokers=brokers, in_process=in_process, seed=seed, strict=strict)


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"muster.testing.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
