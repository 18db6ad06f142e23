"""`muster serve` when its disk fails, when a file must not grow, and when it is killed during its background work."""

from __future__ import annotations

import os
import random
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from muster.clock import wall_clock_ms
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.record_batch import iter_headers, read_tuples
from tests.support import scale
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.faces import rest, until
from tests.support.written import build_batch

FAILING_SYNCS = """
import os
real = os.fdatasync

def fdatasync(fd):
    if os.path.exists({flag!r}):
        raise OSError(5, "Input/output error")
    real(fd)
    with open({done!r}, "a") as done:
        print(os.readlink(f"/proc/self/fd/{{fd}}"), file=done)

os.fdatasync = fdatasync
"""


def create(client: RawClient, topic: str, **settings: object) -> int:
    """The answer's error code."""
    configs = [m.CreatableTopicConfig(name.replace("_", "."), str(value)) for name, value in settings.items()]
    request = m.CreateTopicsRequest([m.CreatableTopic(topic, 1, 1, configs=configs)], 300_000)
    code: int = client.ask(request, 7).topics[0].error_code
    return code


def produce(client: RawClient, topic: str, value: bytes, key: bytes | None = None) -> m.PartitionProduceResponse:
    batch = bytes(build_batch([(wall_clock_ms(), key, value, [])]))
    data = m.TopicProduceData(topic, ZERO_UUID, [m.PartitionProduceData(0, batch)])
    [answer] = client.ask(m.ProduceRequest(None, -1, 30_000, [data]), 9).responses[0].partition_responses
    found: m.PartitionProduceResponse = answer
    return found


