"""Seeded stories of sessions with ZooKeeper, played on the in-memory one and on a real one in the same way.

A story is made while the in-memory ZooKeeper plays it, because useful requests depend on its contents; then a real one
plays the same steps. After every step each session asks for something: all events of that step have come before the
answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kazoo.client import KazooClient

from muster.zookeeper.base import operations as zk
from muster.zookeeper.session.session import ZooKeeperSession
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimSession, SimZooKeeper, ZooKeeperCounts
from tests.support.zookeepers import ZooKeeperServer

SESSIONS = 3
TIMEOUT_MS = 100_000
PATIENCE_S = 120
FLUSH = zk.Exists("/")
PLACES = ("/t", "/t/a", "/t/b", "/t/a/x", "/t/a/y", "/t/b/x", "/t/a/x/z", "/none/x")

Event = zk.Watched | zk.SessionEvent


@dataclass
class Asked:
    """A session makes several requests at once."""

    session: int
    asks: Sequence[zk.Ask[Any]]


@dataclass
class Closed:
    """A session is closed, and its owner opens another one."""

    session: int


@dataclass
class Expired:
    """ZooKeeper ends a session."""

    session: int


@dataclass
class Restarted:
    """The server is killed, and restarted on its data."""


Step = Asked | Closed | Expired | Restarted


@dataclass
class Transcript:
    """The results of each step: the answers and errors, and the events of each session."""

    lines: list[tuple[Step, list[Any], list[list[Event]]]] = field(default_factory=list)
    owners: dict[int, str] = field(default_factory=dict)

    def plain(self) -> list[str]:
        """In a form that does not depend on the server: ids and transactions by their order."""
        zxids: set[int] = set()
        for _, outcomes, _ in self.lines:
            _each_stat(outcomes, lambda stat: zxids.update((stat.czxid, stat.mzxid)))
        ranks = {zxid: rank for rank, zxid in enumerate(sorted(zxids))}

        def reported(value: Any) -> Any:
            match value:
                case zk.Stat():
                    owner = self.owners[value.ephemeral_owner] if value.ephemeral_owner else ""
                    at = ranks[value.czxid], ranks[value.mzxid]
                    return "stat", value.version, value.cversion, owner, at, value.num_children
                case zk.ZooKeeperError():
                    return type(value).__name__, value.path
                case list() | tuple():
                    return [reported(each) for each in value]
            return value

        return [
            f"{number} {step}: {reported(outcomes)} "
            f"{[_ordered(step, index, each) for index, each in enumerate(events)]}"
            for number, (step, outcomes, events) in enumerate(self.lines)
        ]


def _each_stat(value: Any, call: Callable[[zk.Stat], object]) -> None:
    if isinstance(value, zk.Stat):
        call(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _each_stat(each, call)


def _ordered(step: Step, session: int, events: list[Event]) -> list[str]:
    names = [
        event.name if isinstance(event, zk.SessionEvent) else f"{event.change.name} {event.path}" for event in events
    ]
    if isinstance(step, Expired) and step.session == session:
        # Its connection may end before or after its watches on the znodes that end with it have fired.
        names = [name.split()[-1] for name in names]
    # Events that happen together with the end of a session, or of a connection, come in no particular order.
    return names if isinstance(step, Asked) else sorted(set(names))


# --- making a story
# -----------------------------------------------------------------------------------------------------


class Author:
    """Chooses what happens next."""

    def __init__(self, rng: Random, zookeeper: SimZooKeeper) -> None:
        self._rng = rng
        self._tree = zookeeper.tree

    def step(self, *, ends: bool) -> Step:
        """The next step; it may end a session only if `ends` is set."""
        rng = self._rng
        session = rng.randrange(SESSIONS)
        if ends and rng.random() < 0.06:
            return (Closed if rng.random() < 0.8 else Expired)(session)
        return Asked(session, [self._ask() for _ in range(rng.choice((1, 1, 1, 2, 5)))])

    def _ask(self) -> zk.Ask[Any]:
        rng = self._rng
        chance = rng.random()
        if chance < 0.5:
            kind: type[Any] = rng.choice((zk.GetData, zk.GetChildren, zk.Exists, zk.Exists))
            read: zk.Ask[Any] = kind(self._place(), watch=rng.random() < 0.7)
            return read
        if chance < 0.53:
            return zk.Sync(self._place())
        if chance < 0.65:
            return zk.Multi(*(self._write() for _ in range(rng.randrange(1, 5))))
        return self._write()

    def _place(self) -> str:
        there = [path for path in self._tree.paths() if path.startswith("/t")]
        return self._rng.choice(there if there and self._rng.random() < 0.5 else PLACES)

    def _version(self, path: str) -> int:
        node = self._tree.find(path)
        return self._rng.choice((zk.ANY_VERSION, 0, node.version if node else 1, node.version + 1 if node else 2))

    def _write(self) -> zk.Write[Any]:
        rng = self._rng
        path = self._place()
        data = rng.choice((None, b"", b"data", b"\0\xff"))
        match rng.choice(("create", "create", "sequential", "set", "delete", "check")):
            case "create":
                below = f"{path}/{rng.choice('abxyz')}" if path.count("/") < 4 and rng.random() < 0.8 else path
                return zk.Create(below, data, ephemeral=rng.random() < 0.3)
            case "sequential":
                name = rng.choice(("/", "/n-"))
                return zk.Create(path + name, data, ephemeral=rng.random() < 0.5, sequential=True)
            case "set":
                return zk.SetData(path, data, self._version(path))
            case "delete" if path != "/t" or rng.random() < 0.1:
                return zk.Delete(path, self._version(path))
        return zk.Check(path, self._version(path))


# --- on the in-memory ZooKeeper ----------------------------------------------------------------------------------


def imagined(seed: int, count: int, *, ends: bool, restarts: Iterable[int] = ()) -> tuple[Transcript, ZooKeeperCounts]:
    """A story with this many steps."""
    rng = Random(seed)
    zookeeper = SimZooKeeper(VirtualClock(), Random(rng.getrandbits(32)))
    sessions = [zookeeper.connect(f"s{index}", timeout_ms=TIMEOUT_MS) for index in range(SESSIONS)]
    zookeeper.settle()
    before = zookeeper.counts.copy()
    author, transcript = Author(rng, zookeeper), Transcript()
    events: list[list[Event]] = [[] for _ in sessions]
    for index in range(SESSIONS):
        sessions[index].listen(events[index].append)
        transcript.owners[sessions[index].session_id] = f"s{index}"
    for number in range(count):
        step = Restarted() if number in restarts else author.step(ends=ends and number > 0)
        if number == 0:
            step = Asked(0, [zk.Create("/t", None)])
        outcomes = _imagine(zookeeper, sessions, events, step)
        for index, session in enumerate(sessions):
            transcript.owners.setdefault(session.session_id, f"s{index} of step {number}")
            zookeeper.do(session, FLUSH)
        transcript.lines.append((step, outcomes, [list(each) for each in events]))
        for each in events:
            each.clear()
    return transcript, zookeeper.counts.since(before)


def _imagine(zookeeper: SimZooKeeper, sessions: list[SimSession], events: list[list[Event]], step: Step) -> list[Any]:
    match step:
        case Asked():
            answers: list[Any] = zookeeper.do(sessions[step.session], zk.Several(*step.asks))
            return answers
        case Closed():
            sessions[step.session].close()
            zookeeper.clock.advance(100)
            sessions[step.session] = zookeeper.connect(f"s{step.session}", timeout_ms=TIMEOUT_MS)
            zookeeper.settle()
            sessions[step.session].listen(events[step.session].append)
        case Expired():
            life = sessions[step.session].life
            zookeeper.expire(sessions[step.session])
            zookeeper.clock.run_until(lambda: sessions[step.session].life > life, 10_000)
            zookeeper.settle()
        case Restarted():
            zookeeper.servers[0].stop()
            zookeeper.clock.advance(100)
            zookeeper.servers[0].start()
            zookeeper.settle()
    return []


# --- on a real ZooKeeper
# -----------------------------------------------------------------------------------------------


async def lived(
    server: ZooKeeperServer, story: Transcript, counters: list[dict[str, float]] | None = None
) -> Transcript:
    """The same steps on a real ZooKeeper; `counters` gets the server's own before the first and after the last step."""
    address = server.chroot()
    reported = Transcript()
    sessions: list[ZooKeeperSession] = []
    events: list[list[Event]] = [[] for _ in range(SESSIONS)]
    try:
        for index in range(SESSIONS):
            sessions.append(await _open(address))
            sessions[index].listen(events[index].append)
            reported.owners[sessions[index].session_id] = f"s{index}"
        if counters is not None:
            counters.append(server.mntr())
        for number, (step, _, _) in enumerate(story.lines):
            outcomes = await _live(server, address, sessions, events, step)
            for index, session in enumerate(sessions):
                reported.owners.setdefault(session.session_id, f"s{index} of step {number}")
                await session.ask(FLUSH)
            reported.lines.append((step, outcomes, [list(each) for each in events]))
            for each in events:
                each.clear()
        if counters is not None:
            counters.append(server.mntr())
    finally:
        for session in sessions:
            await session.close()
    return reported


