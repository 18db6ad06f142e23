"""Kafka's own programs, run one after another in a JVM that this process keeps (tests/peers/kafka/Tools.java)."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence


class KafkaTools:
    """The JVM, which starts with the first program and ends with this process."""

    def __init__(self, command: Callable[[], list[str]]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self, cls: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            late = threading.Timer(timeout_s, self._process.kill)
            late.start()
            try:
                return self._ask(self._process, cls, arguments)
            finally:
                late.cancel()

    @staticmethod
    def _ask(jvm: subprocess.Popen[bytes], cls: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        jvm.stdin.write("".join(f"{line}\n" for line in (cls, len(arguments), *arguments)).encode())
        jvm.stdin.flush()
        line = jvm.stdout.readline()
        assert line, f"{cls} {arguments} did not end"
        code, *sizes = map(int, line.split())
        out, err = (jvm.stdout.read(size).decode() for size in sizes)
        return subprocess.CompletedProcess([cls, *arguments], code, out, err)
