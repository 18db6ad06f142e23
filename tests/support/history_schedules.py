"""What is done to `muster history --follow`, drawn from a seed: a schedule is a value, and so are its results.

`draw` makes a schedule. `judge` compares what the job has written with tables of the same topic that were made in one
run, without interruptions. Neither does any I/O; `tests/support/history_soak.py` carries schedules out, with the groups
of `tests/support/live_groups.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from muster.history.model import CommitNote, Generation, Lag, Rebalance

ENDS = ("kill", "kill_jvm", "kill_driver", "kill_source", "kill_worker", "term", "term_all", "interrupt")
"""How a run of the job is ended: kill -9 of all its processes, of the JVM, of the command's own Python, of the
source's, of one in which a task runs; SIGTERM for the command, or for all processes as service managers send it;
Ctrl-C."""

BROKER = ("broker_kill", "broker_freeze")
"""What happens to the broker meanwhile: it is killed and restarted, or suspended for a while."""

WHEN = ("start", "batch", "batch", "later")
"""After the start of a run; after the moment at which one of its batches has begun and is not done yet; after its
first batch."""

WAYS = ("range", "cooperative", "static", "assigned", "returning")
"""Lives of groups (live_groups.py). On Apache Kafka there is also one of KIP-848: `next`."""

SHORT_MS = 70_000
"""A short window of patterns instead of ten minutes: rows of rebalances become final while a schedule runs. It is
longer than the possible distance of a broker's event from its rebalance (told.py)."""

ORDERLY = ("term", "term_all", "interrupt")
"""Ends that the job is notified of."""

BY_ITSELF = "itself"
"""The job ended although nothing was done to it."""

LAST = "last"
"""The run that reads to the end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action, `after_s` after a moment of the run. `for_s` is how long a broker is down."""

    do: str
    when: str
    after_s: float
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one run does. `short` is whether patterns have a short window. `ending`: the job reads to the end with
    `muster history`, or with `--follow` until it has. `beside` is what makes the tables for the comparison."""

    seed: int
    peer: str
    short: bool
    master: str
    groups: tuple[str, ...]
    ending: str
    beside: str
    steps: tuple[Step, ...]


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    random = Random(seed)
    peer = random.choice(("muster", "muster", "kafka"))
    ways = random.sample(WAYS, 3) + (["next"] if peer == "kafka" else [])
    return Schedule(
        seed,
        peer,
        random.random() < 0.7,
        random.choice(("local[2]", "local[2,4]")),
        tuple(ways),
        random.choice(("once", "once", "once", "follow")),
        random.choice(("tables", "job", "small")),
        tuple(_steps(random)),
    )


def _steps(random: Random) -> Iterator[Step]:
    ends = random.randint(2, 4)
    kinds = [random.choice(ENDS) for _ in range(ends)]
    kinds += [random.choice(BROKER) for _ in range(random.choice((0, 1, 1, 2)))]
    random.shuffle(kinds)
    for do in kinds:
        when = random.choice(WHEN) if do in ENDS else "later"
        longest = {"start": 15.0, "batch": 1.0, "later": 4.0}[when]
        away_s = random.uniform(1, 5) if random.random() < 0.8 else random.uniform(15, 40)
        yield Step(do, when, round(random.uniform(0, longest), 2), round(away_s, 1))


# --- what came of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended: its exit code, its output, and whether the broker was down meanwhile."""

    run: int
    how: str
    code: int
    said: str = ""
    shaken: bool = False


@dataclass(frozen=True)
class Tables:
    """Rows of the history, and how many records of each kind and version were read."""

    generations: tuple[Generation, ...] = ()
    rebalances: tuple[Rebalance, ...] = ()
    notes: tuple[CommitNote, ...] = ()
    counts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    lag: tuple[Lag, ...] = ()
    """From the last sample."""


ROWS = ("generations", "rebalances", "notes")


@dataclass(frozen=True)
class Facts:
    """The result of a schedule. `looks` has the rows of the lag that each batch has written. `earlier` are the final
    rows that existed when a run had ended."""

    written: Tables
    fresh: Tables
    ends: tuple[End, ...] = ()
    looks: Mapping[int, tuple[Lag, ...]] = field(default_factory=dict)
    earlier: tuple[Tables, ...] = ()


@dataclass
class Outcome:
    """`wrong` is empty if everything is fine."""

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    records: int = 0


def judge(facts: Facts) -> Outcome:
    """Whether the job has written what the topic says, each row once, and each of its runs ended properly."""
    outcome = Outcome(records=sum(facts.fresh.counts.values()))
    for name in ROWS:
        written, fresh = getattr(facts.written, name), getattr(facts.fresh, name)
        outcome.rows += len(fresh)
        outcome.wrong += _differences(name, Counter(written), Counter(fresh))
        for number, before in enumerate(facts.earlier, start=1):
            gone = Counter(getattr(before, name)) - Counter(written)
            outcome.wrong += [f"{_reported(row)} was final when run {number} ended, and is gone" for row in gone]
    outcome.wrong += _miscounted(facts)
    outcome.wrong += _lags(facts)
    outcome.wrong += [said for end in facts.ends if (said := _ended(end))]
    return outcome


