"""Faults as data: which requests a rule matches, which of them it strikes, and what it does.

A `FaultPlan` holds a broker's rules in the order in which they were added. Each request is passed to `strike` once.
Every rule counts the requests that it matches, from when it was added; if several are due to strike a request, only the
one that was added first does. With `probability`, each client has its own random generator, seeded with the plan's
seed, the rule's name and the client id: neither another client's requests nor another rule affect its draws.
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
from muster.testing.rules.error_answers import WITHOUT_ERRORS
from muster.testing.rules.facts import Facts

APIS = {
    name: key
    for key, request in REQUESTS.items()
    if key in ADVERTISED and (name := request.__name__.removesuffix("Request")) not in WITHOUT_ERRORS
}
"""The requests that a rule can match, by Kafka's name, with their API keys."""

EFFECTS = {
    "error": "the request is not handled: every error code in the answer is `error`",
    "lose_request": "the request is not handled, and its connection is closed, as if the broker had died first",
    "lose_answer": "the request is handled, then its connection is closed, as if the broker had died just after",
    "hang": "the request is not handled, and its connection stays open until the client times out",
    "delay": "the request is handled `delay_ms` later; later requests on its connection wait",
    "hold": "the request is handled once the fault releases it or is removed",
    "cut": "the request is handled, but its connection is closed after half of the answer",
    "throttle": "the request is handled, and its answer has `throttle_ms` as throttle time",
    "damage": "a Fetch whose answer has records is handled, but a bit of its record batches is flipped",
}
"""What a rule does."""

