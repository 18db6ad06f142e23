"""A broker of a cluster that starts with another data folder, or with an older copy of its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.zookeeper.base.operations import Delete, GetData, SetData
from muster.zookeeper.cluster.data_dirs import DataDir, data_dir_path, next_start, refusal
from tests.support.cluster_asks import create, ends, stored
from tests.support.faulty_disk import FaultyDisk
from tests.support.sim_cluster import SimCluster, session_of


@pytest.mark.parametrize("other", ["new", "used"])
async def test_a_broker_with_another_folder_is_refused_until_its_own_is_given_up(
    cluster: SimCluster, tmp_path: Path, other: str
) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        assert await stored(broker, "t", 0) == 0
        had = broker.identity.directory_id
    elsewhere = tmp_path / "elsewhere"
    if other == "used":
        shutil.copytree(broker.config.data_dir, elsewhere)
        properties = elsewhere / "meta.properties"
        properties.write_text(properties.read_text().replace(had, "another"))
    for given_up in ("", "another"):
        twin, _ = cluster.make(1, log_dirs=str(elsewhere), replaced_data_dir=given_up or None)
        reported = f"records in the data folder with the id {had}.* -o replaced.data.dir={had}"
        with pytest.raises(ConfigError, match=reported):
            await cluster.soon(twin.start())
    assert elsewhere.exists() == (other == "used")
    async with cluster.running(1, log_dirs=str(elsewhere), replaced_data_dir=had) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 1 if other == "used" else 0})
    # From now on this is the broker's folder, whether or not the option is still there.
    former, _ = cluster.make(1, replaced_data_dir=had)
    with pytest.raises(ConfigError, match="-o replaced"):
        await cluster.soon(former.start())
    async with cluster.running(1, log_dirs=str(elsewhere), replaced_data_dir=had):
        pass


async def test_an_older_copy_of_the_folder_is_refused(cluster: SimCluster, tmp_path: Path) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
    shutil.copytree(broker.config.data_dir, tmp_path / "copy")
    async with cluster.running(1) as broker:
        assert await cluster.soon(stored(broker, "t", 0)) == 0
    copy, _ = cluster.make(1, log_dirs=str(tmp_path / "copy"))
    with pytest.raises(ConfigError, match="an older copy"):
        await cluster.soon(copy.start())
    async with cluster.running(1) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 1})


async def test_a_broker_that_was_replaced_by_a_copy_stops(cluster: SimCluster, tmp_path: Path) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        shutil.copytree(broker.config.data_dir, tmp_path / "copy")
        cluster.cut(session_of(broker))
        former = session_of(broker).sim.session_id
        await cluster.until(lambda: not cluster.zookeeper.is_alive(former))
        copy, session = cluster.make(1, log_dirs=str(tmp_path / "copy"))
        session._name = "not the one that is cut"
        await cluster.soon(copy.start())
        await cluster.soon(copy.stop())
        cluster.zookeeper.heal(session_of(broker).sim)
        assert broker._zookeeper is not None
        await cluster.until(broker._zookeeper.lost.is_set)


async def test_brokers_continue_where_zookeeper_knows_less_of_their_folders(cluster: SimCluster) -> None:
    """Written by the previous version, or restored from a backup."""
    async with cluster.running(1):
        older, _ = cluster.do(GetData(data_dir_path(1)))
    for _ in range(3):
        async with cluster.running(1):
            pass
    cluster.do(SetData(data_dir_path(1), older))
    async with cluster.running(1):
        pass
    cluster.do(Delete(data_dir_path(1)))
    async with cluster.running(1) as broker:
        assert cluster.do(GetData(data_dir_path(1)))
        cluster.do(SetData(data_dir_path(1), b"rubbish"))
        cluster.expire(session_of(broker))
        assert broker._zookeeper is not None
        await cluster.until(broker._zookeeper.lost.is_set)


async def test_a_disk_that_is_full_keeps_no_broker_from_starting(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        await create(cluster, broker, "t", 1)
        assert await stored(broker, "t", 0) == 0
    disk = FaultyDisk()
    disk.fill_up()
    async with cluster.running(1, disk) as broker:
        await cluster.until(lambda: ends(broker, "t") == {0: 1})
    async with cluster.running(1):
        pass


FOUND = DataDir("x", 5, "e")


@pytest.mark.parametrize(
    ("mine", "is_refused"),
    [
        (FOUND, False),
        (DataDir("x", 6, "f"), False),
        (DataDir("x", 5, "other"), True),
        (DataDir("x", 4, "d"), True),
        (DataDir("y", 9, "e"), True),
        (None, True),
    ],
)
def test_which_folder_is_refused(mine: DataDir | None, is_refused: bool) -> None:
    assert refusal(1, None, mine, None) is None
    assert (refusal(1, FOUND, mine, None) is not None) == is_refused
    assert refusal(1, FOUND, mine, "x") is None


def test_a_start_that_was_broken_off_counts_once() -> None:
    copy = FOUND
    for name in "abc":
        copy = next_start(FOUND, copy, name)
    assert copy == ("x", 6, "c")
    assert refusal(1, next_start(FOUND, FOUND, "f"), copy, None) is not None
    assert next_start(FOUND._replace(starts=2), FOUND, "f") == ("x", 6, "f")
    assert next_start(None, DataDir("x", 0, ""), "a") == ("x", 1, "a")
