"""What is read from Spark's checkpoint folder."""

import json

import pytest

from muster.spark.source.checkpoint import Checkpoint

END = {"v": 1, "seq": 2, "gen": 1, "claims": {"t": {"0": [1, 2]}}}


@pytest.fixture
def folder(tmp_path):
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id":"4f1c"}')
    (tmp_path / "offsets" / ".7.crc").write_text("")
    (tmp_path / "offsets" / "7").write_text(
        f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"seq": 9})}\n{json.dumps(END)}'
    )
    return tmp_path


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_batch_is_done_when_it_is_in_the_commit_log(folder, form):
    checkpoint = Checkpoint(form.format(folder))
    assert not checkpoint.is_done(END)
    (folder / "commits" / "7").write_text("v1\n{}")
    assert checkpoint.is_done(END)
    assert not checkpoint.is_done(END | {"seq": 3})
    assert checkpoint.query_id() == "4f1c"


@pytest.mark.parametrize("location", [None, "", "s3a://bucket/q", "/there/is/no/such/folder"])
def test_elsewhere_nothing_is_known(location):
    checkpoint = Checkpoint(location)
    assert not checkpoint.is_done(END)
    assert checkpoint.query_id() is None


def test_of_many_batches_the_one_that_runs_is_not_done(folder):
    for batch in (8, 9, 10, 11):
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(END | {'seq': batch})}")
        (folder / "commits" / str(batch - 1)).write_text("v1\n{}")
    checkpoint = Checkpoint(str(folder))
    assert checkpoint.is_done(END | {"seq": 10})
    assert not checkpoint.is_done(END | {"seq": 11})


def test_a_place_is_written_as_a_url(folder):
    spaced = folder / "with space"
    spaced.mkdir()
    (spaced / "metadata").write_text('{"id":"5a"}')
    assert Checkpoint(f"file://{folder}/with%20space").query_id() == "5a"
    assert Checkpoint(f"hdfs://name{folder}").query_id() is None
