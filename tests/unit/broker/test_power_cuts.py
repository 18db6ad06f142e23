"""A power cut at every moment of a broker's life: topics, their records, and the producer ids that were allocated."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.net.calls import at_once
from muster.broker.topics.catalogue import Topic
from muster.broker.topics.producer_ids import BLOCK, ProducerIds
from muster.errors import MusterError
from tests.support.brokers import broker_config, log_of
from tests.support.logs import NOW, batch, read_all
from tests.support.power import RecordingDisk, Unsynced, cuts

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "n" * 249)
SETTINGS = {"fsync": "always", "log.retention.check.interval.ms": 10**9, "log.cleaner.backoff.ms": 10**9}


@dataclass
class Fact:
    """The state at a moment. `unsure`: names of topics that are just being created or deleted."""

    at: int
    cluster_id: str = ""
    producer_id: int = -1
    topics: dict[str, bytes] = field(default_factory=dict)
    values: dict[bytes, list[bytes]] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()


class Life:
    """A broker that creates and deletes topics, writes and allocates ids; and what it acknowledges when."""

    def __init__(self, root: Path, disk: RecordingDisk, fsync: str = "always") -> None:
        self.settings = {**SETTINGS, "fsync": fsync}
        self.disk = disk
        self.root = root
        self.facts = [Fact(0)]
        self.written: dict[bytes, set[bytes]] = {}
        self.count = 0
        self.deleting: Generator[None, None, None]

    def note(self, **changes: object) -> None:
        last = self.facts[-1]
        fields = {"unsure": frozenset(), **changes}
        topics = {**last.topics}
        values = {topic: [*found] for topic, found in last.values.items()}
        now = Fact(self.disk.now, last.cluster_id, last.producer_id, topics, values)
        for name, value in fields.items():
            setattr(now, name, value)
        self.facts.append(now)

    async def live(self, rng: random.Random, steps: int) -> None:
        for _ in range(2):
            broker = Broker(broker_config(self.root, self.settings), self.disk)
            await broker.start()
            self.note(cluster_id=broker.cluster.cluster_id)
            for _ in range(steps):
                self.step(broker, rng)
            await broker.stop()

    def step(self, broker: Broker, rng: random.Random) -> None:
        name = rng.choice(NAMES)
        topic = broker.topics.get(name)
        if rng.random() < 0.15:
            taken = [broker.producer_ids.take() for _ in range(rng.choice((1, BLOCK)))]
            self.note(producer_id=taken[-1])
        elif topic is None:
            self.note(unsure=frozenset({name}))
            made = broker.changes.create_topic(name, 2, {"retention.ms": "-1"})
            self.note(topics={**self.facts[-1].topics, name: made.topic_id})
        elif rng.random() < 0.3:
            self.delete(broker, [topic, *(other for other in broker.topics if other is not topic)][: rng.randint(1, 3)])
            if rng.random() < 0.7:
                at_once(broker.changes.cleaning_up(NAMES))
        else:
            self.count += 1
            log = log_of(broker, name, 1)
            value = b"%d" % self.count
            self.written.setdefault(topic.topic_id, set()).add(value)
            log.append(batch((b"k", value)), now=NOW)
            if rng.random() < 0.5:
                broker._store.flush()
                durable = [row[2] for row in read_all(log)]
                self.note(values={**self.facts[-1].values, topic.topic_id: durable})
            if rng.random() < 0.2:
                broker._store.housekeeping(NOW)

    def delete(self, broker: Broker, topics: list[Topic]) -> None:
        """All of them are gone with the first slice. Their remains go later: in the background, before one with that
        name is created, or at the next start."""
        names = frozenset(topic.name for topic in topics)
        left = {name: topic_id for name, topic_id in self.facts[-1].topics.items() if name not in names}
        self.note(topics=left, unsure=names)
        self.deleting = broker.changes.deleting(topics)  # kept, because a generator without references is closed
        next(self.deleting)
        self.note()

    def check(self, root: Path, at: int) -> None:
        fact = [fact for fact in self.facts if fact.at <= at][-1]
        broker = Broker(broker_config(root, SETTINGS), Unsynced())
        broker._open_folder()
        try:
            assert fact.cluster_id in ("", broker.cluster.cluster_id)
            assert broker.producer_ids.take() > fact.producer_id
            there = {topic.name: topic.topic_id for topic in broker.topics}
            for name in {*there, *fact.topics} - fact.unsure:
                assert there.get(name) == fact.topics.get(name), f"topic {name[:5]}"
            for name, topic_id in there.items():
                log = log_of(broker, name, 1)
                values = [row[2] for row in read_all(log)]
                assert set(values) <= self.written.get(topic_id, set()), "records of another topic"
                promised = fact.values.get(topic_id, [])
                assert values[: len(promised)] == promised, "records are lost"
            gone = set(NAMES) - {*there, *fact.topics} - fact.unsure
            folders = {path.name.rpartition("-")[0] for path in root.iterdir() if path.is_dir()}
            assert not folders & gone, "a deleted topic's folder is back"
            assert not list(root.glob("*-stray")), "a deletion left a folder that nobody knows"
        finally:
            broker._store.close(clean=False)


@pytest.fixture(autouse=True)
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is laid out again for each cut."""
    monkeypatch.setattr("muster.broker.topics.deletion_reserve.SIZE", 100)


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    logging.disable(logging.ERROR)
    yield path
    logging.disable(logging.NOTSET)
    shutil.rmtree(path)


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_acknowledged_is_lost_or_comes_back(folder: Path, seed: int) -> None:
    root = fresh(folder / "data")
    life = Life(root, RecordingDisk(root))
    await life.live(random.Random(seed), 10)
    for cut in cuts(life.disk, random.Random(seed), each=1):
        cut.lay_out(folder / "cut")
        life.check(folder / "cut", cut.at)


