"""Writes the coordinator's events: as log messages for operators, and as lines of JSON for programs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from muster.clock import wall_clock_ms
from muster.coordinator.groups import effects

log = logging.getLogger("muster.groups")

_MOVES = (effects.MemberJoined, effects.MemberLeft)
_LOGGED_AFTER_MOVES = (effects.RebalanceStarted, effects.RebalanceCompleted)
"""Before one of these events is logged, messages name the members that joined and left."""


class GroupLines:
    """Logs the events of groups: which member, why, how long.

    A single member that joins or leaves gets its own message, with the reason. If many do so in one rebalance, one
    message gives their number, before the message about the completed rebalance; at level DEBUG each member gets a
    message.
    """

    def __init__(self) -> None:
        self._unlogged: dict[str, _Moves] = {}

    def __call__(self, event: effects.GroupEvent) -> None:
        """Log an event, or keep it for a message about several."""
        if isinstance(event, _MOVES):
            if log.isEnabledFor(logging.DEBUG):
                log.debug("group %s: %s", event.group_id, sentence(event))
            else:
                self._moves(event).count(event)
            return
        if isinstance(event, effects.GroupLoaded):  # after a start there may be thousands
            log.debug("group %s: %s", event.group_id, sentence(event))
            return
        if isinstance(event, _LOGGED_AFTER_MOVES):
            moves = self._unlogged.pop(event.group_id, None)
            if moves is not None:
                log.info("group %s: %s", event.group_id, moves.text())
        log.info("group %s: %s", event.group_id, sentence(event))

    def _moves(self, event: effects.MemberEvent) -> _Moves:
        moves = self._unlogged.get(event.group_id)
        if moves is None:
            moves = self._unlogged[event.group_id] = _Moves(event)
        return moves


class _Moves:
    """How many members of a group have joined and left since its last message, and the first of them."""

    __slots__ = ("first", "joined", "left")

    def __init__(self, first: effects.MemberEvent) -> None:
        self.first = first
        self.joined = self.left = 0

    def count(self, event: effects.MemberEvent) -> None:
        if isinstance(event, effects.MemberJoined):
            self.joined += 1
        else:
            self.left += 1

    def text(self) -> str:
        if self.joined + self.left == 1:
            return _moved(self.first)
        parts = [f"{self.joined} member(s) joined"] if self.joined else []
        parts += [f"{self.left} member(s) left"] if self.left else []
        return ", ".join(parts)


def sentence(event: effects.GroupEvent) -> str:
    """What happened, without the group's name."""
    match event:
        case effects.MemberJoined() | effects.MemberLeft():
            return _moved(event)
        case effects.RebalanceStarted():
            who = _who(event.member_id, event.client_id, event.group_instance_id)
            return f"rebalance after generation {event.generation_id}: {event.cause} ({who}): {event.reason}"
        case effects.RebalanceCompleted():
            leader = f", leader {event.leader}" if event.leader else ""
            protocol = f", {event.protocol_name}" if event.protocol_name else ""
            done = f"rebalance done in {event.duration_ms} ms: generation {event.generation_id}"
            return f"{done}, {event.members} member(s){protocol}{leader}"
        case effects.GroupLoaded():
            return f"read by broker {event.broker_id}: generation {event.generation_id}, {event.members} member(s)"
        case effects.JoinRefused():
            who = f"client {event.client_id!r} at {event.client_host.lstrip('/')}"
            return f"{who} cannot join: {event.reason}"
        case effects.MemberFenced():
            return f"{_member(event)} was replaced by {event.new_member_id} with the same group.instance.id"
        case effects.MemberExpired():
            return f"{_member(event)} was removed: {event.kind} ({event.timeout_ms} ms)"
        case _:
            return str(event)


def _moved(event: effects.MemberEvent) -> str:
    act, reason = "", None
    if isinstance(event, effects.MemberJoined):
        act, reason = "joined", event.reason
    elif isinstance(event, effects.MemberLeft):
        act, reason = "left", event.reason
    return f"{_member(event)} {act}" + (f": {reason}" if reason else "")


def _member(event: effects.MemberEvent) -> str:
    who = _who(event.member_id, event.client_id, event.group_instance_id)
    return f"{who} at {event.client_host.lstrip('/')}"


def _who(member_id: str, client_id: str, instance_id: str | None) -> str:
    if not member_id:
        return "no member"
    static = f", instance {instance_id}" if instance_id else ""
    return f"member {member_id} of client {client_id!r}{static}"


class EventFile:
    """Appends each event of a group to a file, one JSON object per line: `at` (ms since the epoch), `event`, its
    fields.

    Each line is written through to the operating system, so that it survives the process being killed. A file that was
    renamed or removed (by logrotate) is created again.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failing = False
        self._file: TextIO | None = None
        self._open()

    def __call__(self, event: effects.GroupEvent) -> None:
        """Write an event. If that fails (a full disk), events are lost; this is logged once until it works again."""
        line = json.dumps({"at": wall_clock_ms(), "event": type(event).__name__, **asdict(event)})
        try:
            file = self._file if self._file is not None and self._is_in_place(self._file) else self._open()
            file.write(f"{line}\n")
            file.flush()
        except OSError as error:
            if not self._failing:
                self._failing = True
                logging.getLogger("muster.broker").error(
                    "events are being lost: cannot write to %s: %s", self.path, error
                )
        else:
            self._failing = False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _is_in_place(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _open(self) -> TextIO:
        self.close()
        self._file = self.path.open("a", encoding="utf-8")
        return self._file
