from __future__ import annotations

from pathlib import Path

import pytest

from muster.broker.identity import FILE, load_identity, random_uuid, uuid_bytes, uuid_text
from muster.errors import ConfigError


def test_ids_are_written_as_kafka_writes_them():
    found = {random_uuid() for _ in range(1000)}
    assert len(found) == 1000
    for raw in found:
        text = uuid_text(raw)
        assert len(text) == 22
        assert not text.startswith("-")
        assert uuid_bytes(text) == raw


def test_a_folder_keeps_its_identity(tmp_path: Path):
    first = load_identity(tmp_path, 1)
    assert load_identity(tmp_path, 1) == first
    lines = (tmp_path / FILE).read_text().splitlines()
    assert f"cluster.id={first.cluster_id}" in lines
    assert "version=1" in lines
    assert "node.id=1" in lines


def test_a_file_of_kafkas(tmp_path: Path):
    (tmp_path / FILE).write_text("#\n#Sat Nov 21 2026\ncluster.id=abc\nversion=1\nnode.id=4\ndirectory.id=xyz\n")
    assert load_identity(tmp_path, 4) == ("abc", 4, "xyz", False)


def test_the_folder_of_a_cluster_is_of_no_use_to_a_broker_alone(tmp_path: Path):
    first = load_identity(tmp_path, 2, cluster_id="abc")
    assert load_identity(tmp_path, 2, cluster_id="abc") == first == ("abc", 2, first.directory_id, True)
    with pytest.raises(ConfigError, match="needs --zookeeper"):
        load_identity(tmp_path, 2)
    with pytest.raises(ConfigError, match="belongs to cluster abc, but this is cluster xyz"):
        load_identity(tmp_path, 2, cluster_id="xyz")


def test_the_folder_of_a_broker_alone_has_no_part_of_a_cluster(tmp_path: Path):
    alone = load_identity(tmp_path, 1)
    with pytest.raises(ConfigError, match="but this is cluster xyz"):
        load_identity(tmp_path, 1, cluster_id="xyz")
    assert load_identity(tmp_path, 1) == alone


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("version=1\ncluster.id=abc\nnode.id=2\n", "belongs to node 2, but node.id is 1"),
        ("version=0\ncluster.id=abc\nnode.id=1\n", "has version 0"),
        ("version=1\nnode.id=1\n", "has no version, cluster.id or node.id"),
        ("version=1\ncluster.id=abc\nnode.id=one\n", "has no version, cluster.id or node.id"),
        ("", "has no version, cluster.id or node.id"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, sentence: str):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_identity(tmp_path, 1)
    assert sentence in str(refused.value)