async def _open(address: str) -> ZooKeeperSession:
    session = ZooKeeperSession(address, timeout_ms=TIMEOUT_MS, create_chroot=True)
    await session.start(PATIENCE_S * 1000)
    return session


async def _live(
    server: ZooKeeperServer, address: str, sessions: list[ZooKeeperSession], events: list[list[Event]], step: Step
) -> list[Any]:
    match step:
        case Asked():
            answers: list[Any] = await sessions[step.session].ask(zk.Several(*step.asks))
            return answers
        case Closed():
            await sessions[step.session].close()
            sessions[step.session] = await _open(address)
            sessions[step.session].listen(events[step.session].append)
        case Expired():
            await asyncio.to_thread(expire, sessions[step.session])
            await _until(lambda: events[step.session][-2:] == [zk.SessionEvent.EXPIRED, zk.SessionEvent.CONNECTED])
        case Restarted():
            await asyncio.to_thread(server.kill)
            await _until(lambda: all(zk.SessionEvent.SUSPENDED in each for each in events))
            await asyncio.to_thread(server.start)
            await _until(lambda: all(zk.SessionEvent.CONNECTED in each for each in events))
    return []


def expire(session: ZooKeeperSession) -> None:
    """End a session as ZooKeeper would, through another connection with its id, which closes it."""
    link = session._current
    assert link is not None
    other = KazooClient(",".join(session._hosts), client_id=link._client.client_id)
    other.start(PATIENCE_S)
    other.stop()
    other.close()


async def _until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():
            await asyncio.sleep(0.01)


def counted(before: dict[str, float], after: dict[str, float]) -> ZooKeeperCounts:
    """What a real server has counted between two readings of its counters, the second of which is a packet, too.

    It sends its counters in pieces, each of which it counts as a packet: these cannot be separated from the other
    packets.
    """

    def spent(name: str) -> int:
        return int(after[name] - before[name])

    names = {
        zk.ZnodeChange.CREATED: "created",
        zk.ZnodeChange.DELETED: "deleted",
        zk.ZnodeChange.DATA: "changed",
        zk.ZnodeChange.CHILDREN: "children",
    }
    return ZooKeeperCounts(
        spent("packets_received") - 1,
        0,
        spent("cnt_readlatency"),
        spent("cnt_updatelatency"),
        +Counter({change: spent(f"sum_node_{name}_watch_count") for change, name in names.items()}),
    )
