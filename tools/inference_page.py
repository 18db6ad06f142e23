"""Writes docs/reference/history-inference.md: how often the causes that are inferred from records are right.

python -m tools.inference_page                      # the recordings; the part about random lives is kept
python -m tools.inference_page --lives 160 [--keep DIR]   # also the random lives of the seeds 1 to 160: minutes
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from muster.history.model import Pattern
from tests.history.inference import lives, of_life, of_recordings
from tests.history.stories import score
from tests.history.stories.truth import NOT_IN_THE_LOG, UNSURE
from tests.history.truth import Judged

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "history-inference.md"
LIVES = "## In random lives\n"

HEAD = """\
# How often an inferred cause is right

Apache Kafka does not record why it rebalances: the cause is inferred from `__consumer_offsets`
([history.md](history.md)). This page compares the rules' results with what is known from other sources. In stories, on
Apache Kafka, the source is what was done to the group. muster's broker records why it rebalances
([group-events.md](group-events.md)): in recordings and in random lives the rules read its records without these events,
and the events are the truth.

In recordings and random lives:

- **True** is the cause in the event that starts the rebalance; if that is not conclusive (a client that leaves without
  a reason), what was done on purpose. A pattern is true if it was played on purpose, or if all events together fit its
  definition in history.md. **Found** is the rules' result, **recall** the share of true causes that are found,
  **precision** the share of found causes that are true.
- **Named**: the true cause is the row's, or one of its alternatives; or the row's cause is something else that the
  broker saw in that rebalance. A member that joins while another one is dead makes the group wait until that one
  expires: one rebalance with two causes, and the records do not always show which came first.
- The second phase of a cooperative rebalance has the cause of the first, and is not counted.

`python -m tools.inference_page` writes this page.

