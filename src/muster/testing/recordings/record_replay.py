"""The recording and the replay of a broker, started and ended by its `Control`: at most one of each at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.broker.broker import Broker
from muster.coordinator.groups.effects import GroupEvent
from muster.errors import ConfigError
from muster.testing.interposer import Interposer
from muster.testing.recordings import recording
from muster.testing.recordings.player import Hooks, Player
from muster.testing.recordings.recorder import Recorder
from muster.testing.recordings.script import Script
from muster.testing.rules.facts import Facts
from muster.testing.rules.faults import Rule


class RecordReplay:
    """A broker's recorder and player, while a recording or a replay is in progress."""

    def __init__(self, broker: Broker, interposer: Interposer, hooks: Hooks) -> None:
        self._broker = broker
        self._interposer = interposer
        self._hooks = hooks
        self._recorder: Recorder | None = None
        self._player: Player | None = None

    # ------------------------------------------------------------------------------------------------------- commands

    def record(self, *, path: str, topics: Sequence[str] | None = None) -> dict[str, Any]:
        """Begin a recording."""
        if self._recorder is not None:
            raise ConfigError(f"this broker is being recorded to {self._recorder.path} already: end that first")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"path={path!r}: it must be the path of a file")
        wanted = None if topics is None else frozenset(topics)
        self._recorder = Recorder(self._broker, Path(path), wanted, self._hooks.view)
        self._interposer.on_answer = self._recorder.on_answer
        return {"path": str(self._recorder.path)}

    def end_recording(self) -> dict[str, Any]:
        """End the recording, if any. Returns a summary of it."""
        recorder, self._recorder, self._interposer.on_answer = self._recorder, None, None
        return {} if recorder is None else recorder.end()

    def replay(
        self,
        *,
        path: str,
        client: str | None = None,
        group: str | None = None,
        pace: float = 1.0,
        patience_ms: int = 30_000,
    ) -> dict[str, Any]:
        """Begin to replay a recording."""
        if self._player is not None:
            raise ConfigError("this broker is replaying a recording already: end that first")
        if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= 1_000:
            raise ConfigError(f"pace={pace!r}: it must be a factor for recorded times, from 0 to 1000")
        if isinstance(patience_ms, bool) or not isinstance(patience_ms, int) or patience_ms < 0:
            raise ConfigError(f"patience_ms={patience_ms!r}: it must be a whole number of milliseconds, 0 or more")
        recorded = _read(Path(path))
        if client is not None and client not in recorded.clients():
            members = ", ".join(recorded.clients()) or "none"
            raise ConfigError(f"client={client!r} is not a member in {path}: its members are {members}")
        if group is not None:
            recorded.rename_group(group)
        script = Script(recorded, None if client is None else frozenset({client}), pace, patience_ms)
        self._player = Player(self._broker, script, self._hooks)
        try:
            self._player.start()
        except BaseException:
            self._player = None
            raise
        self._interposer.before = self._player.before
        return self._player.status()

    def status(self) -> dict[str, Any]:
        """The progress of the replay."""
        if self._player is None:
            raise ConfigError("this broker is not replaying a recording")
        return self._player.status()

    def end_replay(self) -> dict[str, Any]:
        """End the replay, if any. Returns its progress."""
        player, self._player, self._interposer.before = self._player, None, None
        if player is None:
            return {}
        status = player.status()
        player.stop()
        return status

    def close(self) -> None:
        """A test has ended."""
        self.end_recording()
        self.end_replay()

    # ---------------------------------------------------------------------------------------------------- notifications

    def on_event(self, event: GroupEvent) -> None:
        """Something has happened to a group."""
        if self._recorder is not None:
            self._recorder.on_event(event)
        if self._player is not None:
            self._player.on_event(event)

    def on_strike(self, rule: Rule, facts: Facts) -> None:
        """A fault strikes a request."""
        if self._recorder is not None:
            self._recorder.on_strike(rule, facts)

    def did(self, act: str, **more: object) -> None:
        """A test did something to the broker."""
        if self._recorder is not None:
            self._recorder.did(act, **more)


def _read(path: Path) -> recording.Recording:
    try:
        if path.stat().st_size > recording.MOST_BYTES:
            raise ConfigError(
                f"{path} is larger than {recording.MOST_BYTES >> 20} MiB, so it is not a recording by muster"
            )
        return recording.read(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the recording {path}: {error.strerror}") from None
