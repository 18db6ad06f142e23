"""Kafka's own Admin client and tools for what an admin changes: the same story on muster and on Apache Kafka 4.2."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.support.brokers import BrokerProcess
from tests.support.peers import PEERS, KafkaBroker, java_command, kafka_classpath

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[1] / "oracle" / "java" / "AdminStory.java"


def test_the_admins_day_is_as_with_kafka(shared_muster: BrokerProcess, kafka_broker: KafkaBroker) -> None:
    prefix = f"day-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    running = []
    for bootstrap in (shared_muster.bootstrap, kafka_broker.bootstrap):
        options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", kafka_classpath()]
        command = [*java_command(options), str(STORY), bootstrap, prefix]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    reported = []
    for process in running:
        out, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
        reported.append(out.splitlines())
    assert reported[0] == reported[1], "ours, then Kafka's"
    assert "grow: null" in reported[0]
    assert "delete records: 3" in reported[0]
    assert "members then: 0" in reported[0]
