"""What a broker finds in its data folder at startup: its own files, what a crash left, and what belongs to others."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.net.calls import at_once
from muster.broker.topics.catalogue import TopicToCreate
from muster.broker.topics.partitions import log_config
from muster.errors import ConfigError, MusterError
from muster.log import Files, FolderLock
from muster.protocol import messages as m
from tests.support.brokers import broker_config, log_of, running, topic_of
from tests.support.held_disk import Asked
from tests.support.logs import NOW, batch, read_all


async def put(broker: Broker, topic: str, value: bytes, index: int = 0) -> None:
    log = log_of(broker, topic, index)
    log.append(batch((b"k", value)), now=NOW)


async def make(folder: Path, *topics: str) -> None:
    """A data folder with a record in each topic."""
    async with running(folder) as broker:
        for topic in topics:
            broker.changes.create_topic(topic, 1, {})
            await put(broker, topic, topic.encode())


def values(broker: Broker, topic: str) -> list[bytes | None]:
    log = log_of(broker, topic, 0)
    return [value for _, _, value in read_all(log)]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("length", [213, 214, 230, 249])
async def test_the_longest_names_can_be_deleted(tmp_path: Path, length: int):
    name = "t" * length
    async with running(tmp_path) as broker:
        for _ in range(2):
            topic = broker.changes.create_topic(name, 12, {})
            await put(broker, name, b"v", index=11)
            broker.changes.delete_topic(topic)
            assert broker.partitions.get(name, 11) is None
    async with running(tmp_path) as broker:
        assert broker.topics.get(name) is None
    assert folders(tmp_path) == set()


def folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def all_names(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


def odd_things(folder: Path) -> None:
    """What people and programs leave in a folder."""
    (folder / "backup-2024").mkdir()
    (folder / "backup-2024" / "precious.txt").write_text("x")
    (folder / "old" / "t-0").mkdir(parents=True)
    (folder / "empty-7").mkdir()
    (folder / "to-delete").mkdir()
    (folder / "to-delete" / "but not by us").write_text("x")
    (folder / "my.notes-delete").mkdir()
    (folder / "mixed-0").mkdir()
    (folder / "mixed-0" / f"{0:020d}.log").write_bytes(b"")
    (folder / "mixed-0" / "thesis.tex").write_text("x")
    (folder / "file-3").write_text("a file that is called like a partition")
    (folder / "ümläut-0").mkdir()
    (folder / "t-00").mkdir()
    (folder / ("n" * 255)).write_text("x")
    (folder / os.fsdecode(b"\xff\xfe-0")).mkdir()
    (folder / "away-0").symlink_to("/nowhere/at/all")
    (folder / f"gone-0.{'0' * 32}-delete").symlink_to(folder / "old")
    os.mkfifo(folder / "pipe-0")
    (folder / ".hidden").mkdir()
    (folder / "recovery-point-offset-checkpoint.tmp").write_text("half")


async def test_what_is_not_the_brokers_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    await make(tmp_path, "t")
    odd_things(tmp_path)
    caplog.set_level("INFO")
    before = all_names(tmp_path)
    for _ in range(2):
        caplog.clear()
        async with running(tmp_path) as broker:
            assert values(broker, "t") == [b"t"]
        assert sum("not this broker's" in record.message for record in caplog.records) == 1
    assert {path for path in before - all_names(tmp_path) if "checkpoint" not in path.name} == set()


async def test_a_partition_that_no_topic_has_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    await make(tmp_path, "known", "n" * 249)
    catalogue = json.loads((tmp_path / "muster-topics.json").read_bytes())
    del catalogue["topics"]["n" * 249]
    (tmp_path / "muster-topics.json").write_text(json.dumps(catalogue))
    data = (tmp_path / ("n" * 249 + "-0") / f"{0:020d}.log").read_bytes()
    async with running(tmp_path) as broker:
        assert values(broker, "known") == [b"known"]
        broker.changes.create_topic("n" * 249, 1, {})
        assert values(broker, "n" * 249) == []
    [stray] = [tmp_path / name for name in folders(tmp_path) if name.endswith("-stray")]
    assert (stray / f"{0:020d}.log").read_bytes() == data
    assert f"set aside as {stray.name}" in caplog.text
    async with running(tmp_path):
        assert stray.is_dir()


async def test_the_catalogue_is_read_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The old process creates a topic while the new one starts: the new one takes the lock only after that."""
    await make(tmp_path, "first")
    take = FolderLock.take
    old = Broker(broker_config(tmp_path))
    await old.start()

    def late(root: Path) -> FolderLock:
        # The loop belongs to the test: the part of `stop` that concerns the folder is closing the store.
        monkeypatch.setattr(FolderLock, "take", take)
        old.changes.create_topic("second", 1, {})
        log = log_of(old, "second", 0)
        log.append(batch((b"k", b"second")), now=NOW)
        old._store.close()
        return take(root)

    monkeypatch.setattr(FolderLock, "take", late)
    async with running(tmp_path) as broker:
        assert values(broker, "second") == [b"second"]
    await old.stop()


