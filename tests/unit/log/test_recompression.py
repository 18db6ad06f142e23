"""Batches that are stored in the codec of their topic."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.log import LogConfig, LogError
from muster.log.batches.recompression import recompressed
from muster.log.batches.validation import CHEAP_COMPRESSED_BYTES, CostlyError, examine
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import check_batch, read_header, read_tuples
from tests.support.written import build_batch

WHERE = TopicPartition("t", 0)
RECORDS: Any = [(1000, b"k", b"v" * 300, [("h", b"x")]), (900, None, b"w" * 300, [])]
NOW = 2000


def batch(compression: Compression) -> bytes:
    return bytes(build_batch(RECORDS, compression=compression, producer_id=7, producer_epoch=1, base_sequence=3))


@pytest.mark.parametrize("wanted", Compression)
@pytest.mark.parametrize("sent", Compression)
def test_the_records_stay_and_so_does_all_but_the_codec(sent: Compression, wanted: Compression) -> None:
    config, data = LogConfig(compression=wanted), batch(sent)
    made, examined = recompressed(data, examine(data, config, NOW, "client", WHERE), config)
    (header,) = examined.headers
    check_batch(made, 0, header)
    before = read_header(data, 0)
    assert header.compression is wanted
    assert header.size == len(made)
    assert header._replace(batch_length=0, crc=0, attributes=0) == before._replace(batch_length=0, crc=0, attributes=0)
    assert read_tuples(made) == read_tuples(data)
    assert examined.latest == [1000]
    # What passed once passes again.
    assert examine(made, config, NOW, "client", WHERE) == examined


@pytest.mark.parametrize("config", [LogConfig(), LogConfig(compression=Compression.GZIP)])
def test_a_batch_that_is_as_it_should_be_is_not_touched(config: LogConfig) -> None:
    data = batch(Compression.GZIP)
    examined = examine(data, config, NOW, "client", WHERE)
    assert recompressed(data, examined, config) == (data, examined)
    assert recompressed(data, examined, config)[0] is data


def test_the_limit_holds_for_what_is_stored() -> None:
    data = batch(Compression.ZSTD)
    config = LogConfig(compression=Compression.NONE, max_message_bytes=len(data))
    with pytest.raises(LogError, match="with codec none exceeds the maximum") as refused:
        recompressed(data, examine(data, config, NOW, "client", WHERE), config)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


REBUILT: dict[str, tuple[bool, Any, list[int]]] = {
    "of no producer": (True, {}, [1000]),
    "of no producer, with an epoch and a sequence": (True, {"producer_epoch": 3, "base_sequence": 4}, [1000]),
    "of a producer": (True, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}, [1000]),
    "of a producer without an epoch": (False, {"producer_id": 7, "base_sequence": 0}, [1000]),
    "of a producer below an epoch": (True, {"producer_id": 7, "producer_epoch": -2, "base_sequence": 0}, [1000]),
    "of a negative producer": (True, {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, [1000]),
    "of a negative producer without an epoch": (False, {"producer_id": -2, "base_sequence": 0}, [1000]),
    "of a negative producer without a sequence": (False, {"producer_id": -2, "producer_epoch": 0}, [1000]),
    "without timestamps": (True, {}, [-1, -1]),
    "of a time before the epoch": (False, {}, [-2]),
    "with a record of a time before the epoch": (False, {}, [1000, -2, 1001]),
}
"""By kind of batch: whether Kafka rebuilds it with another codec, the producer, and the records' timestamps."""


@pytest.mark.parametrize(("built", "producer", "times"), REBUILT.values(), ids=REBUILT)
@pytest.mark.parametrize(
    ("sent", "wanted"), [(Compression.NONE, Compression.GZIP), (Compression.ZSTD, Compression.NONE)]
)
def test_what_cannot_be_built_again(
    sent: Compression, wanted: Compression, built: bool, producer: Any, times: list[int]
) -> None:
    data = bytes(build_batch([(time, b"k", b"v", []) for time in times], compression=sent, **producer))
    examined = examine(data, LogConfig(compression=wanted), NOW, "client", WHERE)
    for codec in (sent, None):
        assert recompressed(data, examined, LogConfig(compression=codec))[0] is data
    if built:
        assert recompressed(data, examined, LogConfig(compression=wanted))[1].headers[0].compression is wanted
    else:
        with pytest.raises(LogError) as refused:
            recompressed(data, examined, LogConfig(compression=wanted))
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_large_batch_is_left_for_the_thread() -> None:
    config = LogConfig(compression=Compression.ZSTD)
    data = bytes(build_batch([(1000, None, bytes(CHEAP_COMPRESSED_BYTES), [])]))
    examined = examine(data, config, NOW, "client", WHERE)
    with pytest.raises(CostlyError):
        recompressed(data, examined, config, at_once=True)
    assert len(recompressed(data, examined, config)[0]) < 200


def test_the_level_is_that_of_the_settings() -> None:
    data = bytes(build_batch([(1000, None, bytes(range(256)) * 40 + b"abcabd" * 500, [])]))
    sizes = []
    for level in (1, 9):
        config = LogConfig(compression=Compression.GZIP, compression_level=level)
        sizes.append(len(recompressed(data, examine(data, config, NOW, "client", WHERE), config)[0]))
    assert sizes[0] > sizes[1]
