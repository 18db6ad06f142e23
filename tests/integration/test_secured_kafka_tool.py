"""The Kafka with TLS and SASL that readers of docs/reference/security.md start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import peers
from tools.secured_kafka import PORTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
"""Only in case of a hang."""


def test_its_files_lead_to_it_and_ctrl_c_ends_it(java: str, tmp_path: Path) -> None:
    peers.kafka_jars()
    ports = dict(zip(PORTS, peers.free_ports(len(PORTS)), strict=True))
    program = f"from pathlib import Path; from tools.secured_kafka import run; run(Path({str(tmp_path)!r}), {ports})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            reported = [process.stdout.readline() for _ in range(len(PORTS) + 1)]
            assert reported[0] == f"127.0.0.1:{ports['BOTH']}  SASL_SSL\n", reported
            for listener, more in ("BOTH", []), ("MUTUAL", MUTUAL):
                assert health(tmp_path, ports[listener], *more).startswith("healthy: 1 broker")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def health(folder: Path, port: int, *more: str) -> str:
    command = [sys.executable, "-m", "muster", "health", "--command-config", "client.properties"]
    command += ["--bootstrap", f"localhost:{port}", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stdout + done.stderr


MUTUAL = ["-o", "security.protocol=SSL", "-o", "ssl.keystore.location=client.pem"]
