"""What is done to a streaming query, drawn from a seed: a schedule is a value, and so are its results.

`draw` makes a schedule, `judge` finds in the collected facts whether anything was lost, and which records came twice
although they must not. Neither does any I/O; `tests/support/spark_soak.py` carries schedules out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

ENDS = ("kill", "kill_jvm", "kill_driver", "kill_source", "term", "term_all", "interrupt", "stop")
"""How a run of a query is ended: kill -9 of all its processes, of the JVM, of the driver's Python, of the source's
Python; SIGTERM for the driver, or for all processes as service managers send it; Ctrl-C; query.stop()."""

IN_PLACE = ("stop", "kill_source")
"""Those that keep the driver's process."""

LEAVES = ("leave_kill", "leave_term", "leave_stop")
"""The second query ends, and does not come back."""

PEERS = {"muster": ("kill_worker", "broker_kill", "broker_freeze"), "cluster": ("kill_worker", "broker_kill", "grow")}
"""The other draws, with muster's broker or with three of Apache Kafka."""

GROWS_BELOW_S = 0.5
"""With muster's broker the topic grows if a worker is going to be killed so soon. It once grew only with Kafka's, and
everything else that a seed draws stays as it was."""

ORDERLY = ("stop",)
"""Ends after which everything that Spark has recorded as done is committed."""

SINKS = ("batches", "topic")
"""A file for each run of a batch, written by foreachBatch, which shows what both idempotent and other sinks would have;
or muster's sink into another topic."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action, `after_s` after the first batch of the run, or its start if `early`. `who` is the query that it is
    about. `for_s` is how long a broker is down."""

    do: str
    after_s: float
    who: str = "a"
    early: bool = False
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one run does. `limits` are the values of maxOffsetsPerTrigger, used in turn, one for each start of a
    query."""

    seed: int
    peer: str
    mode: str
    sink: str
    limits: tuple[int, ...]
    before_s: float
    behind_s: float
    names_checkpoint: bool
    steps: tuple[Step, ...]


def draw(seed: int) -> Schedule:
    """The schedule of a seed. At most two steps need another JVM: starting one takes most of a schedule's time."""
    random = Random(seed)
    mode = random.choice(("group", "group", "assign"))
    peer = random.choice(("muster", "muster", "cluster"))
    return Schedule(
        seed,
        peer,
        mode,
        random.choice(SINKS),
        tuple(random.choice((20, 60, 200, 1000)) for _ in range(4)),
        round(random.choice((0, 0.2, 0.5)) * random.random(), 2),
        round(random.choice((0, 0.2, 0.5)) * random.random(), 2),
        random.random() < 0.5,
        tuple(_steps(random, mode, peer)),
    )


def _steps(random: Random, mode: str, peer: str) -> Iterator[Step]:
    costly, joined = 0, False
    for number in range(random.randint(3, 6)):
        kinds = [*(() if costly == 2 else ENDS), *IN_PLACE, *PEERS[peer]]
        if mode == "group" and not joined and (number == 0 or costly < 2):
            kinds += ["join"] * (len(kinds) if number == 0 else 3)
        if joined:
            kinds += LEAVES
        do = random.choice(kinds)
        who = "b" if do in ("join", *LEAVES) or (joined and random.random() < 0.5) else "a"
        joined = (joined or do == "join") and do not in LEAVES
        costly += do == "join" or (do in ENDS and do not in IN_PLACE)
        early = do in ENDS and do != "stop" and random.random() < 0.2
        after_s, for_s = round(random.uniform(0, 1.5), 2), round(random.uniform(0.5, 4), 1)
        if peer == "muster" and do == "kill_worker" and after_s < GROWS_BELOW_S:
            do = "grow"
        yield Step(do, after_s, who, early, for_s)


Batch = tuple[str, int]
"""A query and the number of one of its batches."""


@dataclass(frozen=True, slots=True)
class Write:
    """A batch passed to a sink, in one run of the query."""

    batch: Batch
    run: int
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """How a run of a query ended, and what its checkpoint contained then: the last batch begun and the last one
    done."""

    query: str
    run: int
    how: str
    begun: int
    done: int


@dataclass(frozen=True)
class Facts:
    """The result of a schedule. Records are their numbers.

    `plans` has the records of each batch according to the checkpoint. `shaken` are batches that ran while a broker was
    down, or just before or after. `retried` are those in which a Python worker was killed. `copies` is the contents of
    another topic, if that is the sink; otherwise `writes` has every call.
    """

    acknowledged: frozenset[int]
    sent: frozenset[int]
    plans: Mapping[Batch, frozenset[int]]
    ends: tuple[End, ...]
    writes: tuple[Write, ...] = ()
    copies: Counter[int] | None = None
    shaken: frozenset[Batch] = frozenset()
    retried: frozenset[Batch] = frozenset()


