"""The examples of the testing kit for other languages: in Java, as its header says, and in Go, from the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import muster.testing
from muster.testing.backends import TestBroker
from tests.support import peers

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing_other_languages"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "test-broker.md"
GO = Path(__file__).parent / "go"
"""The version of franz-go with which the Go test is built."""


def test_a_java_consumer_s_commit_is_lost() -> None:
    command = ["-cp", peers.kafka_classpath(), str(EXAMPLES / "LostCommit.java"), sys.executable, "-m", "muster"]
    done = subprocess.run(peers.java_command(command), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "passed\n", done.stderr[-3000:]


GO_IMPORTS = """package billing

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

"""


def test_a_go_consumer_s_commit_is_lost(tmp_path: Path) -> None:
    go = peers.require("Go 1.18 or newer", shutil.which("go"), "Debian: apt-get install golang-go")
    for pinned in GO.iterdir():
        shutil.copy(pinned, tmp_path)
    with muster.testing.kafka() as kafka:
        (broker,) = kafka.brokers
        assert isinstance(broker, TestBroker)
        address, token = broker.control()
        (shown,) = re.findall(r"^```go\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        text = shown.replace("localhost:8474", address).replace("localhost:9092", kafka.bootstrap)
        (tmp_path / "lost_commit_test.go").write_text(GO_IMPORTS + text)
        command = [go, "test", "-count=1", "-vet=off", "-gcflags=all=-N -l", "./..."]  # compiled soonest
        environment = {**os.environ, "TOKEN": token}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "lose_answer('OffsetCommit', group='billing'): OffsetCommit of kgo about billing" in kafka.story()
