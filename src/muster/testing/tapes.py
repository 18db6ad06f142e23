"""The recording that a broker is making, and the one that it replays: one of each at a time, for its `Control`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.broker.broker import Broker
from muster.coordinator.groups.effects import GroupEvent
from muster.errors import ConfigError
from muster.testing import recording
from muster.testing.facts import Facts
from muster.testing.interposer import Interposer
from muster.testing.player import Hooks, Player
from muster.testing.recorder import Recorder
from muster.testing.rules import Rule
from muster.testing.script import Script


class Tapes:
    """What records a broker, and what plays on it."""

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
            raise ConfigError(f"this broker is being recorded to {self._recorder.path} already")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"path={path!r}: it must be the name of a file")
        wanted = None if topics is None else frozenset(topics)
        self._recorder = Recorder(self._broker, Path(path), wanted, self._hooks.view)
        self._interposer.on_answer = self._recorder.on_answer
        return {"path": str(self._recorder.path)}

    def end_recording(self) -> dict[str, Any]:
        """End it; what became of it."""
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
        """Begin to play a recording."""
        if self._player is not None:
            raise ConfigError("this broker replays a recording already")
        if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= 1_000:
            raise ConfigError(f"pace={pace!r}: it is what times are multiplied by, from 0 to 1000")
        if isinstance(patience_ms, bool) or not isinstance(patience_ms, int) or patience_ms < 0:
            raise ConfigError(f"patience_ms={patience_ms!r}: it must be a whole number of milliseconds")
        found = _read(Path(path))
        if client is not None and client not in found.clients():
            raise ConfigError(f"client={client!r} is none of those in {path}: {', '.join(found.clients()) or 'none'}")
        if group is not None:
            found.rename_group(group)
        script = Script(found, None if client is None else frozenset({client}), pace, patience_ms)
        self._player = Player(self._broker, script, self._hooks)
        try:
            self._player.start()
        except BaseException:
            self._player = None
            raise
        self._interposer.before = self._player.before
        return self._player.status()

    def status(self) -> dict[str, Any]:
        """How far the replay has come."""
        if self._player is None:
            raise ConfigError("this broker replays no recording")
        return self._player.status()

    def end_replay(self) -> dict[str, Any]:
        """End it; how far it came."""
        player, self._player, self._interposer.before = self._player, None, None
        if player is None:
            return {}
        found = player.status()
        player.stop()
        return found

    def close(self) -> None:
        """A test has ended."""
        self.end_recording()
        self.end_replay()

    # ---------------------------------------------------------------------------------------------- what they are shown

    def on_event(self, event: GroupEvent) -> None:
        """Something has happened to a group."""
        if self._recorder is not None:
            self._recorder.on_event(event)
        if self._player is not None:
            self._player.on_event(event)

    def on_strike(self, rule: Rule, facts: Facts) -> None:
        """A fault strikes at a request."""
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
                f"{path} has more than {recording.MOST_BYTES >> 20} MiB: it is not a recording of muster's"
            )
        return recording.read(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the recording {path}: {error.strerror}") from None
