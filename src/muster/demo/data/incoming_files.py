"""Files of records for the feed: each holds some records in order, and appears as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from muster.demo.data.events import StreamEvent

MOST = 3_000
"""The most records of one file. A batch of the feed reads one file, possibly out of order, but by far fewer days than
the pipeline's watermark allows."""


class IncomingFiles:
    """Writes records to numbered files in `folder`."""

    def __init__(self, folder: Path, topics: Mapping[str, str]) -> None:
        self._folder = folder
        self._topics = topics
        self.files = 0
        """Files written so far."""
        folder.mkdir(parents=True)

    def write(self, events: Iterable[StreamEvent]) -> None:
        """Write one file."""
        rows = ({"topic": self._topics[each.stream], "key": each.key, "value": each.value} for each in events)
        # Spark skips names that start with a dot.
        draft = self._folder / f".{self.files:06}.json"
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        draft.rename(self._folder / draft.name.removeprefix("."))
        self.files += 1
