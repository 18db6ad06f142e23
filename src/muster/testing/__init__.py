"""A testing kit: real brokers for tests of code that uses Kafka, with any client, and faults, waits and a clock.

    import muster.testing

    with muster.testing.kafka() as kafka:
        topic = kafka.topic(partitions=2, records=[b"a", b"b"])
        ...  # any client, in any language: bootstrap.servers = kafka.bootstrap
        kafka.until_assigned("billing", members=2)

`kit.py` says what it offers; with pytest, `pytest_plugin.py` has fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.testing.kit import Clock, Fault, Group, Kafka, WaitTimeoutError, assert_handled_once

__all__ = ["Clock", "Fault", "Group", "Kafka", "WaitTimeoutError", "assert_handled_once", "kafka"]


def kafka(**how: Any) -> Kafka:
    """A `Kafka` (kit.py): one broker in a process of its own, unless the arguments say otherwise."""
    from muster.testing.kit import Kafka

    return Kafka(**how)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from muster.testing import kit

        return getattr(kit, name)
