"""The rules on recordings and on random lives, compared with the broker's events, for history-inference.md.

`python -m tools.inference_page` writes the page; tests/history/test_inference.py checks minimum scores.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from muster.history.entries.chunks import chunks
from muster.history.entries.decode import decode
from muster.history.model import Limits, Rows
from muster.history.rules import fold as rules
from tests.history.lives import Lived, live
from tests.history.truth import Judged, Script, judged
from tests.history.verdicts import files, history_of, load
from tests.simulator import InvariantError


def of_recordings() -> list[Judged]:
    """Every rebalance of the corpus about which muster's broker recorded events."""
    return [each for name in files() for each in of_recording(load(name))]


def of_recording(kept: dict[str, Any]) -> Iterator[Judged]:
    """The rebalances of one file; none if it was not recorded on muster."""
    if kept.get("events"):
        scripts = [
            Script(played, told["at_ms"], told["until_ms"])
            for told in kept["truth"]
            for played in (told["cause"], told.get("pattern"))
            if played is not None
        ]
        yield from judged(history_of(kept).rebalances, kept["events"], scripts)


def of_life(lived: Lived) -> list[Judged]:
    """The rebalances of one random life."""
    scripts = [Script(act.played, act.begin_ms, act.end_ms, act.names) for act in lived.acts]
    return list(judged(rows_of(lived.raw, lived.end_ms).rebalances, lived.events, scripts))


def rows_of(raw: pa.Table, end_ms: int) -> Rows:
    """The rows that the rules derive from a log."""
    rows = Rows()
    for chunk in chunks(decode(raw).entries, end_ms):
        state = rules.start(chunk.group, Limits())
        rows.extend(rules.fold(state, chunk))
        rows.extend(rules.finish(state, end_ms))
    return rows


def lives(seeds: Iterable[int], keep: Path | None = None) -> Iterator[Lived]:
    """The lives of these seeds. They are stored in the folder `keep`, if given, so that rules can be tried without
    simulating them again.

    A life in which a check of the simulation fails is left out: the tests of the simulation cover those.
    """
    for seed in seeds:
        path = keep / f"{seed}.pickle" if keep is not None else None
        if path is not None and path.exists():
            yield pickle.loads(path.read_bytes())
            continue
        try:
            lived = live(seed)
        except InvariantError:
            continue
        if path is not None:
            path.write_bytes(pickle.dumps(lived))
        yield lived
