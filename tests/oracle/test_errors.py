"""muster's table of errors compared with Kafka's own: numbers, names, and how a client reacts to each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster.errors import ErrorCode
from tests.support.peers import kafka_classpath

PROGRAM = Path(__file__).parent / "java" / "ErrorClasses.java"


@pytest.mark.slow
def test_errors_are_classed_as_kafka_does(java):
    command = [java, "-cp", kafka_classpath(), str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    theirs = {tuple(line.split()) for line in done.stdout.splitlines()}
    ours = {
        (str(int(code)), code.name, str(code.retriable).lower(), str(code.stale_metadata).lower()) for code in ErrorCode
    }
    assert ours == theirs
