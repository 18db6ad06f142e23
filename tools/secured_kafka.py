"""Starts an Apache Kafka with TLS and SASL, to try security.md on: `python -m tools.secured_kafka`, until Ctrl-C.

It is the broker of the tests, on the ports that the pages name. The files that clients need are written into the
current folder. Like the tests with real peers, it needs Java, and Maven the first time.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import peers
from tests.support.secure_kafka import PASSWORDS, SCRAM, SecureKafka, login

PORTS = {
    "BOTH": (9093, "SASL_SSL"),
    "MUTUAL": (9094, "SSL, and a certificate of the client"),
    "TLS": (9095, "SSL"),
    "SASL": (9096, "SASL_PLAINTEXT"),
    "EXPIRED": (9097, "SSL with an expired certificate"),
    "ELSEWHERE": (9098, "SSL with the certificate of another host"),
    "ONLY_SCRAM": (9099, "SASL_PLAINTEXT with SCRAM-SHA-256 alone"),
}
"""For each listener: its port on the pages, and what it is."""

PROPERTIES = f"""\
bootstrap.servers=localhost:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={login(SCRAM, username="carol", password=PASSWORDS["carol"])}
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
"""


def run(into: Path, ports: dict[str, int]) -> None:
    """Start it and return at Ctrl-C, or at SIGTERM."""
    ended = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    with tempfile.TemporaryDirectory(prefix="secured-kafka-") as folder, contextlib.ExitStack() as held:
        kafka = SecureKafka(Path(folder))
        kafka.ports = kafka.ports | ports
        kafka.certificates.write()
        # The broker ends with the last process that holds this lock, however that ends.
        held.enter_context(peers.locked(Path(folder) / "kafka" / "users", fcntl.LOCK_SH))
        kafka.broker.start()
        for name in "ca", "client":
            shutil.copy(kafka.certificates.path(name), into)
        (into / "client.properties").write_text(PROPERTIES)
        for name, port in ports.items():
            print(f"127.0.0.1:{port}  {PORTS[name][1]}")
        users = ", ".join(name for name in PASSWORDS)
        print(f"ca.pem, client.pem and client.properties are in {into}; users: {users}. Ctrl-C ends it.", flush=True)
        signal.sigwait(ended)
        kafka.broker.stop()


def main(arguments: Sequence[str]) -> int:
    """Run it in the folder named on the command line, or in the current one."""
    try:
        peers.kafka_command("kafka.Kafka")
    except pytest.skip.Exception as missing:
        print(missing, file=sys.stderr)
        return 1
    into = Path(arguments[0] if arguments else ".").resolve()
    run(into, {name: port for name, (port, _) in PORTS.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
