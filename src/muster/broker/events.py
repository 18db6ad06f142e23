"""What the coordinator reports, as lines of the log: who, why, how long; and as lines of JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from logging.handlers import WatchedFileHandler
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


class EventFile(WatchedFileHandler):
    """Appends each event of a group to a file, a JSON object a line: `at` (ms since the epoch), `event`, its fields.

    A line is handed to the operating system at once, so that the file survives a kill of the process. A file that was
    renamed or removed (logrotate) is made anew under its name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._failing = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Only lines of the log that carry an event."""
        return getattr(record, "group_event", None) is not None

    def format(self, record: logging.LogRecord) -> str:
        """The event that a line of the log carries."""
        event = record.__dict__["group_event"]
        return json.dumps({"at": int(record.created * 1000), "event": type(event).__name__, **asdict(event)})

    def emit(self, record: logging.LogRecord) -> None:
        """Write it. Where that fails (a full disk) the events are lost, which is told once until it works again."""
        try:
            self.reopenIfNeeded()
            if self.stream is None:  # the last attempt to make it anew failed
                self.stream = self._open()
            self.stream.write(self.format(record) + self.terminator)
            self.flush()
        except OSError:
            self.handleError(record)
        else:
            self._failing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (as logging names it)
        """Told through the log of the broker, which is another than that of the events."""
        if not self._failing:
            self._failing = True
            logging.getLogger("muster.broker").error("events are lost: %s: %s", self.baseFilename, sys.exc_info()[1])


def _member(event: effects.MemberEvent) -> str:
    who = _who(event.member_id, event.client_id, event.group_instance_id)
    return f"{who} at {event.client_host.lstrip('/')}"


def _who(member_id: str, client_id: str, instance_id: str | None) -> str:
    if not member_id:
        return "no member"
    static = f", instance {instance_id}" if instance_id else ""
    return f"member {member_id} of client {client_id!r}{static}"