def _differences(name: str, written: Counter[Any], fresh: Counter[Any]) -> Iterator[str]:
    lost, more = fresh - written, written - fresh
    unlike = {_key(row): row for row in more if row not in fresh}
    for row, times in sorted(more.items(), key=repr):
        if row in fresh or written[row] > 1:
            yield f"{name}: {_reported(row)} is there {written[row]} times and should be {fresh[row]} times"
        elif not any(_key(row) == _key(other) for other in lost):
            yield f"{name}: {_reported(row)} is there {times} times and should not be"
    for row, times in sorted(lost.items(), key=repr):
        other = unlike.get(_key(row))
        if other is None:
            yield f"{name}: {_reported(row)} is lost ({times} times)"
        else:
            yield f"{name}: {_reported(row)} is another: {_unlike(other, row)}"


def _key(row: Any) -> tuple[Any, ...]:
    """The key of a row."""
    if isinstance(row, Generation):
        return (row.group, row.at.partition, row.at.offset)
    if isinstance(row, Rebalance):
        return (row.group, row.generation, row.at_ms)
    return (row.group, row.topic, row.partition, row.at_ms, row.kind, row.offset)


def _reported(row: Any) -> str:
    return f"{row.group} {' '.join(map(str, _key(row)[1:]))}"


def _unlike(one: Any, other: Any) -> str:
    pairs = [(each.name, getattr(one, each.name), getattr(other, each.name)) for each in fields(one)]
    return ", ".join(f"{name} is {has!r}, should be {should!r}" for name, has, should in pairs if has != should)


def _miscounted(facts: Facts) -> Iterator[str]:
    written, fresh = facts.written.counts, facts.fresh.counts
    for place in sorted({*written, *fresh}):
        if written.get(place, 0) != fresh.get(place, 0):
            kind, version = place
            yield f"{written.get(place, 0)} records of {kind} {version} are counted, of {fresh.get(place, 0)}"


_OF_THE_LOOK = ("at_ms", "lag_ms")
"""They depend on the time of the sample."""


def _lags(facts: Facts) -> Iterator[str]:
    for batch, rows in facts.looks.items():
        twice = [place for place, count in Counter(map(_place, rows)).items() if count > 1]
        yield from (f"batch {batch} has the lag of {place} twice" for place in sorted(twice))
    written = {_place(row): row for row in facts.written.lag}
    fresh = {_place(row): row for row in facts.fresh.lag}
    for place in sorted({*written, *fresh}):
        if place not in written or place not in fresh:
            yield f"the last look has {'no' if place in fresh else 'a'} lag of {place}"
            continue
        one, other = written[place], fresh[place]
        names = [each.name for each in fields(Lag) if each.name not in _OF_THE_LOOK]
        if any(getattr(one, name) != getattr(other, name) for name in names):
            yield f"the last look's lag of {place} is another: {_unlike(one, other)}"


def _place(row: Lag) -> tuple[str, str, int]:
    return row.group, row.topic, row.partition


_FAILED = ("kill_jvm", "kill_source", "kill_worker", BY_ITSELF)
"""Ends that the command sees as an error from Spark."""

LATE = "worker failed to connect back"
"""Spark gives a source's Python ten seconds to start."""


def _ended(end: End) -> str:
    """What is wrong about the end of a run; nothing if it is correct."""
    reported = f"run {end.run} ({end.how}) ended with {end.code}: {end.said}"
    if end.how in (*ORDERLY, LAST):
        right = end.code == 0
    elif end.how == BY_ITSELF:
        right = end.code == 1 and (end.shaken or LATE in end.said)
    elif end.how in _FAILED:
        right = end.code == 1
    else:
        right = end.code == -9
    return "" if right and not _has_pages(end) else reported


def _has_pages(end: End) -> bool:
    """Whether an error was printed with a traceback. Spark's own processes do so if a signal reaches all of them, as
    does one that is about to work for a task that no longer exists."""
    tracebacks = end.said.split("Traceback (most recent call last):\n")[1:]
    of_python = any("pyspark/daemon.py" not in each.partition("\n")[0] for each in tracebacks)
    return of_python or ("\tat " in end.said and end.how != "term_all")


def some(reported: Iterable[str], most: int = 12) -> str:
    """The first of these sentences."""
    found = list(reported)
    return "\n".join([*found[:most], *([f"… and {len(found) - most} more"] if len(found) > most else [])])