"""


def page(former: str) -> str:
    """The text of the page, with the random lives copied from `former`."""
    told = of_recordings()
    stories = ["## In stories", "", *_of_stories([score.score(path) for path in score.files()]), ""]
    recorded = ["## In recordings", "", "Real clients in scripted scenarios on `muster serve`.", "", *_tables(told), ""]
    return HEAD + "".join(f"{line}\n" for line in [*stories, *recorded]) + LIVES + former.partition(LIVES)[2]


def _of_stories(told: Sequence[score.Scored]) -> Iterator[str]:
    """The part about stories."""
    sums = score.totals(told)
    yield from _wrapped(
        f"{sums['stories']} stories with real clients on Apache Kafka {', '.join(_versions(told))} "
        "(`tests/history/stories`): in those drawn from seeds, members of one group join, close, are killed, "
        "freeze, are too slow, crash repeatedly, are deployed, change their topics; partitions are added, topics are "
        "created and deleted, offsets are reset, the group is stopped and started. In a third of the stories records "
        "keep arriving, in a third they stop arriving, in a third there are none. Stories from 401 on are typical "
        "incidents (`incidents.py`): workers of Kafka Connect and the consumers of a sink (431 to 433), three brokers "
        "whose coordinators are killed, restarted and moved (441 and later), overlapping deploys, two processes with "
        "one instance id, partitions that become idle on their own. The true cause follows from what was done to the "
        "group (`truth.py`), independently of rules and records."
    )
    yield ""
    named = _share(sums["named"], sums["done"])
    yield from _wrapped(
        f"{sums['rows']} rebalances; the cause is right in {sums['right']}, wrong in {sums['wrong']} "
        f"({sums['wrong_and_sure']} of them with a confidence of {UNSURE} or more), not known in "
        f"{sums['not known']}; {sums['open']} are open: the log cannot tell, and the row does not claim to. Of "
        f"{sums['done']} actions that leave a trace in the log, {named} are named. The pattern is "
        f"right in {sums['patterns_right']} of {sums['patterns']} rows. Findings: {sums['findings_right']} right, "
        f"{sums['findings_wrong']} wrong, {sums['findings_missing']} missing; {sums['accused']} of {sums['healthy']} "
        "healthy groups have one."
    )
    yield ""
    yield "What the log cannot tell:"
    yield ""
    for name, why in NOT_IN_THE_LOG.items():
        yield from _wrapped(f"- **{name}**: {why}")
    yield ""
    rows = [said for scored in told for said in scored.rows]
    yield from _calibration([(said.row.confidence, said.is_true) for said in rows])
    yield ""
    yield "| story | Kafka | records | right | wrong | not known | open | named | findings right | wrong | missing |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for scored in told:
        counts = Counter(said.verdict for said in scored.rows)
        verdicts = " | ".join(str(counts[each]) for each in (score.RIGHT, score.WRONG, score.NOT_KNOWN, score.OPEN))
        named = f"{sum(each.named for each in scored.done)} of {len(scored.done)}"
        found: list[int] = [len(scored.right_findings), len(scored.wrong_findings), len(scored.missing_findings)]
        kept = scored.kept
        yield (
            f"| {scored.name.removeprefix('story-')} | {kept['kafka']} | {kept['traffic']} | {verdicts} | {named} | "
            + " | ".join(map(str, found))
            + " |"
        )
    yield ""
    yield "What is wrong:"
    yield ""
    lines = [(scored.name, line.strip()) for scored in told for line in list(score.printed(scored))[1:]]
    for name, line in lines:
        yield f"- {name.removeprefix('story-')}: {line}"
    if not lines:
        yield "nothing."


def _versions(told: Iterable[score.Scored]) -> list[str]:
    return sorted({str(scored.kept["kafka"]) for scored in told}, reverse=True)


def of_lives(count: int, keep: Path | None) -> str:
    """The part about random lives."""
    led = 0
    told: list[Judged] = []
    for lived in lives(range(1, count + 1), keep):
        led += 1
        told += of_life(lived)
    about = (
        f"{led} groups of muster's own consumers on muster's own coordinator, in virtual time "
        f"(`tests/history/lives.py`, seeds 1 to {count}): members join, leave, crash, freeze, are too slow, are "
        "restarted, change their topics; topics gain partitions; the coordinator is restarted, moves, freezes. "
        "Timeouts are 6 s to 5 minutes; commits are sent every second, every 30 s or never; records arrive every 5 s "
        "or not at all; members have instance ids or not; all assignors are used. "
        "Far more goes wrong than in a healthy group."
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
    yield "| cause | true | found | recall | precision | mistaken for |"
    yield "|---|---|---|---|---|---|"
    for cause in sorted({str(each.cause) for each in told} | {str(each.row.cause) for each in told}):
        true = [each for each in told if each.cause == cause]
        found = [each for each in told if each.row.cause == cause]
        hits, fits = sum(each.right for each in true), sum(each.right for each in found)
        missed = Counter(str(each.row.cause) for each in true if not each.right)
        taken = ", ".join(f"`{other}` {count}" for other, count in sorted(missed.items(), key=lambda x: (-x[1], x[0])))
        shares = f"{_share(hits, len(true))} | {_share(fits, len(found))}"
        yield f"| `{cause}` | {len(true)} | {len(found)} | {shares} | {taken} |"
    yield ""
    yield from _calibration([(each.row.confidence, each.right) for each in told])
    yield ""
    yield "| part of | true | found | recall | precision |"
    yield "|---|---|---|---|---|"
    for kind in Pattern:
        seen = [each for each in told if each.row.pattern is not None and each.row.pattern.kind is kind]
        meant = [each for each in told if kind in each.patterns]
        hits = sum(kind in each.patterns for each in seen)
        yield f"| `{kind}` | {len(meant)} | {len(seen)} | {_share(hits, len(meant))} | {_share(hits, len(seen))} |"


def _calibration(told: Sequence[tuple[float, bool]]) -> Iterator[str]:
    yield "| confidence | rows | right |"
    yield "|---|---|---|"
    for low, high in ((0.0, 0.45), (0.45, 0.65), (0.65, 0.75), (0.75, 0.85), (0.85, 0.95), (0.95, 1.01)):
        rows = [(confidence, right) for confidence, right in told if low <= confidence < high]
        if rows:
            mean = sum(confidence for confidence, _ in rows) / len(rows)
            right = sum(right for _, right in rows)
            span = f"{low:.2f} to {min(high, 1):.2f}, on average {mean:.2f}"
            yield f"| {span} | {len(rows)} | {_share(right, len(rows))} |"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lives", type=int, metavar="N", help="simulate the lives of the seeds 1 to N")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="store the lives there, or load them from there")
    asked = parser.parse_args()
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    former = LIVES + of_lives(asked.lives, asked.keep) if asked.lives else PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(page(former))


if __name__ == "__main__":
    main()
