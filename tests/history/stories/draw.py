"""Stories: what is done to a group in the course of a day, drawn from a seed.

A story is a list of steps of different kinds in one group, as in a real day, whereas a scenario
(tests/history/scenarios) has one. A step is a JSON object; `play.py` carries it out with real clients. Nothing here
knows why groups rebalance: what each step must lead to is derived in `truth.py`, from what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

Step: TypeAlias = dict[str, Any]

KINDS_OF_CLIENT = (
    "java-range",
    "confluent-range",
    "kafka-python-range",
    "java-consumer",
    "confluent-cooperative",
    "aiokafka-range",
    "java-cooperative",
    "confluent-consumer",
    "franz-cooperative",
    "muster-range",
    "franz-range",
)
"""Their number and the number of themes have no common divisor, so seeds go through all pairs."""

OLD_BROKERS_KNOW = tuple(kind for kind in KINDS_OF_CLIENT if not kind.endswith("-consumer"))
SUBSCRIBES_BY_PATTERN = ("java-range", "confluent-range", "java-consumer", "confluent-cooperative")
PAUSES = ("java-range", "java-cooperative", "java-consumer", "confluent-range", "confluent-cooperative")
GONE_TOPICS_ARE_FINE = ("java-range", "java-cooperative", "java-consumer", "confluent-range", "confluent-consumer")
NEVER_TOO_SLOW = ("aiokafka-range", "franz-cooperative", "franz-range")
"""Members of these kinds stay in the group however long the scripted members' handler takes."""

TRAFFIC = ("always", "never", "stops")
"""Whether records are written: all the time, never, or up to the middle of the story."""

THEMES: dict[str, tuple[str, ...]] = {
    "healthy": ("join", "wait", "blink", "join", "busy", "wait"),
    "strangers": ("join", "kill", "join", "leave", "add_partitions", "newcomer", "leave"),
    "deploy": ("join", "deploy", "long_wait", "stop"),
    "restart": ("join", "deploy_at_once", "wait"),
    "static": ("static", "wait", "deploy_static", "join"),
    "crash_loop": ("join", "crash_loop"),
    "two_programs": ("newcomer_elsewhere", "newcomer_elsewhere", "wait"),
    "regex": ("pattern", "create_matching", "join"),
    "topics": ("subscribe_more", "wait", "delete_topic"),
    "slow": ("slow", "wait", "slow"),
    "held": ("held", "wait"),
    "stuck": ("stick", "long_wait"),
    "reset": ("stop", "reset", "start_again", "stop", "outsider", "start_again"),
    "scaled": ("join", "join", "leave", "stop", "start_again"),
    "frozen": ("freeze", "blink", "freeze"),
    "mixed": ("join_mixed", "wait", "join", "kill"),
}

ALONE: dict[str, tuple[str, ...]] = {"broker": ("join", "restart_broker", "wait", "kill", "restart_broker", "leave")}
"""Themes that need a broker of their own. No seed leads to them: `--theme` selects them."""

FILLERS: dict[str, float] = {
    "join": 4,
    "leave": 3,
    "back": 3,
    "kill": 3,
    "freeze": 1,
    "blink": 1,
    "slow": 1.5,
    "busy": 1,
    "add_partitions": 1.5,
    "subscribe_more": 1,
    "newcomer": 1,
    "deploy": 0.5,
    "flap": 0.5,
    "wait": 1,
}
HEALTHY_FILLERS = {"join": 2.0, "blink": 1.0, "busy": 1.0, "wait": 1.0}

COSTS_S = {
    "deploy": 35,
    "crash_loop": 80,
    "slow": 75,
    "freeze": 40,
    "kill": 28,
    "flap": 40,
    "held": 22,
    "long_wait": 60,
}
"""About how long a step takes; others take about ten seconds."""
USUAL_S = 10
BUDGET_S = 190


@dataclass(frozen=True)
class Story:
    """What will be done. `clients`: the kinds that the members have in turn."""

    seed: int
    theme: str
    clients: tuple[str, ...]
    traffic: str
    commit: str
    config: dict[str, str]
    partitions: int
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        clients = self.clients[0] if len(self.clients) == 1 else "mixed"
        return f"story-{self.seed:03d}-{self.theme.replace('_', '-')}-{clients}"


