"""A log of `__consumer_offsets` that no broker would write: recorded histories with damage, the same for the same
seed."""

from __future__ import annotations

import random
import struct

from tests.support.history_topic import Written, names, recorded

NUMBERS = (-(2**63), -(2**31), -5, -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 10**17, 253_402_300_799_999)
_WIDTHS = {"h": 2, "i": 4, "q": 8}


def damaged_bytes(chance: random.Random, data: bytes | None) -> bytes | None:
    """Bytes that were cut, flipped, inserted or removed, or whose numbers were changed."""
    if data is None:
        return chance.choice([None, b""])
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0 if found:
                found[at % len(found)] ^= 1 << chance.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = chance.randbytes(chance.choice([1, 3]))
            case 3:
                del found[at : at + chance.randrange(1, 20)]
            case _:
                kind = chance.choice("hiq")
                bits = 8 * _WIDTHS[kind]
                number = max(-(1 << bits - 1), min((1 << bits - 1) - 1, chance.choice(NUMBERS)))
                packed = struct.pack(f">{kind}", number)
                at = 0 if kind == "h" and chance.random() < 0.3 else at
                found[at : at + len(packed)] = packed
    return bytes(found)


def damaged(seed: int) -> dict[int, list[Written]]:
    """By log partition: some recorded histories, in which some records are damaged, swapped or duplicated."""
    chance = random.Random(seed)
    records = recorded(chance.sample(names(), chance.choice([1, 1, 2])), chance.choice([1, 2]))[:600]
    for _ in range(chance.choice([1, 3, 10, len(records) // 3])):
        at, other = chance.randrange(len(records)), chance.randrange(len(records))
        it = records[at]
        match chance.randrange(10):
            case 0 | 1 | 2:
                records[at] = it._replace(value=damaged_bytes(chance, it.value))
            case 3:
                records[at] = it._replace(key=damaged_bytes(chance, it.key) or b"")
            case 4:
                records[at] = it._replace(value=records[other].value)
            case 5:
                records[at] = it._replace(value=None)
            case 6 | 7:
                near = [max(it.timestamp_ms - 10**6, NUMBERS[0]), min(it.timestamp_ms + 10**9, 2**63 - 1)]
                records[at] = it._replace(timestamp_ms=chance.choice([*NUMBERS, *near]))
            case 8:
                records[at], records[other] = records[other], it
            case _:
                records.insert(at, records[other]._replace(leader_epoch=chance.choice([-1, 0, 5, 2**31 - 1])))
    parts: dict[int, list[Written]] = {}
    for record in records:
        parts.setdefault(record.partition, []).append(record)
    return parts
