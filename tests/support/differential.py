"""The same random requests to muster and to Apache Kafka 4.2, one after the other, and where their answers differ.

A script produces one request after another, from a seed and from earlier answers. Each is sent to both brokers; what
necessarily differs between them (assigned ids, addresses) gets the same name in both answers before they are compared.
`ALLOWED` in allowed_differences.py has all other allowed differences.

A request may have to wait for others, as a JoinGroup does: it counts as waiting when neither broker has answered for a
moment. On a busy machine one broker may be late by more than that, and handle two requests in a different order. So a
difference counts only if it recurs when the seed is played alone, with a long moment.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from muster.errors import ErrorCode
from muster.protocol.primitives import Request, Struct
from tests.support.allowed_differences import ALLOWED
from tests.support.brokers import RawClient
from tests.support.same_answers import UNORDERED, differences

MOMENT_S = 0.03
LONG_MOMENT_S = 0.4
LATEST_S = 20.0
"""Only in case of a hang: by then an answer from one broker has come from the other, too."""

AT_ONCE = 12
"""Seeds that are played concurrently: most of their time is spent waiting."""

_ALONE = threading.Lock()
"""The content of a request that must be in flight alone."""

_HIDDEN = {"host", "port", "cluster_id", "documentation", "throttle_time_ms", "log_dir", "total_bytes", "usable_bytes"}
_MESSAGES = {"error_message", "batch_index_error_message"}
_IDS = ("member_id", "leader")
_NUMBERS = ("producer_id", "session_id")
"""Numbers that a broker assigns; all others are compared as they are."""
_UUID_LENGTH = 36
_ERRORS = {code.value: code.name for code in ErrorCode}


@dataclass
class Side:
    """One of the two brokers: its connections, and the names of values that only it assigned (member ids, topics,
    …)."""

    bootstrap: str
    connections: dict[str, RawClient] = field(default_factory=dict)
    waiting: dict[str, tuple[type[Request[Any]], int]] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    """Named values, by name."""

    def call(self, value: Any, name: str, field: str = "") -> None:
        """Name a value that this broker assigned; a number only in one field, because others may happen to be equal."""
        self.names[(field, value) if field else value], self.given[name] = name, value

    def send(self, by: str, request: Request[Any], version: int) -> None:
        """Send a request on one of the connections."""
        if by not in self.connections:
            self.connections[by] = RawClient(self.bootstrap)
        self.connections[by].send(request, version, f"client-{by}")
        self.waiting[by] = type(request), version

    def ask(self, request: Request[Any], version: int) -> Any:
        """A request that is not compared: for preparation."""
        self.send("aside", request, version)
        return self.connections["aside"].receive(*self.waiting.pop("aside"))

    def take(self, by: str) -> Any:
        """The next answer on a connection; "closed" if the broker closes it instead."""
        try:
            return self.connections[by].receive(*self.waiting.pop(by))
        except (EOFError, ConnectionError):
            self.connections.pop(by).close()
            return "closed"

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections.values():
            connection.close()

    def plain(self, value: Any, name: str = "") -> Any:
        """An answer as dictionaries and lists that can be compared between brokers."""
        if isinstance(value, Struct):
            return {each: self.plain(getattr(value, each), each) for each in value.__slots__ if each not in _HIDDEN}
        if isinstance(value, list) and name != "records":
            found = [self.plain(one, name.removesuffix("s")) for one in value]
            return sorted(found, key=repr) if name in UNORDERED | {"members"} else found
        if name == "error_code":
            return _ERRORS.get(value, value)
        if name in _MESSAGES:
            return bool(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = bytes(value)
        if name in _IDS and value not in self.names and len(value) > _UUID_LENGTH:
            return "an id that no answer has contained yet"
        if name in _NUMBERS:
            return self.names.get((name, value), value)
        return self.names.get(value, value) if isinstance(value, (str, bytes)) else value


class Ask(NamedTuple):
    """One request: who sends it, in which version, and its content for each of the brokers."""

    by: str
    version: int
    build: Callable[[Side], Request[Any]]
    mask: Callable[[Any], None] | None = None
    """Removes from an answer what must differ."""
    may_wait: bool = False
    """Whether it may have to wait for other clients' requests."""
    alone: bool = False
    """Whether no other such request may be in flight: one that Kafka lets a transaction's coordinator verify. It sends
    waiting ones together, and refuses all of them with the error codes of the first one's version."""


class Script(Protocol):
    """The requests of one seed."""

    steps: int

    def begin(self, sides: Sequence[Side]) -> None:
        """Prepare what the requests are about."""

    def next(self, waiting: Collection[str]) -> Ask | None:
        """The next request; a connection in `waiting` is busy. None: no request this time."""

    def learn(self, ask: Ask, answers: Sequence[tuple[Side, Any]]) -> None:
        """Record the two answers to a request, before they are compared."""

    def end(self, sides: Sequence[Side]) -> None:
        """Remove what the requests have created."""