async def test_another_nodes_folder_is_refused_before_anything_is_written(tmp_path: Path):
    await make(tmp_path, "t")
    (tmp_path / ".lock").unlink()
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match=r"belongs to node 1, but node\.id is 2"):
        await Broker(broker_config(tmp_path, {"node.id": 2})).start()
    assert everything(tmp_path) == before


async def test_a_broker_alone_has_no_zookeeper_for_its_groups(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"group\.coordinator\.store=zookeeper needs zookeeper\.connect"):
        await Broker(broker_config(tmp_path / "new", {"group.coordinator.store": "zookeeper"})).start()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("renamed", [False, True])
async def test_an_interrupted_deletion_is_finished_at_the_next_start(tmp_path: Path, renamed: bool):
    await make(tmp_path, "t", "other")
    broker = Broker(broker_config(tmp_path))
    await broker.start()
    topic = topic_of(broker, "t")
    broker.topics.delete_all([topic])  # the process dies here
    await broker.stop()
    if renamed:
        (tmp_path / "t-0").rename(tmp_path / f"t-0.{'a' * 32}-delete")
    async with running(tmp_path) as broker:
        assert broker.topics.get("t") is None
        assert folders(tmp_path) == {"other-0"}
        assert broker.topics.deleting == []
        broker.changes.create_topic("t", 1, {})
        assert values(broker, "t") == []
        await put(broker, "t", b"anew")
    async with running(tmp_path) as broker:
        assert values(broker, "t") == [b"anew"]
        assert values(broker, "other") == [b"other"]


class Stubborn(Files):
    """A disk on which folders cannot be renamed for a while."""

    stubborn = True

    def replace(self, source: Path, target: Path) -> None:
        if self.stubborn and source.is_dir():
            raise OSError(16, "Device or resource busy")
        super().replace(source, target)


async def test_a_deletion_that_is_delayed_neither_fails_nor_lets_old_records_into_a_new_topic(tmp_path: Path):
    disk = Stubborn()
    broker = Broker(broker_config(tmp_path), disk)
    await broker.start()
    topic = broker.changes.create_topic("t", 2, {})
    await put(broker, "t", b"old")
    broker.changes.delete_topic(topic)
    assert broker.topics.get("t") is None
    assert broker.partitions.get("t", 0) is None
    with pytest.raises(OSError, match="the name of its folder is taken"):
        broker.changes.create_topic("t", 2, {})
    await broker.stop()

    broker = Broker(broker_config(tmp_path), disk)
    await broker.start()
    with pytest.raises(OSError, match="the name of its folder is taken"):
        broker.changes.create_topic("t", 2, {})
    disk.stubborn = False
    broker.changes.create_topic("t", 2, {})
    assert values(broker, "t") == []
    await broker.stop()


async def test_a_topic_does_not_move_into_somebody_elses_folder(tmp_path: Path):
    await make(tmp_path, "t")
    (tmp_path / "backup-1").mkdir()
    (tmp_path / "backup-1" / "precious.txt").write_text("x")
    async with running(tmp_path) as broker:
        with pytest.raises(OSError, match="the name of its folder is taken"):
            broker.changes.create_topic("backup", 2, {})
        assert broker.topics.get("backup") is None
        assert not (tmp_path / "backup-0").exists()
        broker.changes.create_topic("backup", 1, {})


async def test_nothing_is_known_of_a_topic_that_had_the_name_before(tmp_path: Path):
    """Checkpoints refer to topics by name: the old topic's start offset would hide the new topic's first records."""
    async with running(tmp_path) as broker:
        topic = broker.changes.create_topic("t", 1, {"cleanup.policy": "compact"})
        log = log_of(broker, "t", 0)
        for at in range(20):
            await put(broker, "t", b"%d" % at)
        log.delete_records(15)
        broker._store.housekeeping(NOW)
        broker.changes.delete_topic(topic)
        broker.changes.create_topic("t", 1, {})
        for at in range(20):
            await put(broker, "t", b"new %d" % at)
        broker._store.close(clean=False)
    async with running(tmp_path) as broker:
        assert len(values(broker, "t")) == 20


