"""A broker for tests: a real one, in its own process, in an empty folder, up in a third of a second.

    import muster.testing

    with muster.testing.kafka() as broker:
        ...  # any client, in any language: bootstrap.servers = broker.bootstrap

`broker.kill()` and `broker.start()` restart it on its data, as after `kill -9`; `freeze()` and `thaw()` suspend it.
It ends with the block, or with the process that started it, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from muster.local.broker import LocalBroker

_FOR_TESTS = {"group.initial.rebalance.delay.ms": 0}
"""The first member of a group need not wait for others."""


@contextmanager
def kafka(settings: Mapping[str, object] | None = None, folder: Path | str | None = None) -> Iterator[LocalBroker]:
    """A broker that runs within the block, on a free port of the loopback interface.

    `settings` are the broker's, by Kafka's names (`{"auto.create.topics.enable": False}`). `folder` keeps its data;
    without one they are in a temporary folder, which is deleted at the end.

    Raises:
        ServerFailedError: the broker did not start; the error has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="muster-") as temporary:
        place = Path(temporary) if folder is None else Path(folder)
        with LocalBroker(place, settings=_FOR_TESTS | dict(settings or {})) as broker:
            yield broker