SITES = ("TopicCatalogue._save", "ProducerIds.take", "_write")
"""The places where the broker syncs its own files; the log's are left out one by one in its own tests."""

LIVES = 6


@pytest.fixture
def ids_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids also follow the time of day, which hides that the file is not durable until the clock is set back."""
    monkeypatch.setattr("muster.broker.broker.ProducerIds", partial(ProducerIds, now=lambda: 0))


@pytest.mark.usefixtures("ids_from_the_file")
async def test_no_sync_of_the_broker_is_needless(folder: Path) -> None:
    """Each sync is left out in turn, and something that was acknowledged is lost."""
    sites = {site for seed in range(2) for site in (await a_life(folder, seed)).disk.sites if site_of(site) in SITES}
    assert {(site.split(":")[0], site_of(site)) for site in sites} == {
        (kind, site) for kind in ("file", "folder") for site in SITES
    }
    unnoticed = [site for site in sorted(sites) if not await is_noticed(folder, site)]
    assert unnoticed == []


def site_of(site: str) -> str:
    return site.split(": ")[1].split("+")[0]


async def a_life(folder: Path, seed: int, leave_out: str | None = None) -> Life:
    """The last seed's broker syncs no logs, and only reports its identity."""
    root = fresh(folder / "data")
    life = Life(root, RecordingDisk(root, leave_out), "never" if seed == LIVES - 1 else "always")
    await life.live(random.Random(seed), 0 if seed == LIVES - 1 else 10)
    return life


async def is_noticed(folder: Path, site: str) -> bool:
    for seed in range(LIVES):
        try:
            life = await a_life(folder, seed, site)
            for cut in cuts(life.disk, random.Random(seed), each=2, moments=life.disk.risky()):
                cut.lay_out(folder / "cut")
                life.check(folder / "cut", cut.at)
        except (AssertionError, MusterError, OSError):
            return True
    return False
