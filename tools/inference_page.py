"""Writes docs/history-inference.md: how often the causes that are inferred from records are the broker's own.

python -m tools.inference_page                      # the recordings; what stands there of random lives stays
python -m tools.inference_page --lives 160 [--keep DIR]   # also the random lives of the seeds 1 to 160: minutes
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.history.model import Pattern
from tests.history.inference import lives, of_life, of_recordings
from tests.history.truth import Judged

PAGE = Path(__file__).resolve().parents[1] / "docs" / "history-inference.md"
LIVES = "## In random lives\n"

HEAD = """\
# How often an inferred cause is right

muster's broker writes why it rebalances ([group-events.md](group-events.md)); Apache Kafka does not, and the cause is
inferred from `__consumer_offsets` ([history.md](history.md)). Here the rules are shown the records that muster's broker
wrote, without its events, and what they find is held against these events.

- **True** is the cause that the event of the rebalance's beginning has; where it cannot tell (a client that gives no
  reason to leave) what was done on purpose. A pattern is true if it was played on purpose, or all events together say
  so by the words of history.md. **Found** is what the rules say, **recall** how much of what is true is found,
  **precision** how much of what is found is true.
- **Named**: the true cause is the row's, or one of its alternatives; or the row's cause is another thing that the
  broker saw happen in that rebalance. A member that joins while another one is dead has the group wait for it until it
  expires: that is one rebalance with two causes, and the records do not always show which was first.
- The second phase of a cooperative rebalance has the cause of its first, and is not counted.

`python -m tools.inference_page` writes this page.

"""


def page(former: str) -> str:
    """The text of the page, with the random lives as they stand in `former`."""
    told = of_recordings()
    recorded = ["## In recordings", "", "Real clients in scripted scenarios on `muster serve`.", "", *_tables(told), ""]
    return HEAD + "".join(f"{line}\n" for line in recorded) + LIVES + former.partition(LIVES)[2]


def of_lives(count: int, keep: Path | None) -> str:
    """The part about random lives."""
    led = 0
    told: list[Judged] = []
    for lived in lives(range(1, count + 1), keep):
        led += 1
        told += of_life(lived)
    about = (
        f"{led} groups of muster's own consumers on muster's own coordinator, in virtual time "
        f"(`tests/history/lives.py`, seeds 1 to {count}): members join, leave, crash, stand still, are too slow, are "
        "started again, subscribe to something else; topics grow; the coordinator is restarted, moves, stands still. "
        "Time-outs from 6 s to 5 minutes, commits each second, each half minute or never, records each 5 s or none, "
        "with and without instance ids, by each assignor. Much more goes wrong in them than in a group that is well."
    )
    return "\n" + "".join(f"{line}\n" for line in [*_wrapped(about), "", *_tables(told)])


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split():
        if len(line) + len(word) > 118:
            lines, line = [*lines, line], ""
        line = f"{line} {word}".strip()
    return [*lines, line]


def _tables(told: Sequence[Judged]) -> Iterator[str]:
    right, named = sum(each.right for each in told), sum(each.near for each in told)
    shares = f"right in {_share(right, len(told))}, named in {_share(named, len(told))}"
    yield f"{len(told)} rebalances; the cause is {shares}."
    yield ""
    yield "| cause | true | found | recall | precision | taken for |"
    yield "|---|---|---|---|---|---|"
    for cause in sorted({str(each.cause) for each in told} | {str(each.row.cause) for each in told}):
        true = [each for each in told if each.cause == cause]
        found = [each for each in told if each.row.cause == cause]
        hits = sum(each.right for each in true)
        missed = Counter(str(each.row.cause) for each in true if not each.right)
        taken = ", ".join(f"`{other}` {count}" for other, count in sorted(missed.items(), key=lambda x: (-x[1], x[0])))
        shares = f"{_share(hits, len(true))} | {_share(hits, len(found))}"
        yield f"| `{cause}` | {len(true)} | {len(found)} | {shares} | {taken} |"
    yield ""
    yield "| confidence | rows | right |"
    yield "|---|---|---|"
    for low, high in ((0.0, 0.45), (0.45, 0.65), (0.65, 0.75), (0.75, 0.85), (0.85, 0.95), (0.95, 1.0)):
        rows = [each for each in told if low <= each.row.confidence < high]
        if rows:
            mean = sum(each.row.confidence for each in rows) / len(rows)
            right = sum(each.right for each in rows)
            yield f"| {low:.2f} to {high:.2f}, on average {mean:.2f} | {len(rows)} | {_share(right, len(rows))} |"
    yield ""
    yield "| part of | true | found | recall | precision |"
    yield "|---|---|---|---|---|"
    for kind in Pattern:
        seen = [each for each in told if each.row.pattern is not None and each.row.pattern.kind is kind]
        meant = [each for each in told if kind in each.patterns]
        hits = sum(kind in each.patterns for each in seen)
        yield f"| `{kind}` | {len(meant)} | {len(seen)} | {_share(hits, len(meant))} | {_share(hits, len(seen))} |"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lives", type=int, metavar="N", help="lead the lives of the seeds 1 to N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the lives there, or take them from there")
    asked = parser.parse_args()
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    former = LIVES + of_lives(asked.lives, asked.keep) if asked.lives else PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(page(former))


if __name__ == "__main__":
    main()
