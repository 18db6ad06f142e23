"""Record batches that lie about themselves, and the topics to which they are sent: for comparing brokers' answers.

Each is a batch whose CRC holds (unless the CRC is the lie), so a broker has to inspect its contents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from struct import pack_into

from crc32c import crc32c

from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.compression import Compression, compress
from muster.protocol.records.varints import varint
from tests.support.brokers import RawClient

ANSWERS_OF_KAFKA = Path(__file__).with_name("lying_batches.json")
"""Apache Kafka 4.2.0's answers to each, in the form that `ask_all` returns."""

HEADER = 61
NOW = 1_700_000_000_000

TOPICS: dict[str, dict[str, str]] = {
    "lies-plain": {},
    "lies-compacted": {"cleanup.policy": "compact"},
    "lies-append-time": {"message.timestamp.type": "LogAppendTime"},
    "lies-recent-only": {"message.timestamp.before.max.ms": "3600000"},
}


def body(
    delta: int = 0,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    time: int = 0,
    attributes: int = 0,
    key_size: int | None = None,
    value_size: int | None = None,
    headers: bytes = b"\0",
) -> bytes:
    """A record without its length."""
    parts = [bytes([attributes]), varint(time), varint(delta)]
    for data, size in ((key, key_size), (value, value_size)):
        parts += [varint((-1 if data is None else len(data)) if size is None else size), data or b""]
    return b"".join([*parts, headers])


def record(delta: int = 0, *, size: int | None = None, **fields: object) -> bytes:
    """A record; `size` is the length that it claims."""
    data = body(delta, **fields)  # type: ignore[arg-type]
    return varint(len(data) if size is None else size) + data


def header(
    key: bytes = b"h", value: bytes | None = b"w", *, key_size: int | None = None, value_size: int = -2
) -> bytes:
    size = (-1 if value is None else len(value)) if value_size == -2 else value_size
    return varint(len(key) if key_size is None else key_size) + key + varint(size) + (value or b"")


def batch(
    records: bytes | memoryview,
    count: int = 1,
    *,
    codec: int = 0,
    attributes: int = 0,
    last: int | None = None,
    base: int = 0,
    length: int | None = None,
    epoch: int = -1,
    magic: int = 2,
    first_time: int = NOW,
    max_time: int = NOW,
    producer: tuple[int, int, int] = (-1, -1, -1),
    crc: int | None = None,
) -> bytes:
    """A batch whose header has these values."""
    if codec in Compression.__members__.values() and codec:
        records = compress(Compression(codec), records)
    data = bytearray(HEADER) + records
    delta = count - 1 if last is None else last
    flags = codec | attributes
    pack_into(">hiqqqhii", data, 21, flags, delta, first_time, max_time, *producer, count)
    pack_into(">qiib", data, 0, base, len(data) - 12 if length is None else length, epoch, magic)
    pack_into(">I", data, 17, crc32c(bytes(data[21:])) if crc is None else crc)
    return bytes(data)


def raw_codec(records: bytes, codec: int, count: int = 1) -> bytes:
    """Uncompressed bytes in a batch that claims a codec."""
    data = bytearray(batch(records, count))
    pack_into(">h", data, 21, codec)
    pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def in_order(count: int, **fields: object) -> bytes:
    return b"".join(record(n, **fields) for n in range(count))  # type: ignore[arg-type]


def bodies(records: Iterable[bytes]) -> bytes:
    return b"".join(records)


ONE = record()
TWO = in_order(2)
GARBAGE = bytes(range(7, 207))


def _headers_of_batches() -> dict[str, bytes]:
    return {
        "as it should be": batch(ONE),
        "two records": batch(TWO, 2),
        "nothing but a header": batch(b"", 0, last=0),
        "a count of 0": batch(ONE, 0, last=0),
        "a count of 0 and no offsets": batch(ONE, 0, last=-1),
        "a count of -1": batch(ONE, -1, last=0),
        "a negative offset range": batch(ONE, 1, last=-5),
        "a range of one too many": batch(ONE, 1, last=1),
        "a range of one too few": batch(TWO, 2, last=0),
        "five instead of one": batch(ONE, 5),
        "one instead of two": batch(TWO, 1),
        "two billion instead of one": batch(ONE, 2**31 - 1),
        "a base offset": batch(ONE, base=77),
        "a negative base offset": batch(ONE, base=-3),
        "a leader epoch": batch(ONE, epoch=12),
        "a wrong CRC": batch(ONE, crc=1),
        "magic 0": batch(ONE, magic=0),
        "magic 1": batch(ONE, magic=1),
        "magic 3": batch(ONE, magic=3),
        "magic -1": batch(ONE, magic=-1),
        "a length of 0": batch(ONE, length=0),
        "a length of 13": batch(ONE, length=13),
        "a length of 14": batch(ONE, length=14),
        "a length of 48": batch(ONE, length=48),
        "a length of -1": batch(ONE, length=-1),
        "a length of one too few": batch(ONE, length=HEADER + len(ONE) - 13),
        "a length of one too many": batch(ONE, length=HEADER + len(ONE) - 11),
        "a byte behind it": batch(ONE) + b"\0",
        "half a batch behind it": batch(ONE) + batch(ONE)[:40],
        "twice": batch(ONE) * 2,
        "cut within its header": batch(ONE)[:50],
        "unknown attributes": batch(ONE, attributes=-256),
        "the delete horizon's flag": batch(ONE, attributes=0x40),
        "a control batch": batch(ONE, attributes=0x20),
        "a transaction without a producer": batch(ONE, attributes=0x10),
        "LogAppendTime": batch(ONE, attributes=0x08),
        "codec 5": batch(ONE, codec=5),
        "codec 6": batch(ONE, codec=6),
        "codec 7": batch(ONE, codec=7),
        "a producer without a sequence": batch(ONE, producer=(1, 0, -1)),
        "a producer without an epoch": batch(ONE, producer=(2, -1, 0)),
        "a producer of id -2": batch(ONE, producer=(-2, 0, 0)),
        "a sequence without a producer": batch(ONE, producer=(-1, -1, 5)),
        "a sequence of -2": batch(ONE, producer=(3, 0, -2)),
    }


