"""What passes the check column by column, the codec decodes in the same way; and the usual values pass."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.history.entries import sound_generations
from muster.protocol import codec
from muster.protocol.messages import GroupMetadataValue, MemberMetadata
from tests.support.scale import examples


def value(chance: random.Random, letters: str) -> bytes:
    def text() -> str:
        return "".join(chance.choices(letters, k=chance.choice([0, 3, 40])))

    members = [
        MemberMetadata(
            text(), chance.choice([None, text()]), text(), text(), 300_000, 45_000, chance.randbytes(9), b"\xff" * 5
        )
        for _ in range(chance.choice([0, 1, 2, 5]))
    ]
    leader = chance.choice([None, text()])
    return b"\0\3" + codec.encode(GroupMetadataValue("consumer", 7, text(), leader, 1_700_000_000_000, members), 3)


def spoiled(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([0, 1, 2])):
        found[chance.randrange(len(found))] = chance.choice([0, 1, 3, 127, 128, 255])
    cut = chance.choice([len(found), len(found), chance.randrange(len(found) + 1)])
    return bytes(found[:cut]) + chance.choice([b"", b"\0"])


def sound(values: list[bytes]) -> list[bool]:
    data = np.frombuffer(b"".join(values), np.uint8)
    end = np.cumsum([len(each) for each in values])

    def read(kind: str, at: np.ndarray) -> Any:
        every: Any = np.ndarray(max(len(data) - np.dtype(kind).itemsize + 1, 0), kind, data, 0, (1,))
        return every[at].astype(np.int64)

    found = sound_generations.sound(read, data, end - [len(each) for each in values], end)
    return [bool(each) for each in found]


def decodes(data: bytes) -> bool:
    try:
        codec.decode(GroupMetadataValue, int.from_bytes(data[:2], "big", signed=True), data, 2)
    except (ProtocolError, UnsupportedVersionError):
        return False
    return True


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_found_sound_that_the_codec_refuses(seed):
    chance = random.Random(seed)
    values = [spoiled(chance, value(chance, "aü€")) for _ in range(60)]
    assert all(decodes(data) for data, found in zip(values, sound(values), strict=True) if found)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_the_usual_values_are_found_sound(seed):
    chance = random.Random(seed)
    values = [value(chance, "ab-") for _ in range(50)]
    found = sound(values)
    assert found.count(True) >= len(values) - 15  # the last ones with a further member are left to the codec


def test_a_member_without_the_bytes_that_it_must_have_is_not_sound():
    member = MemberMetadata("m", None, "c", "/h", 1, 2, b"", b"")
    usual = b"\0\3" + codec.encode(GroupMetadataValue("consumer", 7, "range", "m", 1, [member]), 3)
    values = [usual[:-4] + b"\xff\xff\xff\xff", *[usual] * 40]
    assert not decodes(values[0])
    assert sound(values) == [False] + [True] * 40


def test_letters_beyond_ascii_are_left_to_the_codec():
    chance = random.Random(1)
    values = [value(chance, "a") for _ in range(40)]
    other = b"\0\3" + codec.encode(GroupMetadataValue("consumer", 7, "ü", None, 1, []), 3)
    assert sound([*values, other])[-1] is False
    assert sound([other.replace("ü".encode(), b"ue"), *values])[0] is True


def test_one_table_of_values_is_walked_in_several_parts():
    values = [value(random.Random(seed), "a") for seed in range(sound_generations._AT_ONCE + 40)]
    found = sound(values)
    assert pa.array(found).true_count > len(values) - 40
