"""kill -9 right after the answer to an admin's change: the change is still there after the broker's restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.written import build_batch

pytestmark = pytest.mark.slow

SET = 0


def ask(broker: BrokerProcess, request: Any, version: int) -> Any:
    with RawClient(broker.bootstrap) as client:
        return client.ask(request, version)


def kill_after(broker: BrokerProcess, request: Any, version: int) -> Any:
    """The answer to a request, after which the broker is killed and started again."""
    answer = ask(broker, request, version)
    broker.kill()
    broker.start()
    return answer


def earliest_and_latest(broker: BrokerProcess) -> tuple[int, int]:
    def at(time: int) -> int:
        topics = [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(0, -1, time)])]
        answer = ask(broker, m.ListOffsetsRequest(-1, 0, topics), 4)
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    return at(-2), at(-1)


def setting(broker: BrokerProcess, kind: int, name: str, key: str) -> tuple[str | None, int]:
    request = m.DescribeConfigsRequest([m.DescribeConfigsResource(kind, name, [key])])
    (found,) = ask(broker, request, 4).results[0].configs
    return found.value, found.config_source


def alteration(kind: int, name: str, key: str, value: str) -> Any:
    config = a.IncrementalAlterConfigsRequestAlterableConfig(key, SET, value)
    resource = a.IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [config])
    return a.IncrementalAlterConfigsRequest([resource])


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_what_was_granted_holds_after_kill_9(tmp_path: Path, fsync: str) -> None:
    with BrokerProcess(tmp_path / "data", fsync=fsync) as broker:
        created = ask(broker, m.CreateTopicsRequest([m.CreatableTopic("t", 1, 1)], 300_000), 7)
        assert created.topics[0].error_code == 0
        for number in range(5):
            records = bytes(build_batch([(1000, None, b"%d" % number, [])]))
            data = m.TopicProduceData("t", ZERO_UUID, [m.PartitionProduceData(0, records)])
            produced = ask(broker, m.ProduceRequest(None, -1, 30_000, [data]), 9)
            assert produced.responses[0].partition_responses[0].error_code == 0

        cut = a.DeleteRecordsRequest([a.DeleteRecordsTopic("t", [a.DeleteRecordsPartition(0, 3)])], 300_000)
        answer = kill_after(broker, cut, 2)
        assert answer.topics[0].partitions[0].low_watermark == 3
        assert earliest_and_latest(broker) == (3, 5)

        grown = kill_after(broker, a.CreatePartitionsRequest([a.CreatePartitionsTopic("t", 4, None)], 300_000), 3)
        assert grown.results[0].error_code == 0
        (topic,) = ask(broker, m.MetadataRequest([m.MetadataRequestTopic(name="t")]), 12).topics
        assert sorted((one.partition_index, one.error_code) for one in topic.partitions) == [(i, 0) for i in range(4)]
        assert topic.topic_id == created.topics[0].topic_id

        altered = kill_after(broker, alteration(2, "t", "retention.ms", "-1"), 1)
        assert altered.responses[0].error_code == 0
        assert setting(broker, 2, "t", "retention.ms") == ("-1", 1)
        altered = kill_after(broker, alteration(4, "1", "message.max.bytes", "777"), 1)
        assert altered.responses[0].error_code == 0
        assert setting(broker, 4, "1", "message.max.bytes") == ("777", 2)
        assert setting(broker, 2, "t", "max.message.bytes") == ("777", 2)
        assert earliest_and_latest(broker) == (3, 5)