@dataclass
class Outcome:
    """`wrong` is empty if everything is fine. The others count records, once for each time too many: `again` are those
    that a batch passed to a non-idempotent sink when it ran again, `shared` those that two batches had."""

    wrong: list[str] = field(default_factory=list)
    records: int = 0
    again: int = 0
    shared: int = 0


def judge(facts: Facts) -> Outcome:
    """Whether nothing was lost, and records came twice only where docs/reference/spark.md says that they may."""
    outcome = Outcome(records=len(facts.acknowledged))
    _check_all_there(facts, outcome)
    _check_runs(facts, outcome)
    _check_shares(facts, outcome)
    if facts.copies is not None:
        _check_copies(facts, facts.copies, outcome)
    return outcome


def pending(facts: Facts) -> Counter[Batch]:
    """Batches that were in progress at the end of a run, which the next one runs again."""
    return Counter((end.query, end.begun) for end in facts.ends if end.begun > end.done)


def exposed(facts: Facts) -> set[Batch]:
    """Batches that another member of the group may have got, too: the group may not know that they are done."""
    crashed = {(end.query, end.done) for end in facts.ends if end.how not in ORDERLY}
    return {*pending(facts), *crashed, *facts.shaken}


def _check_all_there(facts: Facts, outcome: Outcome) -> None:
    arrived = set(facts.copies or ()) | {number for write in facts.writes for number in write.records}
    planned = frozenset[int]().union(*facts.plans.values())
    for what, missing in (
        ("are lost", facts.acknowledged - arrived),
        ("are in no batch", facts.acknowledged - planned),
        ("were never sent", arrived - facts.sent),
    ):
        if missing:
            outcome.wrong.append(f"{len(missing)} records {what}: {_some(missing)}")


def _check_runs(facts: Facts, outcome: Outcome) -> None:
    """A batch has the same records each time, each once, and runs again only if the end of a run interrupted it."""
    interrupted = pending(facts)
    runs: dict[Batch, list[Write]] = {}
    for write in facts.writes:
        runs.setdefault(write.batch, []).append(write)
    for batch, writes in runs.items():
        for write in writes:
            if sorted(write.records) != sorted(facts.plans.get(batch, ())):
                outcome.wrong.append(f"batch {batch} has records in run {write.run} that differ from its plan")
        if len({write.run for write in writes}) < len(writes):
            outcome.wrong.append(f"batch {batch} was handed over twice in one run")
        if len(writes) > 1 + interrupted[batch]:
            outcome.wrong.append(f"batch {batch} was handed over {len(writes)} times, but interrupted fewer times")
        outcome.again += sum(len(write.records) for write in writes[1:])


def _check_shares(facts: Facts, outcome: Outcome) -> None:
    """A record is in one batch, unless all of its batches but one are exposed. Those may all belong to one query only
    if there was another: it had the partition meanwhile, and its commit determines where the first continues."""
    alone = len({end.query for end in facts.ends}) < 2
    batches: dict[int, list[Batch]] = {}
    for batch, numbers in facts.plans.items():
        for number in numbers:
            batches.setdefault(number, []).append(batch)
    known = exposed(facts)
    bad: dict[tuple[Batch, ...], list[int]] = {}
    for number, found in batches.items():
        if len(found) == 1:
            continue
        outcome.shared += len(found) - 1
        if (alone and len({query for query, _ in found}) == 1) or sum(batch not in known for batch in found) > 1:
            bad.setdefault(tuple(sorted(found)), []).append(number)
    outcome.wrong += [f"{len(numbers)} records are in {found}: {_some(numbers)}" for found, numbers in bad.items()]


def _check_copies(facts: Facts, copies: Counter[int], outcome: Outcome) -> None:
    """A record is in the other topic at most as often as its batches ran."""
    allowed: Counter[int] = Counter()
    interrupted = pending(facts)
    for batch, numbers in facts.plans.items():
        for number in numbers:
            allowed[number] += 1 + interrupted[batch] + (batch in facts.retried)
    bad = [number for number, count in copies.items() if count > allowed[number]]
    if bad:
        outcome.wrong.append(f"{len(bad)} records were written too often: {_some(bad)}")
    outcome.again += sum(copies.values()) - len(copies)


def _some(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return f"{', '.join(map(str, ordered[:8]))}{' …' if len(ordered) > 8 else ''}"