def _times() -> dict[str, bytes]:
    return {
        "no timestamp": batch(ONE, first_time=-1, max_time=-1),
        "a negative timestamp": batch(ONE, first_time=-5, max_time=-5),
        "a largest timestamp that is too late": batch(ONE, max_time=NOW + 5),
        "a largest timestamp that is too early": batch(TWO, 2, max_time=NOW - 5),
        "a largest timestamp of the far future, and no record of it": batch(ONE, max_time=2**62),
        "a record of the far future": batch(record(time=2**60)),
        "a record of the far past": batch(record(time=-(2**60))),
        "one of three of the far future": batch(record() + record(1, time=2**55) + record(2), 3),
        "two of three of the far future": batch(record(time=2**55) + record(1) + record(2, time=2**55), 3),
        "timestamps that wrap around": batch(record(time=2**62), first_time=2**62 + 2**61, max_time=NOW),
        "a timestamp before the base": batch(record(time=-5)),
    }


def _records() -> dict[str, bytes]:
    return {
        "offsets that stand still": batch(record() + record(), 2),
        "offsets that go back": batch(record(1) + record(0), 2),
        "offsets with gaps": batch(record(7) + record(9), 2),
        "a negative offset": batch(record(-1)),
        "a huge offset": batch(record(2**31 - 1)),
        "a record of -5 bytes": batch(record(size=-5)),
        "a record of 0 bytes": batch(record(size=0)),
        "a record of 1 byte": batch(record(size=1)),
        "a record of one too few": batch(record(size=len(body()) - 1)),
        "a record of one too many": batch(record(size=len(body()) + 1)),
        "a record of two billion bytes": batch(record(size=2**31 - 1)),
        "a record's length of six bytes": batch(b"\xff" * 5 + b"\1" + body()),
        "a record's length in two bytes without need": batch(b"\x90\0" + body()),
        "a time of eleven bytes": batch(varint(18) + b"\0" + b"\x80" * 10 + b"\1" + body()[2:]),
        "a byte behind the last record": batch(ONE + b"\0"),
        "a byte within a record behind its headers": batch(varint(len(body()) + 1) + body() + b"\0"),
        "unknown attributes of a record": batch(record(attributes=0xFF)),
        "a key behind the end": batch(record(key_size=1000)),
        "a key of -2 bytes": batch(record(key=b"", key_size=-2)),
        "a value behind the end": batch(record(value_size=1000)),
        "a value of -2 bytes": batch(record(value=b"", value_size=-2)),
        "a value into the next record": batch(record(value_size=12) + record(1), 2),
        "no key": batch(record(key=None)),
        "a key of no bytes": batch(record(key=b"")),
        "a tombstone": batch(record(value=None)),
        "neither key nor value": batch(record(key=None, value=None)),
        "two of three without a key": batch(record() + record(1, key=None) + record(2, key=None), 3),
        "a header": batch(record(headers=varint(1) + header())),
        "a header without a value": batch(record(headers=varint(1) + header(value=None))),
        "a header of no name": batch(record(headers=varint(1) + header(b""))),
        "a header's name that is no text": batch(record(headers=varint(1) + header(b"\xff\xfe"))),
        "a header without a name": batch(record(headers=varint(1) + header(b"", key_size=-1))),
        "a header's name behind the end": batch(record(headers=varint(1) + header(key_size=100))),
        "a header's value behind the end": batch(record(headers=varint(1) + header(value_size=100))),
        "a header's value of -3 bytes": batch(record(headers=varint(1) + header(value=b"", value_size=-3))),
        "-1 headers": batch(record(headers=varint(-1))),
        "a header too many": batch(record(headers=varint(2) + header())),
        "a header too few": batch(record(headers=varint(1) + header() * 2)),
        "two billion headers": batch(record(headers=varint(2**31 - 1))),
        "many records of one size": batch(in_order(500), 500),
        "many records of one size, and one too many": batch(in_order(501), 500),
        "many records of one size, and one too few": batch(in_order(499), 500),
        "many records of one size, one with a lie": batch(
            in_order(300) + record(300, key=b"", key_size=1) + b"".join(record(n) for n in range(301, 500)), 500
        ),
        "many records, each of another size": batch(bodies(record(n, value=b"v" * (n % 150)) for n in range(500)), 500),
    }


