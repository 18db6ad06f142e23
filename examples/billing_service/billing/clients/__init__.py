"""The Kafka part of the service, once for each client: `run` reads orders until it is asked to stop.

Keep the one for your client. All do the same:

- A record is handled, then its message is written, then its offset is committed. If the process dies in between, the
  record is handled again.
- Offsets of handled records are committed before partitions are given up, and offsets of lost partitions are forgotten.
- An error that is not about the group's membership ends `run`: the service is then started again, and goes back to the
  last commit.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import Event

from billing.service import Handle, Settings

CLIENTS = {"muster": "muster", "confluent": "confluent_kafka", "aiokafka": "aiokafka", "kafka_python": "kafka"}
"""The modules of this package, with the package that each needs."""

Run = Callable[[Settings, Handle, Event], None]


def runner(client: str) -> Run:
    """The function that runs the service with a client, until the event is set."""
    run: Run = import_module(f"billing.clients.on_{client}").run
    return run
