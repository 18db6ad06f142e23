"""Lines in, records out: `muster produce` and `muster consume` without a cluster."""

import argparse
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import common, consume, produce
from muster.client.config import ProducerConfig
from muster.errors import ConfigError, KafkaError, MusterError
from muster.model import ConsumerRecord

RECORD = ConsumerRecord("flights", 3, 42, 1700000000000, 0, b"N1", b"late", [("why", b"fog"), ("none", None)])


def lines(monkeypatch, text, **arguments):
    stdin = argparse.Namespace(buffer=io.BytesIO(text))
    monkeypatch.setattr("sys.stdin", stdin)
    return list(produce.read_lines(argparse.Namespace(**({"json": False, "key_separator": None} | arguments))))


def test_lines_are_values(monkeypatch):
    found = lines(monkeypatch, b"one\r\n\ntwo")
    assert [(line.key, line.value) for line in found] == [(None, b"one"), (None, b""), (None, b"two")]


def test_blanks_belong_to_the_record(monkeypatch):
    assert [line.value for line in lines(monkeypatch, b"  a \t\n \n\r\n")] == [b"  a \t", b" ", b""]


def test_keys_stand_before_the_first_separator(monkeypatch):
    (found,) = lines(monkeypatch, b"k::a::b\n", key_separator="::")
    assert (found.key, found.value) == (b"k", b"a::b")
    with pytest.raises(MusterError, match="line 2 has no key: ':' is not in it"):
        lines(monkeypatch, b"k:v\nnone\n", key_separator=":")


def test_json_lines(monkeypatch):
    text = json.dumps({"key": "k", "value": {"a": [1]}, "headers": {"h": "x"}, "partition": 2, "timestamp": 5})
    (found,) = lines(monkeypatch, text.encode(), json=True)
    assert found == produce.Line(b"k", b'{"a":[1]}', [("h", b"x")], 2, 5)
    assert produce.from_json(b"{}", 1) == produce.Line(None, None, [])
    assert produce.from_json(b'{"headers":[["h",null],["h",1]]}', 1).headers == [("h", None), ("h", b"1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "line 7 is no JSON"),
        (b"[]", "line 7 is no JSON object"),
        pytest.param(b"[" * 100_000, "line 7 is no JSON", id="deep"),
        (b'{"value":"\\ud800"}', "line 7: value has half of a surrogate pair"),
        (b'{"vlaue":1}', "vlaue means nothing"),
        (b'{"headers":5}', "headers are an object"),
        (b'{"partition":"1"}', "partition is a whole number"),
        (b'{"timestamp":true}', "timestamp is a whole number"),
        (b'{"value_base64":"?"}', "value_base64 is no base64"),
        (b'{"key_base64":1}', "key_base64 is no base64"),
        (b'{"key":"a","key_base64":"YQ=="}', "exclude each other"),
        (b'{"headers":{"h":{"base64":"?"}}}', "headers are an object"),
    ],
)
def test_json_that_is_no_record(text, message):
    with pytest.raises(MusterError, match=message):
        produce.from_json(text, 7)


_BYTES = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)


@given(key=_BYTES, value=_BYTES, headers=st.lists(st.tuples(st.text(max_size=4), _BYTES), max_size=3))
def test_what_consume_prints_produce_reads(key, value, headers):
    """Word for word, whatever the bytes are."""
    record = ConsumerRecord("flights", 3, 42, 1700000000000, 0, key, value, headers)
    line = produce.from_json(consume.as_json(record), 1)
    assert line == produce.Line(key, value, headers, record.partition, record.timestamp)


def test_text_is_shown_as_text_and_other_bytes_in_base64():
    record = ConsumerRecord("t", 0, 0, 0, 0, b"k", b"\xff", [("a", b"x"), ("b", b"\xfe")])
    shown = json.loads(consume.as_json(record))
    assert (shown["key"], shown["value_base64"], "value" in shown) == ("k", "/w==", False)
    assert shown["headers"] == [["a", "x"], ["b", {"base64": "/g=="}]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"late\n"),
        (r"%t [%p] %o\t%k=%s %T 100%%", b"flights [3] 42\tN1=late 1700000000000 100%"),
        ("%h", b"why=fog,none="),
        ("\\x \\\\", b"\\x \\"),
        ("né", "né".encode()),
    ],
)
def test_formats(text, expected):
    assert consume.formatter(text)(RECORD) == expected


@pytest.mark.parametrize("text", ["%x", "ends in %"])
def test_formats_that_mean_nothing(text):
    with pytest.raises(ConfigError, match="means nothing"):
        consume.formatter(text)


def test_missing_keys_and_values_are_empty():
    record = ConsumerRecord("t", 0, 0, 0, 0, None, None)
    assert consume.formatter("<%k|%s|%h>")(record) == b"<||>"
    assert json.loads(consume.as_json(record))["value"] is None


def test_settings_of_the_command_line():
    arguments = argparse.Namespace(
        settings=["linger.ms=5", "client.id=x=y"], bootstrap="b:1", command_config=None, in_file={}
    )
    found = common.client_settings(arguments, ProducerConfig)
    assert found == {"client.id": "x=y", "linger.ms": "5", "bootstrap.servers": "b:1"}
    with pytest.raises(ConfigError, match="write it as KEY=VALUE"):
        common.pairs(["oops"], "-o")


def test_failures_of_items_are_told_and_make_the_exit_code(capsys):
    assert common.report_errors({"a": None}, "topic") == 0
    assert common.report_errors({"a": None, "b": KafkaError(36, "it is there")}, "topic") == 1
    assert capsys.readouterr().err == "muster: topic b: TOPIC_ALREADY_EXISTS: it is there\n"


def test_topic_ids_look_as_in_kafkas_tools():
    assert common.topic_id_text(bytes.fromhex("b229ad8406aa41002e7bac73ee23da18")) == "simthAaqQQAue6xz7iPaGA"
