"""What the coordinator reports, as lines of the log: who, why, how long; and as lines of JSON for programs."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from muster.coordinator import effects

log = logging.getLogger("muster.groups")


def report(event: effects.GroupEvent) -> None:
    """Write one line about what happened to a group."""
    level = logging.INFO
    match event:
        case effects.RebalanceStarted():
            who = _who(event.member_id, event.client_id, event.group_instance_id)
            text = f"rebalance after generation {event.generation_id}: {event.cause} ({who}): {event.reason}"
        case effects.RebalanceCompleted():
            leader = f", leader {event.leader}" if event.leader else ""
            protocol = f", {event.protocol_name}" if event.protocol_name else ""
            text = (
                f"rebalance done in {event.duration_ms} ms: generation {event.generation_id}, "
                f"{event.members} member(s){protocol}{leader}"
            )
        case effects.MemberFenced():
            text = f"{_member(event)} was replaced by {event.new_member_id} with the same group.instance.id"
        case effects.MemberExpired():
            text = f"{_member(event)} was removed: {event.kind} ({event.timeout_ms} ms)"
        case effects.MemberJoined() | effects.MemberLeft():
            act = "joined" if isinstance(event, effects.MemberJoined) else "left"
            text = f"{_member(event)} {act}" + (f": {event.reason}" if event.reason else "")
        case _:
            text, level = str(event), logging.DEBUG
    log.log(level, "group %s: %s", event.group_id, text, extra={"group_event": event})


class EventFile(logging.Handler):
    """Appends each event of a group to a file, a JSON object a line: `at` (ms since the epoch), `event`, its fields.

    A line is handed to the operating system at once, so that the file survives a kill of the process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = path.open("a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Write the event that a line of the log carries."""
        event = getattr(record, "group_event", None)
        if event is not None:
            entry = {"at": int(record.created * 1000), "event": type(event).__name__, **asdict(event)}
            self._stream.write(json.dumps(entry) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


def _member(event: effects.MemberEvent) -> str:
    who = _who(event.member_id, event.client_id, event.group_instance_id)
    return f"{who} at {event.client_host.lstrip('/')}"


def _who(member_id: str, client_id: str, instance_id: str | None) -> str:
    if not member_id:
        return "no member"
    static = f", instance {instance_id}" if instance_id else ""
    return f"member {member_id} of client {client_id!r}{static}"
