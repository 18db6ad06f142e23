"""`muster serve` as a server with a keeper."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from muster.client.consumer.consumer import Consumer
from muster.client.producer.producer import Producer
from muster.local.broker import LocalBroker
from muster.local.server import ServerFailedError


def test_a_broker_serves_and_has_its_records_after_a_kill(tmp_path: Path):
    with LocalBroker(tmp_path / "broker", settings={"num.partitions": 3}) as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send_and_wait("t", b"one")
            assert len(producer.partitions_for("t")) == 3
        broker.kill()
        broker.start()
        with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", group_id="g") as consumer:
            consumer.subscribe(["t"])
            assert next(consumer).value == b"one"
    assert broker.ending == "exit code 0"


def test_a_broker_whose_port_another_server_has_is_distinguished_from_it(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = LocalBroker(tmp_path / "broker", server.getsockname()[1])
        words = re.escape(f"muster: cannot listen on 127.0.0.1:{broker.port}")
        with pytest.raises(ServerFailedError, match=f"the broker ended with exit code 1; its last output:\n.*{words}"):
            broker.__enter__()
