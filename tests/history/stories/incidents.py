"""Incidents that are typical of operations: hand-written stories. No seed leads to them."""

from __future__ import annotations

from typing import Any

from tests.history.stories.draw import Step, Story

USUAL = {"session.timeout.ms": "20000", "max.poll.interval.ms": "30000"}
"""The settings of the members of drawn stories."""
STATIC = {"session.timeout.ms": "30000", "max.poll.interval.ms": "40000"}


def _does(do: str, member: str | None = None, **what: Any) -> Step:
    return {"do": do, **({} if member is None else {"member": member}), **what}


def _comes(do: str, member: str, *, topics: tuple[str, ...] = ("t",), **what: Any) -> Step:
    return _does(do, member, topics=list(topics), **what)


def _start(count: int, **what: Any) -> Step:
    return _does("start", members=[f"m{at}" for at in range(1, count + 1)], topics=["t"], **what)


def _incident(seed: int, theme: str, client: str, *steps: Step, **more: Any) -> Story:
    given = {"traffic": "always", "commit": "auto", "config": USUAL, "partitions": 6, **more}
    return Story(seed, theme, (client,), steps=steps, **given)


def _overlapping() -> list[Step]:
    """A second deploy begins before the first is finished: two members at a time are absent."""
    turns = [("leave", "m1"), ("leave", "m2"), ("back", "m1"), ("leave", "m3"), ("back", "m2"), ("leave", "m4")]
    turns += [("back", "m3"), ("leave", "m1"), ("back", "m4"), ("leave", "m2"), ("back", "m1")]
    steps = [
        _comes(do, member, settles=False) if do == "back" else _does(do, member, settles=False) for do, member in turns
    ]
    return [*steps, _comes("back", "m2")]


def _every_minute() -> list[Step]:
    steps: list[Step] = []
    for topic in "uvwx":
        steps += [_does("create", topic=topic, partitions=2, matching=True), _does("wait", seconds=20)]
    return [*steps, _does("delete_topic", topic="u"), _does("wait", seconds=5)]


def _to_zero() -> list[Step]:
    """An autoscaler that scales down to zero members and up again."""
    members = ["m1", "m2", "m3"]
    return [_does("stop", members=members), _does("start", members=members, topics=["t"])] * 4


