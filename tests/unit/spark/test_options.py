"""Options of the source: what is accepted, and the errors for the rest."""

import pytest

from muster.arrow import COLUMNS
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.spark.source.claims import ReplayMode, ResumeMode
from muster.spark.source.options import DEFAULT_MAX_ROWS, parse_options

BASE = {"kafka.bootstrap.servers": "a:9092, b:9092", "subscribe": "t1, t2"}
GROUP = BASE | {"groupId": "g"}


def stream(**more):
    return parse_options(GROUP | {name.replace("_", "."): value for name, value in more.items()}, streaming=True)


def test_defaults():
    options = stream()
    assert options.bootstrap == ("a:9092", "b:9092")
    assert options.topics == ("t1", "t2")
    assert (options.grouped, options.group_id, options.columns) == (True, "g", COLUMNS)
    assert (options.max_rows, options.fail_on_data_loss) == (DEFAULT_MAX_ROWS, True)
    assert (options.resume, options.replay) == (ResumeMode.MAX, ReplayMode.STRICT)
    config = options.consumer_config()
    assert config.partition_assignment_strategy == ("cooperative-sticky",)
    assert not config.enable_auto_commit
    assert options.fetch_settings().max_bytes == 8 * 1024 * 1024


def test_names_have_no_case_and_may_be_kafkas():
    given = {"BOOTSTRAP": "a:9092", "SUBSCRIBE": "t", "kafka.group.id": "g", "KAFKA.SESSION.TIMEOUT.MS": "7000"}
    options = parse_options(given | {"kafka.heartbeat.interval.ms": "1000"}, streaming=True)
    config = options.consumer_config()
    assert (config.group_id, config.session_timeout_ms, config.heartbeat_interval_ms) == ("g", 7000, 1000)


def test_what_is_read():
    json = '{"t":[1,0]}'
    by_hand = parse_options({"bootstrap": "a:1", "assign": json}, streaming=False)
    assert by_hand.partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert parse_options({"bootstrap": "a:1", "subscribePattern": "t.*"}, streaming=False).pattern == "t.*"
    assert not parse_options({"bootstrap": "a:1", "assign": json}, streaming=True).grouped


def test_columns_and_headers():
    assert stream(columns="value, Offset, value").columns == ("value", "offset")
    assert stream(includeHeaders="true").columns == (*COLUMNS, "headers")
    assert stream(includeHeaders="true", columns="key").columns == ("key", "headers")


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1500", 1500)])
def test_times(text, ms):
    assert stream(drain_timeout=text).drain_timeout_ms == ms


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"subscrib": "t"}, "did you mean subscribe"),
        ({"startingoffset": "latest"}, "did you mean startingOffsets"),
        ({"zzzz": "1"}, "not an option of the muster source; the options are"),
        ({"kafka.sesion.timeout.ms": "1"}, r"^kafka\.sesion\.timeout\.ms is not .* mean kafka\.session\.timeout\.ms\?"),
        ({"kafka.session.timeout.ms": "soon"}, r"^kafka\.session\.timeout\.ms is 'soon'; it must be a whole number"),
        ({"kafka.enable.auto.commit": "true"}, "committed when Spark has finished"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"path": "t"}, "subscribe"),
        ({"decode": "json"}, "in the query, with from_json"),
        ({"assign": '{"t":[0]}'}, "subscribe and assign are set"),
        ({"subscribe": " , "}, "names no topic"),
        ({"groupId": ""}, "set groupId, or set mode"),
        ({"group.id": "other"}, "same option and have different values"),
        ({"endingOffsets": "latest"}, "has no end"),
        ({"startingOffsets": "sometime"}, "earliest, latest, committed"),
        ({"startingOffsets": "{bad"}, "must look like"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3"),
        ({"failOnDataLoss": "maybe"}, "true, false"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"minPartitions": "x"}, "a number"),
        ({"drain.timeout": "soon"}, "30s"),
        ({"columns": "valu"}, "the columns are key, value"),
        ({"columns": ","}, "columns is empty"),
        ({"resume": "never"}, "max, group, checkpoint"),
        ({"kafka.heartbeat.interval.ms": "90000"}, r"kafka\.heartbeat\.interval\.ms .*kafka\.session\.timeout\.ms"),
        ({"kafka.bootstrap.servers": "nohost"}, "broker address"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(wrong, says):
    with pytest.raises(ConfigError, match=says):
        parse_options(GROUP | wrong, streaming=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bootstrap": "a:1"}, "none is set"),
        ({"subscribe": "t"}, "kafka.bootstrap.servers is not set"),
        ({"bootstrap": "a:1", "subscribePattern": "("}, "regular expression"),
        ({"bootstrap": "a:1", "assign": "t-0"}, "must look like"),
        (BASE | {"startingOffsets": "committed"}, "needs groupId"),
        (BASE | {"endingOffsets": '{"t1":{"0":-2}}'}, "-1 for latest"),
    ],
)
def test_what_is_wrong_with_a_batch_read(given, says):
    with pytest.raises(ConfigError, match=says):
        parse_options(given, streaming=False)


def test_assign_does_not_fit_a_group():
    given = {"bootstrap": "a:1", "assign": '{"t":[0]}', "mode": "group", "groupId": "g"}
    with pytest.raises(ConfigError, match="a group assigns partitions itself"):
        parse_options(given, streaming=True)
