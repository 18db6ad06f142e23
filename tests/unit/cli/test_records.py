"""Lines in, records out: `muster produce` and `muster consume` without a cluster."""

import argparse
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import common
from muster.cli.stream import produce, record_text
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
    with pytest.raises(MusterError, match="line 2 has no key: it lacks the separator ':'"):
        lines(monkeypatch, b"k:v\nnone\n", key_separator=":")


def test_json_lines(monkeypatch):
    text = json.dumps({"key": "k", "value": {"a": [1]}, "headers": {"h": "x"}, "partition": 2, "timestamp": 5})
    (found,) = lines(monkeypatch, text.encode(), json=True)
    assert found == produce.InputRecord(b"k", b'{"a":[1]}', [("h", b"x")], 2, 5)
    assert produce.from_json(b"{}", 1) == produce.InputRecord(None, None, [])
    assert produce.from_json(b'{"headers":[["h",null],["h",1]]}', 1).headers == [("h", None), ("h", b"1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "line 7 is not JSON"),
        (b"[]", "line 7 is not a JSON object"),
        pytest.param(b"[" * 100_000, "line 7 is not JSON", id="deep"),
        (b'{"value":"\\ud800"}', "line 7: value has an unpaired surrogate"),
        (b'{"vlaue":1}', "unknown field vlaue"),
        (b'{"headers":5}', "headers must be an object"),
        (b'{"partition":"1"}', "partition must be a whole number"),
        (b'{"timestamp":true}', "timestamp must be a whole number"),
        (b'{"value_base64":"?"}', "value_base64 is not base64"),
        (b'{"key_base64":1}', "key_base64 is not base64"),
        (b'{"key":"a","key_base64":"YQ=="}', "cannot be combined"),
        (b'{"headers":{"h":{"base64":"?"}}}', "headers must be an object"),
    ],
)
def test_json_that_is_not_a_record(text, message):
    with pytest.raises(MusterError, match=message):
        produce.from_json(text, 7)


_BYTES = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)


@given(key=_BYTES, value=_BYTES, headers=st.lists(st.tuples(st.text(max_size=4), _BYTES), max_size=3))
def test_what_consume_prints_produce_reads(key, value, headers):
    """Word for word, whatever the bytes are."""
    record = ConsumerRecord("flights", 3, 42, 1700000000000, 0, key, value, headers)
    line = produce.from_json(record_text.as_json(record), 1)
    assert line == produce.InputRecord(key, value, headers, record.partition, record.timestamp)


def test_text_is_shown_as_text_and_other_bytes_in_base64():
    record = ConsumerRecord("t", 0, 0, 0, 0, b"k", b"\xff", [("a", b"x"), ("b", b"\xfe")])
    shown = json.loads(record_text.as_json(record))
    assert (shown["key"], shown["value_base64"], "value" in shown) == ("k", "/w==", False)
    assert shown["headers"] == [["a", "x"], ["b", {"base64": "/g=="}]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"late\n"),
        (r"%t [%p] %o\t%k=%s %T 100%%", b"flights [3] 42\tN1=late 1700000000000 100%"),
        ("%h", b"why=fog,none=NULL"),
        ("\\x \\\\", b"\\x \\"),
        (r"\x41\x4\66\101\0101\q\0", b"A\x04BeAq\0"),
        ("%K %S %k", b"2 4 N1"),
        ("%R", b"\0\0\0\x04"),
        ("né", "né".encode()),
    ],
)
def test_formats(text, expected):
    assert record_text.formatter(text)(RECORD) == expected


@pytest.mark.parametrize("text", ["%x", "ends in %"])
def test_formats_that_mean_nothing(text):
    with pytest.raises(ConfigError, match="is unknown"):
        record_text.formatter(text)


def test_missing_keys_and_values_are_empty():
    record = ConsumerRecord("t", 0, 0, 0, 0, None, None)
    assert record_text.formatter("<%k|%s|%h>")(record) == b"<||>"
    assert record_text.formatter("%k %K %s %S %R", null=b"NULL")(record) == b"NULL -1 NULL -1 \xff\xff\xff\xff"
    empty = ConsumerRecord("t", 0, 0, 0, 0, b"", b"")
    assert record_text.formatter("%k %K %s %S", null=b"NULL")(empty) == b" 0  0"
    assert json.loads(record_text.as_json(record))["value"] is None


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("i", b"\0\0\1\2", b"258"),
        ("<i", b"\2\1\0\0", b"258"),
        ("b B h H", b"\xff\xff\xff\xff\xff\xff", b"-1 255 -1 65535"),
        ("q Q", b"\xff" * 16, b"-1 18446744073709551615"),
        ("I<h>h$", b"\xff" * 4 + b"\1\0\0\1", b"429496729511"),
        ("bcs", b"\5xyz", b"5xyz"),
        ("b", b"\5 and more", b"5"),
        ("s$", b"text", b"text"),
    ],
)
def test_bytes_are_unpacked(text, data, expected):
    assert record_text.unpacking(text, "--unpack")(data) == expected
    key, value = record_text.unpackings([f"key={text}"])
    record = ConsumerRecord("t", 0, 0, 0, 0, data, data)
    assert record_text.formatter("%k|%s", key=key, value=value)(record) == expected + b"|" + data
    key, value = record_text.unpackings([text])
    assert record_text.formatter("%k|%s", key=key, value=value)(record) == expected + b"|" + expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("i", "only 3 bytes left for i"), ("b$", r"2 bytes left at \$"), ("hbc", "only 0 bytes left")],
)
def test_bytes_that_do_not_fit(text, sentence):
    write = record_text.formatter("%s", value=record_text.unpacking(text, "--unpack"))
    with pytest.raises(MusterError, match=f"t-4 at offset 7 cannot be unpacked: {sentence}"):
        write(ConsumerRecord("t", 4, 7, 0, 0, None, b"abc"))
    assert write(ConsumerRecord("t", 4, 7, 0, 0, None, b"")) == b""


def test_settings_of_the_command_line():
    arguments = argparse.Namespace(
        settings=["linger.ms=5", "client.id=x=y"], bootstrap="b:1", command_config=None, in_file={}
    )
    found = common.client_settings(arguments, ProducerConfig)
    assert found == {"client.id": "x=y", "linger.ms": "5", "bootstrap.servers": "b:1"}
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        common.pairs(["oops"], "-o")


def test_failures_of_items_are_reported_and_make_the_exit_code(capsys):
    assert common.report_errors({"a": None}, "topic") == 0
    assert common.report_errors({"a": None, "b": KafkaError(36, "it is there")}, "topic") == 1
    assert capsys.readouterr().err == "muster: topic b: TOPIC_ALREADY_EXISTS: it is there\n"


def test_topic_ids_look_as_in_kafkas_tools():
    assert common.topic_id_text(bytes.fromhex("b229ad8406aa41002e7bac73ee23da18")) == "simthAaqQQAue6xz7iPaGA"