INCIDENTS: tuple[Story, ...] = (
    _incident(
        401,
        "pause",
        "java-range",
        _start(3),
        _does("blink", "m1", seconds=15),
        _does("blink", "m2", seconds=15),
        _comes("held", "m4", busy="m2", seconds=12, stands_still=True),
        _does("blink", "m3", seconds=15),
    ),
    _incident(402, "deploys_overlap", "confluent-range", _start(4), _does("wait", seconds=5), *_overlapping()),
    _incident(
        403,
        "wrong_topic",
        "confluent-range",
        _start(3),
        _does("create", topic="tt", partitions=1),
        _comes("join", "m4", topics=("tt",)),
        _does("wait", seconds=70),
        _does("kill", "m4"),
        _comes("back", "m4"),
    ),
    _incident(404, "supervised", "confluent-consumer", _start(3), _does("crash_loop", "m2", times=4, rest_s=40)),
    _incident(405, "twins", "java-range", _start(3, static=True), *[_does("twin", "m2")] * 5, config=STATIC),
    _incident(
        406,
        "reset_while_down",
        "java-consumer",
        _start(2),
        _does("wait", seconds=10),
        _does("stop", members=["m1", "m2"]),
        _does("reset", offset=2),
        _does("start", members=["m1", "m2"], topics=["t"]),
        _does("kill", "m1"),
    ),
    _incident(407, "regex_each_minute", "confluent-cooperative", _start(3, pattern=True), *_every_minute()),
    _incident(
        408,
        "just_too_slow",
        "java-cooperative",
        _start(3),
        _does("wait", seconds=10),
        _does("slow", "m2", seconds=33, settles=False),
        _does("wait", seconds=10),
        _does("busy", "m1", seconds=25),
        _does("leave", "m3"),
    ),
    _incident(
        409,
        "refused",
        "confluent-cooperative",
        _start(3),
        _does("refused", "m4", client="confluent-range", topics=["t"], seconds=30),
        _comes("join", "m5"),
        _does("refused", "m6", client="confluent-range", topics=["t"], seconds=15),
    ),
    _incident(
        410,
        "blue_green",
        "java-cooperative",
        _start(3),
        _comes("join", "m4", settles=False),
        _comes("join", "m5", settles=False),
        _comes("join", "m6"),
        _does("wait", seconds=10),
        _does("leave", "m1"),
        _does("leave", "m2"),
        _does("leave", "m3"),
        _does("wait", seconds=5),
        _does("kill", "m5"),
    ),
    _incident(411, "to_zero", "confluent-consumer", _start(3), *_to_zero()),
    _incident(
        412,
        "closed_and_stays",
        "java-range",
        _start(3),
        _does("leave", "m3", how="stay"),
        _comes("back", "m3"),
        _does("leave", "m2"),
        _does("leave", "m1", how="stay"),
    ),
    _incident(
        413,
        "rack_lost",
        "aiokafka-range",
        _start(4),
        _does("wait", seconds=5),
        _does("kill", "m1", settles=False),
        _does("kill", "m2", settles=False),
        _comes("back", "m1", settles=False),
        _comes("back", "m2"),
        _does("kill", "m3", settles=False),
        _does("kill", "m4"),
    ),
    _incident(
        414,
        "enforced",
        "java-cooperative",
        _start(3),
        *[step for label in ("m1", "m2", "m3", "m1", "m2") for step in (_does("rejoin", label),)],
        _does("leave", "m2"),
    ),
    _incident(
        415,
        "commits_rarely",
        "java-range",
        _start(3),
        _does("wait", seconds=60),
        _does("kill", "m2"),
        _comes("back", "m2"),
        _does("wait", seconds=60),
        _does("leave", "m3"),
        _comes("back", "m3"),
        _does("wait", seconds=60),
        _does("slow", "m1", seconds=50),
        commit="manual:25000",
    ),
    _incident(
        416,
        "dries_up",
        "confluent-range",
        _start(3),
        _does("wait", seconds=15),
        _does("dry_up", "m2", seconds=20),
        _does("leave", "m2"),
        _comes("join", "m4"),
        _does("wait", seconds=15),
        _does("dry_up", "m4", seconds=28),
        _does("leave", "m4"),
        _does("kill", "m3"),
    ),
    _incident(
        417,
        "static_scaled_in",
        "java-cooperative",
        _start(4, static=True),
        _does("wait", seconds=5),
        _does("leave", "m4"),
        _does("leave", "m3"),
        _does("wait", seconds=5),
        config=STATIC,
    ),
    _incident(
        418,
        "outage",
        "java-range",
        _start(3),
        _does("wait", seconds=10),
        _does("outage", members=["m1", "m2", "m3"], seconds=45),
        _does("wait", seconds=10),
        _does("outage", members=["m1", "m2"], seconds=40),
    ),
    _incident(
        419,
        "crash_in_deploy",
        "confluent-range",
        _start(3),
        _does("wait", seconds=5),
        _does("kill", "m2", settles=False),
        _does("leave", "m3", settles=False),
        _comes("back", "m3"),
        _does("wait", seconds=5),
        _comes("back", "m2", settles=False),
        _does("leave", "m1", settles=False),
        _comes("back", "m1"),
    ),
    _incident(
        420,
        "resubscribes",
        "confluent-cooperative",
        _start(3),
        *[
            step
            for _ in range(3)
            for step in (_does("unsubscribe", "m2"), _comes("subscribe_again", "m2"), _does("wait", seconds=8))
        ],
    ),
    _incident(
        421,
        "dries_up",
        "java-range",
        _start(3),
        _does("wait", seconds=15),
        _does("dry_up", "m2", seconds=18),
        _does("leave", "m2"),
        _comes("join", "m4"),
        _does("wait", seconds=15),
        _does("dry_up", "m4", seconds=27),
        _does("leave", "m4"),
        commit="manual",
        partitions=9,
    ),
    _incident(
        422,
        "two_crashes",
        "confluent-consumer",
        _start(5),
        _does("wait", seconds=5),
        _does("kill", "m2", settles=False),
        _comes("back", "m2"),
        _does("wait", seconds=20),
        _does("kill", "m4", settles=False),
        _comes("back", "m4"),
        _does("wait", seconds=20),
        _comes("join", "m6"),
    ),
    _incident(
        423,
        "two_crashes",
        "aiokafka-range",
        _start(5),
        _does("wait", seconds=5),
        _does("kill", "m2"),
        _comes("back", "m2"),
        _does("wait", seconds=20),
        _does("kill", "m4"),
        _comes("back", "m4"),
        commit="manual",
    ),
    _incident(
        424,
        "dries_up",
        "java-consumer",
        _start(3),
        _does("wait", seconds=15),
        _does("dry_up", "m2", seconds=17),
        _does("leave", "m2"),
        _does("wait", seconds=25),
        _does("dry_up", "m3", seconds=5),
        _does("kill", "m1"),
        _does("wait", seconds=20),
        commit="manual",
        partitions=9,
    ),
)


def _workers(seed: int, theme: str, *steps: Step) -> Story:
    return _incident(seed, theme, "connect-sessioned", _does("start", members=["m1"], topics=[]), *steps)


def _sinks() -> list[Step]:
    return [
        _does("connector", name="s", tasks=3),
        _comes("join", "m2", topics=()),
        _does("connector", name="s", tasks=4),
        _does("connector", name="r", tasks=2),
        _does("wait", seconds=10),
        _does("kill", "m2"),
        _comes("back", "m2", topics=()),
        _does("connector", name="r", tasks=3),
        _does("leave", "m1"),
    ]


CONNECT: tuple[Story, ...] = (
    _workers(
        431,
        "workers",
        _comes("join", "m2", topics=()),
        _comes("join", "m3", topics=()),
        _does("leave", "m2"),
        _comes("back", "m2", topics=()),
        _does("kill", "m3"),
        _comes("back", "m3", topics=()),
        _does("freeze", "m1"),
    ),
    _workers(432, "connectors", *_sinks()),
    _workers(433, "sink", *_sinks()),
)
"""Workers of Kafka Connect; of the third, the group of a sink's consumers is recorded."""

LOST = _does("lose_coordinator", how="kill", seconds=12)
STOPPED = _does("lose_coordinator", how="stop", seconds=12)

COORDINATORS: tuple[Story, ...] = tuple(
    _incident(
        seed,
        "coordinator",
        client,
        _start(3),
        _does("wait", seconds=5),
        first,
        _does("wait", seconds=5),
        _does("kill", "m2"),
        _comes("back", "m2"),
        _does("lead", node=3),
        _does("leave", "m3"),
        second,
        _comes("join", "m4"),
        _does("lead", node=2),
        first,
    )
    for seed, client, first, second in (
        (441, "java-range", LOST, STOPPED),
        (442, "confluent-cooperative", STOPPED, LOST),
        (443, "java-consumer", STOPPED, LOST),
        (444, "aiokafka-range", LOST, STOPPED),
    )
)
"""On three brokers, whose coordinators stop or move."""