def stored(client: RawClient, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all records."""
    rows: list[tuple[int, bytes | None, bytes | None]] = []
    at = 0
    while True:
        asked = m.FetchPartition(0, -1, at, partition_max_bytes=8 << 20)
        topics = [m.FetchTopic(topic, partitions=[asked])]
        request = m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=8 << 20, topics=topics)
        data: Any = client.ask(request, 11).responses[0].partitions[0]
        assert data.error_code == 0
        if not data.records:
            return rows
        for position, header in iter_headers(data.records):
            rows += [(o, key, value) for o, _, key, value, _ in read_tuples(data.records, position, header) if o >= at]
            at = max(at, header.next_offset)


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_a_failed_sync_ends_the_command(tmp_path: Path, fsync: str) -> None:
    """What the disk did not take is not acknowledged with `always`, and the next start has everything acknowledged."""
    flag, done, code = tmp_path / "failing", tmp_path / "done", tmp_path / "code"

    def synced() -> int:
        return done.read_text().count("/t-0/") if done.exists() else 0

    code.mkdir()
    (code / "sitecustomize.py").write_text(FAILING_SYNCS.format(flag=str(flag), done=str(done)))
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    with BrokerProcess(tmp_path / "data", fsync=fsync, prefix=["env", f"PYTHONPATH={path}"]) as broker:
        with RawClient(broker.bootstrap) as client:
            assert create(client, "t") == 0
            before = synced()
            assert produce(client, "t", b"durable").error_code == 0
            until(lambda: synced() > before, rest)  # otherwise its sync might fail before the next record is answered
            flag.touch()
            try:
                code_of_answer = produce(client, "t", b"not durable").error_code
            except (OSError, EOFError):
                code_of_answer = -1
            assert (code_of_answer == 0) == (fsync == "interval")
        assert broker.wait() == 1
        assert "what the disk holds is known only after a restart" in broker.log()
        assert "Traceback" not in broker.log()
        flag.unlink()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert [value for _, _, value in stored(client, "t")][:1] == [b"durable"]
            assert produce(client, "t", b"more").error_code == 0


def test_a_file_that_may_not_grow_refuses_records_until_it_may(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the system writes what fits and then reports EFBIG. No acknowledged record is lost or torn."""
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            assert create(client, "t") == 0
            unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
            codes = [produce(client, "t", b"%d %s" % (at, b"v" * 8_000)).error_code for at in range(20)]
            taken = codes.index(ErrorCode.KAFKA_STORAGE_ERROR)
            assert codes == [0] * taken + [ErrorCode.KAFKA_STORAGE_ERROR] * (20 - taken)
            assert taken == 12
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
            assert produce(client, "t", b"more").base_offset == taken
            before = stored(client, "t")
            assert [int((value or b"").split()[0]) for _, _, value in before[:-1]] == list(range(taken))
        assert "Traceback" not in broker.log()
        assert len(broker.log().splitlines()) < 30
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert stored(client, "t") == before


class UntilKilled(threading.Thread):
    """Repeats its action until the broker is gone."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.rng = rng
        self._broker = broker
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            with RawClient(self._broker.bootstrap) as client:
                while True:
                    self.step(client)
        except (OSError, EOFError):
            pass
        except BaseException as error:
            self._failure = error

    def end(self) -> None:
        self.join(300)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure

    def step(self, client: RawClient) -> None:
        raise NotImplementedError


class Keys:
    """What is known about the compacted topic: the numbers written for each key, in order."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: dict[bytes, int] = {}

    def check(self, client: RawClient) -> None:
        rows = stored(client, "keyed")
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(set(offsets))
        last: dict[bytes | None, int] = {}
        for _, key, value in rows:
            assert value is not None
            number = int(value.split()[0])
            assert number > last.get(key, -1), "an old value is back"
            last[key] = number
        for key, number in self.acknowledged.items():
            assert last.get(key, -1) >= number, "the last value of a key is lost"


class Writer(UntilKilled):
    """Writes numbers with a few keys, so many that there is always something to compact."""

    def __init__(self, broker: BrokerProcess, rng: random.Random, keys: Keys) -> None:
        super().__init__(broker, rng)
        self._keys = keys

    def step(self, client: RawClient) -> None:
        keys = self._keys
        keys.sent += 1
        key = b"%d" % self.rng.randrange(5)
        assert produce(client, "keyed", b"%d %s" % (keys.sent, b"v" * 90_000), key).error_code == 0
        keys.acknowledged[key] = keys.sent


class Topics:
    """The topics that are created and deleted, by name, each with its only record. `unsure` is just being created or
    deleted."""

    def __init__(self) -> None:
        self.count = 0
        self.there: dict[str, bytes] = {}
        self.unsure: str | None = None

    def check(self, client: RawClient, folder: Path) -> None:
        found = {topic.name or "" for topic in client.ask(m.MetadataRequest(None), 12).topics} - {"keyed"}
        unsure = {self.unsure} - {None}
        assert found - unsure == set(self.there) - unsure
        for name in sorted(found - unsure):
            assert [value for _, _, value in stored(client, name)] == [self.there[name]]
        folders = {path.name.rpartition("-")[0] for path in folder.iterdir() if path.is_dir()}
        assert folders <= {*found, "keyed"}, "a folder was left"
        if self.unsure is not None:
            self.there.pop(self.unsure, None)
            if self.unsure in found:
                request = m.DeleteTopicsRequest([m.DeleteTopicState(self.unsure)], [], 300_000)
                assert client.ask(request, 6).responses[0].error_code == 0
        self.unsure = None


class Maker(UntilKilled):
    """Creates and deletes topics with a few names."""

    def __init__(self, broker: BrokerProcess, rng: random.Random, topics: Topics) -> None:
        super().__init__(broker, rng)
        self._topics = topics

    def step(self, client: RawClient) -> None:
        topics = self._topics
        name = self.rng.choice(["one", "two", "three", "n" * 249])
        topics.unsure = name
        if name in topics.there:
            request = m.DeleteTopicsRequest([m.DeleteTopicState(name)], [], 300_000)
            assert client.ask(request, 6).responses[0].error_code == 0
            del topics.there[name]
        else:
            topics.count += 1
            assert create(client, name) == 0
            answer = produce(client, name, b"%d" % topics.count)
            assert (answer.error_code, answer.base_offset) == (0, 0)
            topics.there[name] = b"%d" % topics.count
        topics.unsure = None


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_9_during_compaction_deletion_and_the_catalogue(tmp_path: Path) -> None:
    settings = {
        "log.segment.bytes": 1 << 20,
        "log.retention.check.interval.ms": 20,
        "log.cleaner.min.cleanable.ratio": 0.01,
    }
    rng = random.Random(11)
    keys, topics = Keys(), Topics()
    with BrokerProcess(tmp_path / "data", settings) as broker:
        with RawClient(broker.bootstrap) as client:
            assert create(client, "keyed", cleanup_policy="compact") == 0
        for _ in range(scale.kills(2)):
            workers = [Writer(broker, rng, keys), Maker(broker, random.Random(rng.random()), topics)]
            for worker in workers:
                worker.start()
            wrote, made = keys.sent + rng.randrange(15, 60), topics.count + rng.randrange(3, 10)
            until(lambda w=wrote, m=made: keys.sent >= w and topics.count >= m, rest)  # type: ignore[misc]
            broker.kill()
            for worker in workers:
                worker.end()
            broker.start()
            with RawClient(broker.bootstrap) as client:
                keys.check(client)
                topics.check(client, broker.folder)
        assert broker.stop() == 0
        broker.start()
        with RawClient(broker.bootstrap) as client:
            keys.check(client)
            topics.check(client, broker.folder)
    assert "Traceback" not in broker.log()
