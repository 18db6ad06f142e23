"""What a query's checkpoint says besides the offset that Spark passes: the query's ID, which batch is done, and
whether the query keeps state.

Spark writes `metadata` once, `offsets/N` before batch N and `commits/N` after it; operators with state write `state`.
Only local folders are read; the source works without knowing a checkpoint elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


class Checkpoint:
    """The checkpoint folder in the option checkpointLocation, if it is a local one."""

    def __init__(self, location: str | None) -> None:
        parsed = urlparse(location or "")
        local = bool(location) and parsed.scheme in ("", "file")
        self._folder = Path(unquote(parsed.path)) if local else None

    def query_id(self) -> str | None:
        """The query's ID, which stays the same across restarts."""
        if self._folder is None:
            return None
        try:
            found = json.loads((self._folder / "metadata").read_text())["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return str(found)

    def has_state(self) -> bool:
        """Whether a batch of the query has written state."""
        return self._folder is not None and (self._folder / "state").is_dir()

    def is_done(self, end: dict[str, Any]) -> bool:
        """Whether the batch with this end offset is in Spark's commit log."""
        if self._folder is None:
            return False
        batches = self._batches("offsets")
        for batch in sorted(batches, reverse=True)[:3]:
            if end in self._offsets(batch):
                return batch in self._batches("commits")
        return False

    def _batches(self, log: str) -> set[int]:
        assert self._folder is not None
        try:
            return {int(path.name) for path in (self._folder / log).iterdir() if path.name.isdecimal()}
        except OSError:
            return set()

    def _offsets(self, batch: int) -> list[Any]:
        """The offsets of all sources in batch N: one line each, after the lines for version and metadata."""
        assert self._folder is not None
        try:
            lines = (self._folder / "offsets" / str(batch)).read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[1:]:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
