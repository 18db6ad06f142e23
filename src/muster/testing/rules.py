"""Faults as data: which requests a rule is about, on which of them it strikes, and what happens then. Pure.

A `Plan` holds a broker's rules in the order in which they were added. Each request is shown to it once (`strike`); the
first rule that strikes decides. A rule counts the requests that it is about from its own installation on, so that what
clients did before does not matter. With `probability` each of a client's requests draws from a generator of its own,
seeded by the plan's seed, the rule's name and the client: two clients do not disturb each other's draws.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from muster.errors import ConfigError, ErrorCode
from muster.protocol.api import ADVERTISED, REQUESTS
from muster.testing.answers import WITHOUT_ERRORS
from muster.testing.facts import Facts

APIS = {
    name: key
    for key, request in REQUESTS.items()
    if key in ADVERTISED and (name := request.__name__.removesuffix("Request")) not in WITHOUT_ERRORS
}
"""The names of the requests that a broker serves, which a rule may be about, as Kafka spells them, with their keys."""

EFFECTS = {
    "error": "the request is not handled, its answer has the error `error` wherever it can have one",
    "lose_request": "the request is not handled, its connection is closed: the broker died before it",
    "lose_answer": "the request is handled and durable, then its connection is closed: the broker died after it",
    "hang": "the request is not handled, its connection stays open: the client's own timeout has to end it",
    "delay": "the request is handled `delay_ms` later; requests after it on the connection wait",
    "hold": "the request is handled when the rule is released, or removed",
    "cut": "the request is handled, half of its answer is sent, then its connection is closed",
    "throttle": "the request is handled, its answer asks the client to wait for `throttle_ms`",
    "damage": "the request (a Fetch) is handled, a bit of the record batches in its answer is flipped",
}
"""What a rule does."""

_IN_MS = {"delay": "delay_ms", "throttle": "throttle_ms"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault: the requests that it is about, when it strikes, what it does.

    Args:
        do: one of EFFECTS.
        apis: the requests, by Kafka's names ("OffsetCommit").
        client, group, member, topic: patterns (`billing-*`) of client id, group id, member id or group.instance.id,
            topic. None: any.
        partition: only requests with this partition, of a topic that matches.
        nth: strikes at the n-th of these requests only (from 1). after: not at the first `after`. every: at each n-th.
        times: how often it strikes at most; None: as long as it is there.
        probability: of a strike, at each request that it would otherwise strike at.
    """

    name: str
    do: str
    apis: tuple[str, ...]
    client: str | None = None
    group: str | None = None
    member: str | None = None
    topic: str | None = None
    partition: int | None = None
    nth: int | None = None
    after: int = 0
    every: int = 1
    times: int | None = 1
    probability: float = 1.0
    error: str | None = None
    delay_ms: int = 0
    throttle_ms: int = 0

    def __post_init__(self) -> None:
        if not self.apis or not APIS.keys() >= set(self.apis):
            unknown = ", ".join(api for api in self.apis if api not in APIS) or "nothing"
            raise ConfigError(f"{unknown} is not a request: name some of {', '.join(APIS)}")
        if self.do not in EFFECTS:
            raise ConfigError(f"do={self.do!r} is not an effect: choose one of {', '.join(EFFECTS)}")
        self._check_effect()
        self._check_when()

    def _check_effect(self) -> None:
        if (self.do == "error") != (self.error is not None):
            raise ConfigError("an error code (error=…) goes with do='error', and with that alone")
        if self.error is not None and self.error not in ErrorCode.__members__:
            raise ConfigError(f"error={self.error!r} is not one of Kafka's error codes, such as NOT_COORDINATOR")
        for effect, name in _IN_MS.items():
            if (getattr(self, name) > 0) != (self.do == effect):
                raise ConfigError(f"{name} (above 0) goes with do={effect!r}, and with that alone")
        if self.do == "damage" and self.apis != ("Fetch",):
            raise ConfigError("do='damage' is about Fetch alone: only its answers have record batches")

    def _check_when(self) -> None:
        if (self.nth is not None and self.nth < 1) or self.every < 1 or self.after < 0:
            raise ConfigError("nth and every count from 1, after from 0")
        if self.times is not None and self.times < 1:
            raise ConfigError("times is at least 1; None: as long as the fault is there")
        if not 0 < self.probability <= 1:
            raise ConfigError("probability is above 0, and at most 1")

    @property
    def error_code(self) -> ErrorCode:
        """The error that it answers with."""
        return ErrorCode[self.error or "NONE"]

    def is_about(self, facts: Facts) -> bool:
        """Whether a request is one of those that it is about."""
        return (
            facts.api in self.apis
            and (self.client is None or fnmatchcase(facts.client_id, self.client))
            and (self.group is None or _any_match(facts.groups, self.group))
            and (self.member is None or _any_match(facts.members, self.member))
            and self._is_about_partitions(facts.partitions)
        )

    def _is_about_partitions(self, partitions: Mapping[str, frozenset[int]]) -> bool:
        if self.topic is None and self.partition is None:
            return True
        named = [found for topic, found in partitions.items() if self.topic is None or fnmatchcase(topic, self.topic)]
        return bool(named) if self.partition is None else any(self.partition in found for found in named)

    def __str__(self) -> str:
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name not in ("name", "do", "apis") and getattr(self, each.name) != each.default
        ]
        return f"{self.do}({', '.join(map(repr, self.apis))}{''.join(f', {one}' for one in given)})"