class DifferenceError(Exception):
    """The answers to a request differ."""


class Play:
    """One script, played to both brokers."""

    def __init__(self, script: Script, bootstraps: Iterable[str], moment_s: float) -> None:
        self._script = script
        self._sides = [Side(each) for each in bootstraps]
        self._moment_s = moment_s
        self.compared = 0
        self._asked: list[tuple[Ask, Request[Any]]] = []
        self._open: dict[str, Ask] = {}

    def run(self) -> str | None:
        """Play it; returns the difference, with all requests until then, or None."""
        try:
            self._script.begin(self._sides)
            for _ in range(self._script.steps):
                ask = self._script.next(self._open)
                if ask is not None:
                    self._ask(ask)
        except DifferenceError as error:
            asked = [f"{ask.by}: v{ask.version} {request!r}"[:1500] for ask, request in self._asked]
            return "\n".join([*asked, str(error)])
        finally:
            self._script.end(self._sides)
            for side in self._sides:
                side.close()
        return None

    def _ask(self, ask: Ask) -> None:
        requests = [ask.build(side) for side in self._sides]
        self._asked.append((ask, requests[0]))
        self._open[ask.by] = ask
        with _ALONE if ask.alone else contextlib.nullcontext():
            for side, request in zip(self._sides, requests, strict=True):
                side.send(ask.by, request, ask.version)
            settled = self._settled()
        answered = [(self._open.pop(by), answers) for by, answers in settled.items()]
        for each, answers in answered:
            self._script.learn(each, list(zip(self._sides, answers, strict=True)))
        for each, answers in answered:
            self._compare(each, answers)

    def _settled(self) -> dict[str, list[Any]]:
        """The answers of both by connection, once the same requests have been answered, or wait, on both."""
        found: list[dict[str, Any]] = [{}, {}]
        latest = time.monotonic() + LATEST_S
        while True:
            same = found[0].keys() == found[1].keys()
            if same and not self._sides[0].waiting:
                break
            may_wait = same and self._may_wait()
            heard = self._hear(self._moment_s if may_wait else latest - time.monotonic())
            if not heard and may_wait:
                break
            if not heard:
                waiting = [sorted(side.waiting) for side in self._sides]
                raise DifferenceError(f"these wait: ours {waiting[0]}, Kafka's {waiting[1]}")
            for which, by in heard:
                found[which][by] = self._sides[which].take(by)
        return {by: [answers[by] for answers in found] for by in found[0]}

    def _hear(self, timeout_s: float) -> list[tuple[int, str]]:
        """The connections on which an answer is ready, by side; none if that takes too long."""
        sockets = {
            side.connections[by].socket: (which, by) for which, side in enumerate(self._sides) for by in side.waiting
        }
        return [sockets[each] for each in select.select(list(sockets), [], [], max(timeout_s, 0))[0]]

    def _may_wait(self) -> bool:
        return all(self._open[by].may_wait for by in self._sides[0].waiting)

    def _compare(self, ask: Ask, answers: list[Any]) -> None:
        self.compared += 1
        ours, theirs = (side.plain(answer) for side, answer in zip(self._sides, answers, strict=True))
        if ask.mask is not None and "closed" not in (ours, theirs):
            ask.mask(ours)
            ask.mask(theirs)
        request = ask.build(self._sides[0])
        lines = [] if ours == theirs else differences(ours, theirs) or [f": ours {ours!r}, Kafka's {theirs!r}"]
        if lines and not any(each.applies(request, ask.version, ours, theirs) for each in ALLOWED):
            raise DifferenceError("\n".join(f"the answer to {ask.by} differs: {line}" for line in lines))


class Played(NamedTuple):
    """The results of scripts."""

    wrong: list[str]
    """For each seed whose answers differ, the requests and the differences."""
    compared: int
    """The number of compared answers from each broker, without those of seeds that were played again."""


def play_all(seeds: Iterable[int], script: Callable[[int], Script], bootstraps: Sequence[str]) -> Played:
    """Play scripts, several of them concurrently."""

    def play(seed: int) -> tuple[int | None, int]:
        played = Play(script(seed), bootstraps, MOMENT_S)
        return (seed if played.run() else None), played.compared

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(play, seeds))
    reported = [(seed, Play(script(seed), bootstraps, LONG_MOMENT_S).run()) for seed, _ in found if seed is not None]
    return Played([f"seed {seed}\n{what}" for seed, what in reported if what], sum(compared for _, compared in found))
