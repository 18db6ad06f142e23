"""The input of a scripted member in Python: its settings as an argument, commands as lines of JSON on standard input.

The end of the input ends the process without notifying the broker: the script that gave the commands has ended.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any

SPEC: dict[str, Any] = json.loads(sys.argv[1])
_policy, _, _every = SPEC["commit"].partition(":")
_commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
_pace_ms = 0
_committed_at = time.monotonic()


def _read() -> None:
    for line in sys.stdin:
        _commands.put(json.loads(line))
    os._exit(4)


def begin() -> None:
    """Report that the client is ready, and listen from now on."""
    threading.Thread(target=_read, daemon=True).start()
    tell("ready")


def tell(event: str, detail: Any = "") -> None:
    """Report what happened, as a line of JSON."""
    print(json.dumps({"event": event, "detail": str(detail)}), flush=True)


def command(*, wait: bool) -> dict[str, Any] | None:
    """The next command that the client itself has to obey; None if there is none. `wait`: wait for one."""
    global _pace_ms
    while True:
        try:
            told = _commands.get(block=wait)
        except queue.Empty:
            return None
        if told["do"] == "pace":
            _pace_ms = told["ms"]
        elif told["do"] == "sleep":
            time.sleep(told["ms"] / 1000)
        else:
            return told


def handle(count: int) -> None:
    """Take the requested time for the records."""
    time.sleep(_pace_ms * count / 1000)


def commit_due() -> bool:
    """Whether the member must now commit what it has handled: after each poll (`manual`), or at intervals
    (`manual:MS`)."""
    global _committed_at
    due = _policy == "manual" and time.monotonic() - _committed_at >= int(_every or 0) / 1000
    if due:
        _committed_at = time.monotonic()
    return due


def converted(types: dict[str, type]) -> dict[str, Any]:
    """Kafka's settings as keyword arguments: with underscores instead of dots, and each value as its type."""
    return {
        (keyword := name.replace(".", "_")): types.get(keyword, str)(value) for name, value in SPEC["config"].items()
    }


TYPES: dict[str, type] = {
    "session_timeout_ms": int,
    "heartbeat_interval_ms": int,
    "max_poll_interval_ms": int,
    "auto_commit_interval_ms": int,
    "metadata_max_age_ms": int,
    "rebalance_timeout_ms": int,
    "max_poll_records": int,
    "enable_auto_commit": lambda text: text == "true",  # type: ignore[dict-item]
}
