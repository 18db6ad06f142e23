"""The file of a recording: what was written is read back; a file that is not one, or is damaged, gets a one-sentence
error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.testing.recordings import recording
from muster.testing.recordings.recording import COMPLETE, DamagedRecordingError

TOPIC: dict[str, Any] = {"at_ms": 0, "what": "topic", "topic": "orders", "partitions": 2}
RECORD: dict[str, Any] = {
    "at_ms": 5,
    "what": "record",
    "topic": "orders",
    "partition": 1,
    "offset": 7,
    "timestamp_ms": 1,
    "key": None,
    "value": "x",
    "headers": [["h", {"base64": "/w=="}]],
}
COMMIT: dict[str, Any] = {
    "at_ms": 9,
    "what": "committed",
    "group": "billing",
    "client": "a",
    "offsets": {"orders": {"1": 8}},
}
GENERATION: dict[str, Any] = {
    "at_ms": 8,
    "what": "generation",
    "group": "billing",
    "generation": 1,
    "members": [{"client": "a", "partitions": {"orders": [1]}}],
}
END: dict[str, Any] = {"at_ms": 10, "what": "end", "why": COMPLETE}


def file_of(*lines: dict[str, Any], head: object = None) -> bytes:
    first = json.dumps(recording.head("a test", 0) if head is None else head)
    return "".join(f"{line}\n" for line in [first, *map(json.dumps, lines)]).encode()


def test_a_recording_is_read() -> None:
    found = recording.read(file_of(TOPIC, RECORD, GENERATION, COMMIT, END), "r")
    assert found.lines == [TOPIC, RECORD, GENERATION, COMMIT]
    assert (found.why, found.groups(), found.clients()) == (COMPLETE, ["billing"], [])


@given(st.none() | st.binary())
def test_bytes_are_the_same_again(data: bytes | None) -> None:
    assert recording.from_json(json.loads(json.dumps(recording.to_json(data)))) == data


def test_text_is_stored_as_text() -> None:
    assert recording.to_json("Müller".encode()) == "Müller"


@pytest.mark.parametrize("left_out", [1, 5])
def test_a_recording_whose_broker_was_killed_is_read_as_far_as_it_goes(left_out: int) -> None:
    whole = file_of(TOPIC, RECORD, COMMIT, END)
    torn = recording.read(whole[: -len(json.dumps(END)) - left_out], "r")
    assert torn.lines == ([TOPIC, RECORD, COMMIT] if left_out == 1 else [TOPIC, RECORD])
    assert torn.why == "its last line is missing: the broker ended while it was recorded"


HEAD = {"muster_recording": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is not a recording by muster"),
        (b"\x00\xff\n", "is not a recording by muster"),
        (b'["muster_recording"]\n', "is not a recording by muster"),
        (file_of(END, head={"muster_recording": 2}), "version 2, but this version of muster reads only version 1"),
        (file_of(TOPIC) + b"{\n" + json.dumps(END).encode() + b"\n", "r, line 3 is damaged: it is not a JSON object"),
        (file_of({"at_ms": 0, "what": "danced"}, END), "line 2: what='danced' is unknown; known are topic, record"),
        (file_of({**TOPIC, "partitions": "2"}, END), "in 'topic', partitions='2' has the wrong type"),
        (
            file_of({**TOPIC, "partitions": True}, END),
            "in 'topic', partitions=True has the wrong type",
        ),
        (file_of({"at_ms": 0, "what": "topic", "topic": "t"}, END), "in 'topic', partitions is missing"),
        (file_of({**TOPIC, "partitions": 10**9}, END), "line 2 is damaged: a part of"),
        (file_of(TOPIC, {**RECORD, "value": {"base64": "%"}}, END), "line 3 is damaged: a part of"),
        (file_of(TOPIC, {**RECORD, "headers": [1]}, END), "line 3 is damaged: a part of"),
        (file_of(TOPIC, {**RECORD, "offset": -1}, END), "line 3 is damaged: a part of"),
        (file_of({**COMMIT, "offsets": {"orders": {"x": 1}}}, END), "line 2 is damaged: a part of"),
        (file_of({**COMMIT, "offsets": {"orders": 1}}, END), "line 2 is damaged: a part of"),
        (file_of({**GENERATION, "members": [{"client": "a"}]}, END), "line 2 is damaged: a part of"),
        (file_of(RECORD, END), "line 2: no line before this record declares its topic and partition"),
        (file_of(TOPIC, {**RECORD, "partition": 2}, END), "line 3: no line before this record declares its topic"),
        (
            file_of(TOPIC, RECORD, RECORD, END),
            "line 4: the offset is not greater than that of the partition's",
        ),
    ],
)
def test_what_is_not_a_recording_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(DamagedRecordingError) as found:
        recording.read(text, "r")
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@given(st.data())
def test_a_damaged_recording_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(file_of(TOPIC, RECORD, GENERATION, COMMIT, END))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = recording.read(bytes(whole), "r")
    except DamagedRecordingError:
        return
    for line in found.lines:
        if line["what"] == "record":
            recording.from_json(line["value"])


def test_an_offset_is_where_the_recorded_records_alone_put_it() -> None:
    found = recording.read(file_of(TOPIC, RECORD, {**RECORD, "offset": 9}, END), "r")
    assert [found.replayed_offset("orders", 1, offset) for offset in (0, 7, 8, 9, 10, 99)] == [0, 0, 1, 1, 2, 2]
    assert found.replayed_offset("orders", 0, 5) == 0


def test_a_group_gets_another_name_where_it_is_the_only_one() -> None:
    struck = {
        "at_ms": 9,
        "what": "struck",
        "name": "f",
        "fault": {},
        "api": "Fetch",
        "client": "",
        "groups": ["billing"],
    }
    found = recording.read(file_of(TOPIC, GENERATION, COMMIT, struck, END), "r")
    found.rename_group("shipping")
    assert found.groups() == ["shipping"]
    assert found.lines[-1]["groups"] == ["shipping"]
    other = recording.read(file_of(GENERATION, {**GENERATION, "group": "b"}, END), "r")
    with pytest.raises(ConfigError, match="renames the only group of a recording; this one has b, billing"):
        other.rename_group("shipping")


def test_members_of_one_client_id_are_distinguished() -> None:
    names: list[str] = []
    for client in ("rdkafka", "rdkafka", "b", "rdkafka"):
        names.append(recording.free_name(client, names))
    assert names == ["rdkafka", "rdkafka#2", "b", "rdkafka#3"]


def test_a_recording_is_not_written_over_another_file(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("ten years of work")
    with pytest.raises(ConfigError, match=r"thesis\.txt exists and is not a recording: choose another file"):
        recording.open_recording(precious)
    assert precious.read_text() == "ten years of work"
    mine = tmp_path / "mine.recording"
    mine.write_bytes(file_of(END))
    recording.open_recording(mine).close()
    with pytest.raises(ConfigError, match=r"cannot write a recording to .*: No such file or directory"):
        recording.open_recording(tmp_path / "no" / "such")


def test_a_recording_that_is_too_large_ends_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is in bytes, and a letter can have three."""
    monkeypatch.setattr(recording, "MOST_BYTES", 5_000)
    path = tmp_path / "large"
    into = recording.Writer(path, "a test", 0)
    into.write(0, "topic", topic="orders", partitions=1)
    for offset in range(100):
        into.write(**{**RECORD, "partition": 0, "offset": offset, "value": "好" * 100})
    into.end()
    assert path.stat().st_size == into.size <= 5_000
    found = recording.read(path.read_bytes(), "r")
    assert (found.why, len(found.lines) + 2) == (recording.TOO_LARGE, into.lines)
    assert found.lines[-1]["offset"] < 99
