"""Where reading begins and ends, according to the options."""

import pytest

from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.source.choices import OffsetOrTime
from muster.spark.source.member import BatchPacing
from muster.spark.source.options import DEFAULT_MAX_ROWS, parse_options

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
BEGIN, END = OffsetOrTime(None, EARLIEST_TIMESTAMP), OffsetOrTime(None, LATEST_TIMESTAMP)
BY_TIME = '{"t":{"0":1000}}'
OFFSETS = '{"t":{"0":23,"1":-2}}'


def read(streaming, **more):
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "groupId": "g"} | more
    return parse_options(given, streaming=streaming)


def starts(streaming, **more):
    choice = read(streaming, **more).starting
    return [choice.spot(partition) for partition in (P0, P1, P2)]


@pytest.mark.parametrize(
    ("given", "in_a_stream", "in_a_batch"),
    [
        ({}, [END] * 3, [BEGIN] * 3),
        ({"startingOffsets": "Earliest"}, [BEGIN] * 3, [BEGIN] * 3),
        ({"startingOffsets": OFFSETS}, [OffsetOrTime(23), BEGIN, BEGIN], [OffsetOrTime(23), BEGIN, BEGIN]),
        ({"startingTimestamp": "7000"}, [OffsetOrTime(None, 7000)] * 3, [OffsetOrTime(None, 7000)] * 3),
        (
            {"startingOffsetsByTimestamp": BY_TIME},
            [OffsetOrTime(None, 1000), BEGIN, BEGIN],
            [OffsetOrTime(None, 1000), BEGIN, BEGIN],
        ),
        (
            {"startingOffsetsByTimestamp": BY_TIME, "startingOffsets": "latest"},
            [OffsetOrTime(None, 1000), BEGIN, BEGIN],
            [OffsetOrTime(None, 1000), BEGIN, BEGIN],
        ),
        (
            {"startingOffsetsByTimestamp": BY_TIME, "startingOffsets": "earliest", "startingTimestamp": "5"},
            [OffsetOrTime(None, 5)] * 3,
            [OffsetOrTime(None, 5)] * 3,
        ),
    ],
)
def test_where_reading_begins(given, in_a_stream, in_a_batch):
    assert starts(True, **given) == in_a_stream
    assert starts(False, **given) == in_a_batch
    read(None, **given)


def test_what_does_not_count_is_reported():
    options = read(
        False, startingTimestamp="5", startingOffsets="earliest", endingTimestamp="7", endingOffsets="latest"
    )
    assert options.notes == (
        "startingOffsets is ignored, since startingTimestamp is set",
        "endingOffsets is ignored, since endingTimestamp is set",
    )
    assert read(False, maxTriggerDelay="1m").notes == ("maxTriggerDelay is ignored in a batch read",)
    assert read(True, maxTriggerDelay="1m").notes == ()
    assert read(True, groupIdPrefix="p").notes == ("groupIdPrefix is ignored, since a group is named",)


def test_where_a_batch_read_ends():
    assert read(False).ending.spot(P0) == END
    assert read(False, endingTimestamp="7").ending.spot(P0) == OffsetOrTime(None, 7)
    by_time = read(False, endingOffsetsByTimestamp=BY_TIME, endingOffsets=OFFSETS.replace("-2", "-1")).ending
    assert [by_time.spot(P0), by_time.spot(P1)] == [OffsetOrTime(None, 1000), END]
    by_offset = read(False, endingOffsets=OFFSETS.replace("-2", "-1")).ending
    assert [by_offset.spot(P0), by_offset.spot(P1)] == [OffsetOrTime(23), END]


