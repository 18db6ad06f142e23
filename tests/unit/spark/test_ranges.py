"""How one task reads: ranges one after the other, with the next request always in flight."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from muster.client.config import ClientConfig
from muster.client.plain import cluster as clusters
from muster.client.plain.cluster import RetriableError
from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.errors import ConfigError, KafkaConnectionError
from muster.model import TopicPartition
from muster.protocol.messages import PartitionData
from muster.protocol.records.record_batch import BatchBuilder
from muster.spark.offsets import INITIAL, Claim, QueryOffset, TopicState, to_json
from muster.spark.source import ranges
from muster.spark.source.options import parse_options
from muster.spark.source.ranges import OffsetRange, ReadTask, read_range, tasks
from muster.spark.source.stream import StreamReader

SETTINGS = FetchSettings(ClientConfig(), timeout_s=10)


def reader(end):
    found: Any = RangeReader(SETTINGS, TopicPartition("t", 0), 0, end)
    found.sent = []
    found._send = lambda: found.sent.append(found._position)
    return found


def answer(*bases):
    built = []
    for base in bases:
        builder = BatchBuilder()
        for number in range(3):
            builder.append(1000, None, b"%d" % number, [])
        built.append(bytearray(builder.build()))
        struct.pack_into(">q", built[-1], 0, base)
    return PartitionData(records=b"".join(built), high_watermark=99)


def raised(answered):
    if isinstance(answered, Exception):
        raise answered
    return answered


def test_a_reader_says_when_it_needs_no_further_request():
    found, reported = reader(9), []
    assert [batch.num_rows for batch in found._decode(answer(0, 3), lambda: reported.append("last"))] == [6]
    assert (found.sent, reported) == ([6], [])
    handed_out = found._decode(answer(6), lambda: reported.append("last"))
    assert next(handed_out).num_rows == 3
    assert (found.sent, reported) == ([6], ["last"])  # before its records were taken


def test_a_request_that_cannot_be_sent_ahead_is_met_again_in_its_turn():
    found = reader(9)

    def fails():
        raise RetriableError("no leader")

    found._send = fails
    found.begin()
    with pytest.raises(RetriableError, match="no leader"):
        found._fetch()


def test_nothing_is_sent_ahead_twice():
    found = reader(9)
    found._send = lambda: found.sent.append(0) or SimpleNamespace(connection=SimpleNamespace(close=lambda: None))
    found.begin()
    found.begin()
    assert found.sent == [0]
    found.close()
    found.close()
    empty = reader(0)
    empty.begin()
    assert empty.sent == []


def test_what_the_caller_does_with_records_is_not_waiting(monkeypatch):
    """A sink may take minutes for the records of one answer: a broker that is down just then is still waited for."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(clusters, "time", clock)
    found = reader(9)
    for _ in found._decode(answer(0)):
        now[0] += 300
    found._pause(RetriableError("a broker that restarts"))
    later = reader(9)  # its turn comes when the ranges before it are read
    now[0] += 300
    answers = iter([RetriableError("a broker that restarts"), answer(0, 3, 6)])
    later._fetch = lambda: raised(next(answers))
    later._cluster = SimpleNamespace(forget_leader=lambda _: None)
    assert [batch.num_rows for batch in later.batches()] == [9]
    with pytest.raises(KafkaConnectionError, match="no answer within 10 s"):
        found._pause(RetriableError("a broker that is gone"))


class Recorded:
    """Replaces a reader: records its calls, in order."""

    said: list[str]

    def __init__(self, settings, place, start, end, topic_id):
        self.name = f"{place} {start}-{end} {topic_id.hex()}"

    def begin(self):
        self.said.append(f"begin {self.name}")

    def batches(self, at_last):
        self.said.append(f"read {self.name}")
        yield 1
        if at_last is not None:
            at_last()
        yield 2

    def close(self):
        self.said.append(f"close {self.name}")


@pytest.fixture
def said(monkeypatch):
    monkeypatch.setattr(ranges, "RangeReader", Recorded)
    monkeypatch.setattr(Recorded, "said", [], raising=False)
    return Recorded.said


TASK = ReadTask([OffsetRange("t", 0, 3, 9, "0a"), OffsetRange("u", 1, 4, 8)])


def test_the_next_range_is_begun_before_the_last_records_of_one_are_taken(said):
    found: Any = read_range(SETTINGS, TASK)
    assert [next(found), next(found)] == [1, 2]
    assert said == ["read t-0 3-9 0a", "begin u-1 4-8 "]
    assert list(found) == [1, 2]
    assert said[2:] == ["read u-1 4-8 ", "close t-0 3-9 0a", "close u-1 4-8 "]


def test_a_task_that_is_given_up_leaves_no_request_behind(said):
    found: Any = read_range(SETTINGS, TASK)
    assert [next(found), next(found)] == [1, 2]
    found.close()
    assert said[2:] == ["close t-0 3-9 0a", "close u-1 4-8 "]


def test_the_tasks_of_a_batch():
    pieces = [(TopicPartition("t", index), Claim(10, 10 + size)) for index, size in enumerate((5, 90, 80, 7))]
    ids = {"t": "0a"}.__getitem__
    assert [str(task) for task in tasks(pieces, ids, 2)] == [
        "ReadTask(t-1 [10, 100))",
        "ReadTask(t-0 [10, 15), t-2 [10, 90), t-3 [10, 17))",
    ]
    assert [task.ranges for task in tasks(pieces[:1], ids, None)] == [(OffsetRange("t", 0, 10, 15, "0a"),)]


def test_at_most_and_at_least_are_compared():
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "minPartitions": "3"}
    assert parse_options(given | {"maxPartitions": "3"}, streaming=False).max_partitions == 3
    with pytest.raises(ConfigError, match="maxPartitions must not be less than minPartitions"):
        parse_options(given | {"maxPartitions": "2"}, streaming=False)


def test_the_tasks_of_a_stream_know_the_topics_of_its_batch_by_their_ids():
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "groupId": "g", "maxPartitions": "1"}
    stream: Any = StreamReader(parse_options(given, streaming=True))
    claims = {TopicPartition("t", 0): Claim(1, 3), TopicPartition("u", 0): Claim(5, 9)}
    stream._member = SimpleNamespace(planned=lambda end: claims)
    end = to_json(QueryOffset(1, claims, topics={"t": TopicState("0a" * 16, 1)}))
    [task] = stream.partitions(to_json(INITIAL), end)
    assert task.ranges == (OffsetRange("t", 0, 1, 3, "0a" * 16), OffsetRange("u", 0, 5, 9, ""))