def _any_match(found: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(one, pattern) for one in found)


def from_json(values: Mapping[str, Any], name: str) -> Rule:
    """The rule in a JSON object with the fields of `Rule`; `name` is that of a rule without one.

    Raises:
        ConfigError: a field is not one of a rule's, or has a value of another kind: a typing error must not look like a
            fault that never strikes.
    """
    types = {each.name: str(each.type) for each in fields(Rule)}
    for key, value in values.items():
        if key not in types:
            raise ConfigError(f"{key!r} is not a field of a fault: there are {', '.join(types)}")
        if not _fits(value, types[key]):
            raise ConfigError(f"{key}={value!r}: it must be {_SPELLED[types[key]]}")
    if "do" not in values or "apis" not in values:
        raise ConfigError("a fault needs 'do' and 'apis'")
    return Rule(**{"name": name, **values, "apis": tuple(values["apis"])})


_SPELLED = {
    "str": "text",
    "str | None": "text or null",
    "int": "a whole number",
    "int | None": "a whole number or null",
    "float": "a number",
    "tuple[str, ...]": "a list of names",
}


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return kind.endswith("None")
    match kind.removesuffix(" | None"):
        case "str":
            return isinstance(value, str)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


@dataclass(slots=True)
class Standing:
    """A rule in a plan, and what became of it."""

    rule: Rule
    seed: int = 0
    seen: int = 0
    """The requests that it was about, since it was added."""
    struck: int = 0
    _draws: dict[str, random.Random] = field(default_factory=dict)

    def strikes(self, facts: Facts) -> bool:
        """Whether it strikes at a request."""
        rule = self.rule
        if not rule.is_about(facts):
            return False
        self.seen += 1
        if rule.times is not None and self.struck >= rule.times:
            return False
        if rule.nth is not None and self.seen != rule.nth:
            return False
        if self.seen <= rule.after or (self.seen - rule.after) % rule.every:
            return False
        if rule.probability < 1 and self._draw(facts.client_id) >= rule.probability:
            return False
        self.struck += 1
        return True

    def _draw(self, client_id: str) -> float:
        if client_id not in self._draws:
            self._draws[client_id] = random.Random(f"{self.seed}/{self.rule.name}/{client_id}")
        return self._draws[client_id].random()


class Plan:
    """The rules of a broker."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.standing: dict[str, Standing] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        """The requests that were shown to it, by client id and API."""
        self._added = 0

    def add(self, values: Mapping[str, Any]) -> Rule:
        """Add a rule, given as `from_json` takes it.

        Raises:
            ConfigError: it is not one, or there is one of its name.
        """
        self._added += 1
        rule = from_json(values, f"fault-{self._added}")
        if rule.name in self.standing:
            raise ConfigError(f"there is a fault of the name {rule.name!r} already")
        self.standing[rule.name] = Standing(rule, self.seed)
        return rule

    def remove(self, name: str) -> None:
        """Remove a rule, if it is there."""
        self.standing.pop(name, None)

    def strike(self, facts: Facts) -> Rule | None:
        """Show it a request: the first rule that strikes at it, if any does."""
        self.requests[facts.client_id, facts.api] += 1
        for standing in self.standing.values():
            if standing.strikes(facts):
                return standing.rule
        return None