def test_partitions_that_are_not_named_are_reported():
    choice = read(True, startingOffsets=OFFSETS).starting
    assert choice.left_out_warning([P0, P1]) is None
    told = "startingOffsets does not name t-2: reading starts where their logs begin"
    assert choice.left_out_warning([P0, P1, P2]) == told
    assert read(True, startingOffsets="earliest").starting.left_out_warning([P0]) is None
    ends = read(False, endingOffsets=OFFSETS.replace("-2", "-1")).ending
    many = [TopicPartition("t", number) for number in range(2, 12)]
    assert ends.left_out_warning(many) == (
        "endingOffsets does not name t-2, t-3, t-4, t-5, t-6 and 5 more: reading ends where their logs end"
    )
    with pytest.raises(ConfigError, match=r"startingOffsets names t-1, which is not one of"):
        choice.check_named_partitions([P0, P2])


def test_what_would_be_another_place_later():
    assert read(True).starting.moves
    assert read(True, startingOffsets='{"t":{"0":-1}}').starting.moves
    strategy = {"startingOffsetsByTimestampStrategy": "LATEST"}
    assert read(True, startingTimestamp="5", **strategy).starting.moves
    assert not read(True, startingTimestamp="5").starting.moves
    assert not read(True, startingOffsets="earliest", **strategy).starting.moves


@pytest.mark.parametrize(
    ("streaming", "wrong", "says"),
    [
        (False, {"startingOffsets": "latest"}, "startingOffsets is latest: a batch read would find nothing to read"),
        (False, {"startingOffsets": '{"t":{"0":-1}}'}, "has -1"),
        (False, {"endingOffsets": '{"t":{"0":-2}}'}, "an offset, -1 for latest$"),
        (False, {"endingOffsets": "earliest"}, "endingOffsets is 'earliest'; it must be one of latest"),
        (True, {"startingOffsets": '{"t":{"0":"5"}}'}, "must look like"),
        (True, {"startingOffsets": '{"t":{"0":1.5}}'}, "must look like"),
        (True, {"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'; it must be a number"),
        (True, {"startingTimestamp": "-1"}, "at least 0"),
        (True, {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "a time in milliseconds"),
        (True, {"startingOffsetsByTimestampStrategy": "earliest"}, "one of error, latest"),
        (True, {"endingTimestamp": "5"}, "endingTimestamp applies to batch reads only"),
        (True, {"endingOffsetsByTimestamp": BY_TIME}, "endingOffsetsByTimestamp applies to batch reads only"),
        (True, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, r"minOffsetsPerTrigger \(9\) is more than"),
        (True, {"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'; it must be a time"),
        (True, {"maxPartitions": "2", "maxRecordsPerPartition": "5"}, "cannot be combined"),
        (True, {"fetchOffset.numRetries": "3"}, r"cannot be set: .*join\.timeout"),
    ],
)
def test_what_is_wrong(streaming, wrong, says):
    with pytest.raises(ConfigError, match=says):
        read(streaming, **wrong)


def test_rows_of_a_batch():
    assert read(True).max_rows == DEFAULT_MAX_ROWS
    assert read(True, minOffsetsPerTrigger=str(DEFAULT_MAX_ROWS + 1)).max_rows == DEFAULT_MAX_ROWS + 1
    assert read(True).max_trigger_delay_ms == 900_000
    assert read(True, maxTriggerDelay="2h").max_trigger_delay_ms == 7_200_000


def test_a_group_of_the_querys_own():
    alone = read(True, groupId="", groupIdPrefix="team")
    assert (alone.group_id, alone.grouped) == (None, True)
    assert alone.in_group_of("q1").consumer_config().group_id == "team-q1"
    named = read(True, groupIdPrefix="team")
    assert named.in_group_of("q1") is named


def test_the_pace_of_batches():
    pace = BatchPacing(10, 1_000)
    assert not pace.holds_back(0, 5)  # the first trigger
    assert pace.holds_back(9, 1_004)
    assert not pace.holds_back(9, 1_005)
    assert not pace.holds_back(10, 1_006)
    assert pace.holds_back(9, 2_005)
    assert not BatchPacing(None, 1_000).holds_back(0, 5)
    assert not BatchPacing(None, 1_000).holds_back(0, 6)