def _compressed() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        name = codec.name.lower()
        found |= {
            f"{name}": batch(TWO, 2, codec=codec),
            f"{name} of many": batch(in_order(500), 500, codec=codec),
            f"{name}, five instead of one": batch(ONE, 5, codec=codec),
            f"{name}, one instead of two": batch(TWO, 1, codec=codec),
            f"{name}, two billion instead of one": batch(ONE, 2**31 - 1, codec=codec),
            f"{name} of nothing": batch(b"", 1, codec=codec),
            f"{name}, a byte behind the last record": batch(ONE + b"\0", codec=codec),
            f"{name}, offsets with gaps": batch(record(7) + record(9), 2, codec=codec),
            f"{name}, a key behind the end": batch(record(key_size=1000), codec=codec),
            f"{name}, a record of one too few": batch(record(size=len(body()) - 1), codec=codec),
            f"{name}, a record of one too many": batch(record(size=len(body()) + 1), codec=codec),
            f"{name}, a record of -5 bytes": batch(record(size=-5), codec=codec),
            f"{name}, a header too many": batch(record(headers=varint(2) + header()), codec=codec),
            f"{name}, two billion headers": batch(record(headers=varint(2**31 - 1)), codec=codec),
            f"{name}, no key": batch(record(key=None), codec=codec),
            f"{name}, a largest timestamp that is too late": batch(ONE, codec=codec, max_time=NOW + 5),
            f"{name}, a record of the far future": batch(record(time=2**60), codec=codec),
            f"garbage for {name}": raw_codec(GARBAGE, codec),
            f"nothing for {name}": raw_codec(b"", codec),
            f"records as they are for {name}": raw_codec(ONE, codec),
            f"{name} that is cut off": raw_codec(bytes(compress(codec, in_order(500)))[:-5], codec, 500),
            f"{name} with a byte behind it": raw_codec(bytes(compress(codec, ONE)) + b"\0", codec),
        }
    return found


LIES: dict[str, bytes] = {**_headers_of_batches(), **_times(), **_records(), **_compressed()}


def reported(answer: m.PartitionProduceResponse) -> list[object]:
    """A broker's answer to a batch, without the values that differ from run to run: offsets and times."""
    errors = [[error.batch_index, _without_times(error.batch_index_error_message)] for error in answer.record_errors]
    return [
        answer.error_code,
        _without_times(answer.error_message),
        "written" if answer.base_offset >= 0 else "not written",
        answer.log_append_time_ms if answer.log_append_time_ms < 0 else "now",
        answer.log_start_offset,
        len(errors),
        errors[:3],
    ]


def _without_times(text: str | None) -> str | None:
    if text is None:
        return None
    text = re.sub(r"within \[-?\d+, -?\d+\]", "within [...]", text)
    return re.sub(r" DefaultRecord\([^)]*\)", "", text)  # Java's own form of a record


def produce(client: RawClient, topic: str, batch: bytes) -> list[object]:
    data = m.TopicProduceData(topic, ZERO_UUID, [m.PartitionProduceData(0, batch)])
    answer = client.ask(m.ProduceRequest(None, -1, 30_000, [data]), 9)
    return reported(answer.responses[0].partition_responses[0])


def ask_all(client: RawClient, prefix: str = "") -> dict[str, dict[str, list[object]]]:
    """A broker's answers to all the lies, with topics that do not exist yet. `prefix` is cut from the answers."""
    # Otherwise the log may begin later from one answer to the next, because the records are old.
    kept = {"retention.ms": "-1"}
    topics = [
        m.CreatableTopic(
            prefix + name, 1, 1, [], [m.CreatableTopicConfig(key, value) for key, value in (settings | kept).items()]
        )
        for name, settings in TOPICS.items()
    ]
    created = client.ask(m.CreateTopicsRequest(topics, 300_000), 7)
    assert not any(topic.error_code for topic in created.topics), created
    found: dict[str, dict[str, list[object]]] = {}
    for topic in TOPICS:
        while produce(client, prefix + topic, batch(record(), first_time=-1, max_time=-1))[0]:
            pass  # a new topic's leader is being announced
        found[topic] = {name: produce(client, prefix + topic, lie) for name, lie in LIES.items()}
    answers: dict[str, dict[str, list[object]]] = json.loads(
        json.dumps(found).replace(prefix, "") if prefix else json.dumps(found)
    )
    return answers
