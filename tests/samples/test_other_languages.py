"""The examples of the testing kit for other languages, run as their heads say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import peers

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing_other_languages"


def test_a_java_consumer_s_commit_is_lost() -> None:
    command = ["-cp", peers.kafka_classpath(), str(EXAMPLES / "LostCommit.java"), sys.executable, "-m", "muster"]
    done = subprocess.run(peers.java_command(command), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "passed\n", done.stderr[-3000:]
