from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.broker.topics.catalogue import FILE, TopicCatalogue, TopicToCreate, invalid_name, refuse_foreign
from muster.errors import ConfigError
from muster.protocol.primitives import ZERO_UUID


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_names_that_are_good(name: str):
    assert invalid_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "a\0", "x" * 250])
def test_names_that_are_not(name: str):
    assert invalid_name(name) is not None


def test_what_is_created_is_there_after_a_restart(tmp_path: Path):
    topics = TopicCatalogue.load(tmp_path)
    one = topics.create_all([TopicToCreate("one", 3, {"retention.ms": "5"})])[0]
    two = topics.create_all([TopicToCreate("two", 1, {})])[0]
    topics.delete_all([two])
    again = TopicCatalogue.load(tmp_path)
    assert list(again) == [one]
    assert again.by_id(one.topic_id) == one
    assert again.by_id(two.topic_id) is None
    assert (again.partition_count("one"), again.partition_count("two")) == (3, 0)
    assert (again.topic_id("one"), again.topic_id("two")) == (one.topic_id, ZERO_UUID)
    assert (again.topic_name(one.topic_id), again.topic_name(two.topic_id)) == ("one", None)


def test_names_that_differ_in_dots_collide(tmp_path: Path):
    topics = TopicCatalogue.load(tmp_path)
    dotted = topics.create_all([TopicToCreate("a.b", 1, {})])[0]
    assert topics.colliding("a_b") == "a.b"
    assert topics.colliding("a.b") is None
    assert topics.colliding("ab") is None
    topics.delete_all([dotted])
    assert topics.colliding("a_b") is None


def test_a_topic_that_cannot_be_stored_does_not_exist(tmp_path: Path):
    topics = TopicCatalogue.load(tmp_path / "gone")
    with pytest.raises(OSError):
        topics.create_all([TopicToCreate("one", 1, {})])[0]
    assert topics.get("one") is None
    assert len(topics) == 0


def test_a_topic_whose_deletion_cannot_be_stored_still_exists(tmp_path: Path):
    folder = tmp_path / "data"
    folder.mkdir()
    topics = TopicCatalogue.load(folder)
    one = topics.create_all([TopicToCreate("one", 1, {})])[0]
    folder.rename(tmp_path / "away")
    with pytest.raises(OSError):
        topics.delete_all([one])
    assert topics.get("one") == one
    (tmp_path / "away").rename(folder)
    topics.create_all([TopicToCreate("two", 1, {})])[0]
    later = TopicCatalogue.load(folder)
    assert later.get("one") == one
    assert later.deleting == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"topics": {"x": {}}}',
        '{"topics": {"x": {"id": "AA", "partitions": 1, "settings": {}}}}',
        json.dumps({"topics": {name: {"id": "A" * 22, "partitions": 1, "settings": {}} for name in "xy"}}),
    ],
)
def test_a_file_that_cannot_be_understood(tmp_path: Path, content: str):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match="cannot be parsed"):
        TopicCatalogue.load(tmp_path)


def test_the_file_is_json_that_people_can_read(tmp_path: Path):
    TopicCatalogue.load(tmp_path).create_all([TopicToCreate("one", 3, {"retention.ms": "5"})])
    content = json.loads((tmp_path / FILE).read_text())
    assert content["topics"]["one"]["partitions"] == 3
    assert content["topics"]["one"]["settings"] == {"retention.ms": "5"}


def test_a_folder_of_another_broker_is_refused(tmp_path: Path):
    refuse_foreign(tmp_path)
    (tmp_path / "flights-0").mkdir()
    refuse_foreign(tmp_path)
    (tmp_path / "flights-0" / "00000000000000000000.log").touch()
    with pytest.raises(ConfigError, match="flights-0"):
        refuse_foreign(tmp_path)
    TopicCatalogue.load(tmp_path).create_all([TopicToCreate("flights", 1, {})])
    refuse_foreign(tmp_path)