_IN_MS = {"delay": "delay_ms", "throttle": "throttle_ms"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault: which requests it matches, when it strikes, what it does.

    Args:
        do: one of EFFECTS.
        apis: the requests, by Kafka's names ("OffsetCommit").
        client, group, member, transactional_id, topic: patterns (`billing-*`) of client id, group id, member id or
            group.instance.id, transactional id, topic. None: any.
        partition: only requests with this partition, of a topic that matches.
        nth: strike only the n-th of these requests, counted from 1.
        after: skip this many requests first.
        every: strike every n-th request.
        times: the most times to strike; None: without limit.
        probability: the probability of striking a request that it would otherwise always strike.
    """

    name: str
    do: str
    apis: tuple[str, ...]
    client: str | None = None
    group: str | None = None
    member: str | None = None
    transactional_id: str | None = None
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
            unknown = ", ".join(api for api in self.apis if api not in APIS)
            what = f"{unknown} is not a request that a fault can match" if unknown else "a fault needs a request"
            raise ConfigError(f"{what}: choose from {', '.join(APIS)}")
        if self.do not in EFFECTS:
            raise ConfigError(f"do={self.do!r} is not an effect: choose one of {', '.join(EFFECTS)}")
        self._check_effect()
        self._check_when()

    def _check_effect(self) -> None:
        if (self.do == "error") != (self.error is not None):
            raise ConfigError("error is for do='error' only, which requires it")
        if self.error is not None and self.error not in ErrorCode.__members__:
            raise ConfigError(f"error={self.error!r} is not one of Kafka's error codes, such as NOT_COORDINATOR")
        for effect, name in _IN_MS.items():
            if (getattr(self, name) > 0) != (self.do == effect):
                raise ConfigError(f"{name} is for do={effect!r} only, which requires a value above 0")
        if self.do == "damage" and self.apis != ("Fetch",):
            raise ConfigError("do='damage' is for Fetch only, whose responses have record batches")

    def _check_when(self) -> None:
        if (self.nth is not None and self.nth < 1) or self.every < 1 or self.after < 0:
            raise ConfigError("nth and every must be at least 1, after at least 0")
        if self.times is not None and self.times < 1:
            raise ConfigError("times must be at least 1, or None for no limit")
        if not 0 < self.probability <= 1:
            raise ConfigError("probability must be above 0 and at most 1")

    @property
    def error_code(self) -> ErrorCode:
        """The error in its answers."""
        return ErrorCode[self.error or "NONE"]

    def effect(self) -> dict[str, Any]:
        """The fields that say what it does, without those that select requests."""
        more = {name: getattr(self, name) for name in ("error", "delay_ms", "throttle_ms") if getattr(self, name)}
        return {"do": self.do, **more}

    def matches(self, facts: Facts) -> bool:
        """Whether it matches a request."""
        return (
            facts.api in self.apis
            and (self.client is None or fnmatchcase(facts.client_id, self.client))
            and (self.group is None or _any_match(facts.groups, self.group))
            and (self.member is None or _any_match(facts.members, self.member))
            and (self.transactional_id is None or _any_match(facts.transactional_ids, self.transactional_id))
            and self._matches_partitions(facts.partitions)
        )

    def selects(self, topic: str, index: int) -> bool:
        """Whether it can match a request that names this partition."""
        return (self.topic is None or fnmatchcase(topic, self.topic)) and self.partition in (None, index)

    def _matches_partitions(self, partitions: Mapping[str, frozenset[int]]) -> bool:
        if self.topic is None and self.partition is None:
            return True
        pattern = self.topic or "*"
        matching = [indexes for topic, indexes in partitions.items() if fnmatchcase(topic, pattern)]
        return bool(matching) if self.partition is None else any(self.partition in indexes for indexes in matching)

    def __str__(self) -> str:
        keywords = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name not in ("name", "do", "apis") and getattr(self, each.name) != each.default
        ]
        return f"{self.do}({', '.join([*map(repr, self.apis), *keywords])})"


def _any_match(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def from_json(values: Mapping[str, Any], name: str) -> Rule:
    """The rule in a JSON object with the fields of `Rule`; `name` is the default name.

    Raises:
        ConfigError: a field is unknown or has an invalid value. A typo must not result in a fault that never strikes.
    """
    types = {each.name: str(each.type) for each in fields(Rule)}
    for key, value in values.items():
        if key not in types:
            raise ConfigError(f"{key!r} is not a field of a fault: choose from {', '.join(types)}")
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
class InstalledRule:
    """A rule in a plan, with its counts."""

    rule: Rule
    seed: int = 0
    seen: int = 0
    """Matching requests since it was added."""
    struck: int = 0
    _draws: dict[str, random.Random] = field(default_factory=dict)

    def is_due(self, facts: Facts) -> bool:
        """Count a request if the rule matches it; returns whether the rule is due to strike it."""
        rule = self.rule
        if not rule.matches(facts):
            return False
        self.seen += 1
        if rule.times is not None and self.struck >= rule.times:
            return False
        if rule.nth is not None and self.seen != rule.nth:
            return False
        if self.seen <= rule.after or (self.seen - rule.after) % rule.every:
            return False
        return rule.probability == 1 or self._draw(facts.client_id) < rule.probability

    def _draw(self, client_id: str) -> float:
        if client_id not in self._draws:
            self._draws[client_id] = random.Random(f"{self.seed}/{self.rule.name}/{client_id}")
        return self._draws[client_id].random()


class FaultPlan:
    """The rules of a broker."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.installed: dict[str, InstalledRule] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        """How many requests there were, by client id and API."""
        self._added = 0

    def add(self, values: Mapping[str, Any]) -> Rule:
        """Add a rule, from the fields of a JSON object.

        Raises:
            ConfigError: the rule is not valid, or its name is taken.
        """
        self._added += 1
        rule = from_json(values, f"fault-{self._added}")
        if rule.name in self.installed:
            raise ConfigError(f"a fault named {rule.name!r} exists already")
        self.installed[rule.name] = InstalledRule(rule, self.seed)
        return rule

    def remove(self, name: str) -> None:
        """Remove a rule, if it exists."""
        self.installed.pop(name, None)

    def strike(self, facts: Facts) -> Rule | None:
        """Count a request; returns the rule that strikes it, if any. Rules that damage records strike its response
        instead."""
        self.requests[facts.client_id, facts.api] += 1
        return self._strike(facts, damages=False)

    def may_damage(self, facts: Facts) -> bool:
        """Whether `strike_records` can return a rule for the response to this request."""
        return facts.api == "Fetch" and any(each.rule.do == "damage" for each in self.installed.values())

    def strike_records(self, facts: Facts) -> Rule | None:
        """Count a Fetch whose response has records, of the partitions in `facts`; returns the rule that damages them,
        if any. The empty response to a poll at the log's end is not counted: there is nothing to damage in it."""
        return self._strike(facts, damages=True)

    def _strike(self, facts: Facts, *, damages: bool) -> Rule | None:
        rules = [installed for installed in self.installed.values() if (installed.rule.do == "damage") is damages]
        due = [installed for installed in rules if installed.is_due(facts)]
        if not due:
            return None
        due[0].struck += 1
        return due[0].rule
