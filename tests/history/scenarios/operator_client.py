"""An operator for scripts: Kafka's own admin client in a process of its own (members/Operator.java)."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

from tests.history.scenarios.clients import java_program


class OperatorError(Exception):
    """What the admin client answered instead of a result: the name of its exception, and the text."""


class Operator:
    """Does one thing at a time, for any number of scripts; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._one_at_a_time = threading.Lock()

    def ask(self, do: str, **what: Any) -> Any:
        """Send a request; returns its result. Raises OperatorError if the cluster refused it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise EOFError("the operator's process has ended")
        told = json.loads(line)
        if "error" in told:
            raise OperatorError(told["error"])
        return told["answer"]

    def __enter__(self) -> Operator:
        self._process = subprocess.Popen(
            java_program("Operator", self._bootstrap), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