@dataclass
class _Day:
    """The state of the group, as far as the story has been drawn."""

    random: Random
    clients: tuple[str, ...]
    static: bool = False
    by_pattern: bool = False
    alive: dict[str, list[str]] = field(default_factory=dict)
    """Members and the topics that they read."""
    gone: dict[str, list[str]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    count: int = 0
    stuck: bool = False
    steps: list[Step] = field(default_factory=list)

    def do(self, do: str, **what: Any) -> None:
        self.steps.append(deepcopy({"do": do, **what}))

    def label(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def one(self) -> str:
        return self.random.choice(list(self.alive))

    @property
    def reads(self) -> list[str]:
        """The topics that most members read."""
        return list(self.topics) if self.by_pattern else ["t"]


def draw(seed: int, *, older: bool = False, theme: str = "") -> Story:
    """The story of a seed. `older`: for brokers before 4.0. `theme`: instead of the one that the seed leads to."""
    random = Random(f"story {seed}")
    theme = theme or list(THEMES)[seed % len(THEMES)]
    kinds = OLD_BROKERS_KNOW if older else KINDS_OF_CLIENT
    kinds = tuple(kind for kind in kinds if kind in _fit_for(theme, kinds))
    clients: tuple[str, ...] = (kinds[seed % len(kinds)],)
    if clients[0].endswith("-range") and theme not in ("regex", "slow", "stuck", "topics") and random.random() < 0.3:
        others = [kind for kind in kinds if kind.endswith("-range") and kind != clients[0]]
        clients = (clients[0], *random.sample(others, min(2, len(others))))
    traffic = "always" if theme == "stuck" else TRAFFIC[seed % len(TRAFFIC)]
    commit = "auto" if random.random() < 0.8 or clients[0].startswith("franz") else "manual"
    config = {"session.timeout.ms": "20000", "max.poll.interval.ms": "30000"}
    if theme == "static":
        config = {"session.timeout.ms": "30000", "max.poll.interval.ms": "40000"}
    day = _Day(random, clients, static=theme == "static", by_pattern=theme == "regex")
    partitions = day.topics["t"] = random.choice([6, 8, 12])
    _begin(day)
    wanted = _mixture(day, theme)
    for at, kind in enumerate(wanted):
        if traffic == "stops" and at == len(wanted) // 2:
            day.do("rest")
        _STEPS[kind](day)
    if day.alive and random.random() < (0.3 if theme != "deploy" else 0):
        _stop(day)
    return Story(seed, theme, clients, traffic, commit, config, partitions, tuple(day.steps))


def _fit_for(theme: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    match theme:
        case "regex":
            return SUBSCRIBES_BY_PATTERN
        case "topics":
            return GONE_TOPICS_ARE_FINE
        case "stuck":
            return PAUSES
        case "held":
            return tuple(kind for kind in kinds if kind not in NEVER_TOO_SLOW and not kind.endswith("-consumer"))
        case "slow":
            return tuple(kind for kind in kinds if kind not in NEVER_TOO_SLOW)
        case "static":
            return tuple(kind for kind in kinds if not kind.startswith(("aiokafka", "kafka-python")))
        case "mixed":
            return tuple(kind for kind in kinds if kind.endswith("-range") and kind.startswith(("java", "confluent")))
        case _:
            return kinds


def _mixture(day: _Day, theme: str) -> list[str]:
    """The theme's steps, and some others between them."""
    wanted = list({**THEMES, **ALONE}[theme])
    fillers = HEALTHY_FILLERS if theme == "healthy" else FILLERS
    if theme in ("static", "regex"):
        fillers = {kind: FILLERS[kind] for kind in ("join", "back", "kill", "leave", "blink", "busy")}
    spent = sum(COSTS_S.get(kind, USUAL_S) for kind in wanted)
    while len(wanted) < 10:
        kind = day.random.choices(list(fillers), list(fillers.values()))[0]
        spent += COSTS_S.get(kind, USUAL_S)
        if spent > BUDGET_S:
            break
        at = len(wanted) + 1 if theme in ("deploy", "reset") else day.random.randint(0, len(wanted))
        if theme == "deploy":
            at = day.random.randint(0, 1)
        wanted.insert(at, kind)
    return wanted


# ------------------------------------------------------------------------------------------ the steps


def _begin(day: _Day) -> None:
    count = day.random.choice([1, 2, 2, 3])
    labels = [day.label() for _ in range(count)]
    for label in labels:
        day.alive[label] = list(day.reads)
    day.do("start", members=labels, topics=day.reads, **_how(day))


def _how(day: _Day) -> dict[str, Any]:
    return {"static": True} if day.static else {"pattern": True} if day.by_pattern else {}


def _join(day: _Day, *topics: str, **more: Any) -> None:
    label = day.label()
    day.alive[label] = list(topics or day.reads)
    day.do("join", member=label, topics=day.alive[label], **_how(day), **more)


def _back(day: _Day) -> None:
    if not day.gone:
        return _join(day)
    label = day.random.choice(list(day.gone))
    topics = [topic for topic in day.gone.pop(label) if topic in day.topics] or list(day.reads)
    day.alive[label] = topics
    day.do("back", member=label, topics=topics, **_how(day))
    return None


def _ends(do: str) -> Callable[[_Day], None]:
    def step(day: _Day) -> None:
        if len(day.alive) < 2:
            _join(day)
        label = day.one()
        day.gone[label] = day.alive.pop(label)
        day.do(do, member=label)

    return step


def _with_one(do: str, **what: Any) -> Callable[[_Day], None]:
    def step(day: _Day) -> None:
        if not day.alive:
            _start_again(day)
        if do == "slow" and set(day.clients) & set(NEVER_TOO_SLOW):
            return _ends("kill")(day)
        if len(day.alive) < 2 and do in ("freeze", "slow", "crash_loop", "flap", "hold"):
            _join(day)
        day.do(do, member=day.one(), **what)
        return None

    return step


def _held(day: _Day) -> None:
    if not day.alive:
        _start_again(day)
    busy = day.one()
    label = day.label()
    day.alive[label] = list(day.reads)
    day.do("held", busy=busy, seconds=14, member=label, topics=day.reads)


def _deploy(how: str) -> Callable[[_Day], None]:
    def step(day: _Day) -> None:
        if not day.alive:
            _start_again(day)
        if len(day.alive) < 3:
            _join(day)
        day.do("deploy", how=how, members=list(day.alive), pause_s=day.random.choice([0, 1, 3]), **_how(day))

    return step


def _stop(day: _Day) -> None:
    day.do("stop", members=list(day.alive))
    day.gone.update(day.alive)
    day.alive.clear()


def _start_again(day: _Day) -> None:
    if day.alive:
        return _join(day)
    labels = list(day.gone)[:4]
    for label in labels:
        day.alive[label] = [topic for topic in day.gone.pop(label) if topic in day.topics] or list(day.reads)
    day.do("start", members=labels, topics=day.reads, **_how(day))
    for label in labels:
        day.alive[label] = list(day.reads)
    return None


def _add_partitions(day: _Day) -> None:
    if not day.alive:
        _start_again(day)
    day.topics["t"] += day.random.choice([2, 4])
    day.do("add_partitions", topic="t", partitions=day.topics["t"])


def _another_topic(day: _Day) -> str:
    name = "uvwxyz"[len(day.topics) - 1]
    day.topics[name] = day.random.choice([2, 4])
    day.do("create", topic=name, partitions=day.topics[name])
    return name


def _newcomer(day: _Day) -> None:
    if not day.alive:
        _start_again(day)
    _join(day, *day.reads, _another_topic(day))


def _newcomer_elsewhere(day: _Day) -> None:
    others = [topic for topic in day.topics if topic not in day.reads]
    _join(day, others[0] if others else _another_topic(day))


def _subscribe_more(day: _Day) -> None:
    if not day.alive:
        _start_again(day)
    label = day.one()
    day.alive[label] = [*day.alive[label], _another_topic(day)]
    day.do("subscribe", member=label, topics=day.alive[label])


def _delete_topic(day: _Day) -> None:
    others = [topic for topic in day.topics if topic not in day.reads]
    topic = others[-1]
    del day.topics[topic]
    for topics in [*day.alive.values(), *day.gone.values()]:
        if topic in topics:
            topics.remove(topic)
            if not topics:
                topics.extend(day.reads)
    day.do("delete_topic", topic=topic)


def _create_matching(day: _Day) -> None:
    _another_topic(day)
    day.steps[-1]["matching"] = True
    for topics in day.alive.values():
        topics.append(day.steps[-1]["topic"])


def _plain(do: str, **what: Any) -> Callable[[_Day], None]:
    return lambda day: day.do(do, **what)


_STEPS: dict[str, Callable[[_Day], None]] = {
    "join": _join,
    "join_mixed": lambda day: _join(day, mixed=True),
    "back": _back,
    "leave": _ends("leave"),
    "kill": _ends("kill"),
    "freeze": _with_one("freeze"),
    "blink": _with_one("blink", seconds=3),
    "slow": _with_one("slow", seconds=60),
    "busy": _with_one("busy", seconds=8),
    "stick": _with_one("stick"),
    "crash_loop": _with_one("crash_loop", times=3),
    "flap": _with_one("flap", times=3),
    "held": _held,
    "deploy": _deploy("rolling"),
    "deploy_at_once": _deploy("at_once"),
    "deploy_static": _deploy("static"),
    "stop": _stop,
    "start_again": _start_again,
    "add_partitions": _add_partitions,
    "newcomer": _newcomer,
    "newcomer_elsewhere": _newcomer_elsewhere,
    "subscribe_more": _subscribe_more,
    "delete_topic": _delete_topic,
    "create_matching": _create_matching,
    "pattern": lambda day: None,
    "static": lambda day: None,
    "reset": _plain("reset", offset=2),
    "outsider": _plain("outsider", seconds=6),
    "restart_broker": _plain("restart_broker", seconds=6),
    "wait": _plain("wait", seconds=10),
    "long_wait": _plain("wait", seconds=60),
}