async def test_the_offsets_of_a_deleted_topic_are_deleted(tmp_path: Path):
    async with running(tmp_path) as broker:
        deleted = broker.changes.create_topic("t", 1, {})
        topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 5)])
        await Asked(broker, m.OffsetCommitRequest("g", topics=[topic]), 8).answered()
        broker.changes.delete_topic(deleted)
        broker.groups.runtime.flush()
        log = log_of(broker, "__consumer_offsets", broker.groups.runtime.partition_for("g"))
        *_, (_, key, value) = read_all(log)
        assert key is not None
        assert (b"t" in key, value) == (True, None)


async def test_a_topic_that_is_deleted_while_it_is_created_leaves_nothing(tmp_path: Path):
    """Its partitions are created a slice at a time, and other requests are served in between."""
    async with running(tmp_path) as broker:
        creating = broker.changes.creating([TopicToCreate("t", 5, {})])
        next(creating)
        next(creating)
        topic = topic_of(broker, "t")
        broker.changes.delete_topic(topic)
        at_once(creating)
        assert [broker.partitions.get("t", index) for index in range(5)] == [None] * 5
        assert folders(tmp_path) == set()


def in_the_way(path: Path, kind: str) -> None:
    if path.is_dir():
        for inside in path.iterdir():
            inside.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    if kind == "a file":
        path.write_text("x")
    elif kind == "a folder":
        path.mkdir()
        (path / "x").write_text("x")
    else:
        path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("muster-topics.json", "a folder"),
        ("muster-topics.json", "a file"),
        ("muster-producer-ids", "a folder"),
        ("meta.properties", "a folder"),
        ("meta.properties", "a file"),
        (".lock", "a folder"),
    ],
)
async def test_what_would_make_serving_wrong_stops_the_start_with_a_sentence(tmp_path: Path, name: str, kind: str):
    await make(tmp_path, "t")
    in_the_way(tmp_path / name, kind)
    with pytest.raises(MusterError) as refused:
        await Broker(broker_config(tmp_path)).start()
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("kind", ["a file", "a folder", "a link"])
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".kafka_cleanshutdown",
        f"t-0/{0:020d}.index",
        f"t-0/{0:020d}.timeindex",
        f"t-0/{1:020d}.snapshot",
        "t-0/notes.log",
        f"t-0/{7:020d}.swap",
        f"t-0/{7:020d}.log.swap",
        f"t-0/{7:020d}.log.cleaned",
        f"t-0/{7:020d}.snapshot",
        "t-0/x.tmp",
        "t-0/.snapshot",
    ],
)
async def test_what_can_be_done_without_does_not(tmp_path: Path, name: str, kind: str):
    await make(tmp_path, "t")
    in_the_way(tmp_path / name, kind)
    async with running(tmp_path) as broker:
        assert values(broker, "t") == [b"t"]
        await put(broker, "t", b"more")
    async with running(tmp_path) as broker:
        assert values(broker, "t") == [b"t", b"more"]


@pytest.mark.parametrize(("most", "lines"), [(60, 1), (80, 0), (resource.RLIM_INFINITY, 0)])
async def test_a_start_says_that_there_are_more_partitions_than_files_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int, lines: int
):
    async with running(tmp_path) as broker:
        broker.changes.create_topic("t", 40, {})
    caplog.clear()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    broker = Broker(broker_config(tmp_path))
    broker._open_folder()
    broker._store.close()
    said = [record.message for record in caplog.records if "ulimit -n" in record.message]
    assert len(said) == lines
    assert all(line.startswith("40 partitions may need that many open files") for line in said)


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({"compression.type": "zstd"}, 3),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, -5),
        ({"compression.type": "zstd", "compression.zstd.level": "19"}, 19),
        ({"compression.type": "zstd", "compression.zstd.level": "22"}, 19),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, 9),
        ({"compression.type": "gzip"}, None),
        ({"compression.type": "producer", "compression.zstd.level": "22"}, None),
    ],
)
def test_the_level_of_batches_that_the_broker_compresses(tmp_path: Path, settings: dict[str, str], level: int | None):
    assert log_config(settings, broker_config(tmp_path)).compression_level == level
