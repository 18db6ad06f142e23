"""Requests drawn from our own tables by a seeded random generator, and damage to their bytes on the way.

Names and numbers are few, so that requests have groups, topics, members and generations in common.
"""

from __future__ import annotations

import random
import sys
from struct import pack
from types import ModuleType
from typing import Any

from muster.protocol import codec
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey, request_header_version
from muster.protocol.definitions import schema
from muster.protocol.definitions.schema import Field, StructDefinition
from muster.protocol.messages import RequestHeader
from tests.support.written import build_batch

NAMES = ("", "g", "t", "u", "m-1", "consumer", "range", "cleanup.policy", "compact", "x" * 300, "a b\nc")
NUMBERS = (-1, 0, 0, 0, 1, 1, 2, 3, 10, 127, -2, 1_000)
EXTREMES = (-(2**31), 2**31 - 1, -(2**63), 2**63 - 1, 2**15 - 1)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class RandomRequests:
    """Frames of requests, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._module: ModuleType
        """The version of the request: names of structures are unique in it."""

    def frame(self, correlation_id: int) -> tuple[ApiKey, bytes]:
        """The whole frame of a request, which may be damaged."""
        rng = self.random
        key = rng.choice(sorted(ADVERTISED))
        cls = REQUESTS[key]
        version = rng.randint(max(ADVERTISED[key][0], cls.MIN_VERSION), ADVERTISED[key][1])
        header = RequestHeader(int(key), version, correlation_id, rng.choice(["fuzz", "", None]))
        start = codec.encode(header, request_header_version(cls, version))
        self._module = sys.modules[cls.__module__]
        request = self._struct(schema.message(cls.__name__), version)
        body = codec.encode(request, version)
        if rng.random() < 0.6:
            body = self._damaged(body)
        return key, pack(">i", len(start) + len(body)) + start + body

    def _damaged(self, body: bytes) -> bytes:
        rng = self.random
        data = bytearray(body)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0 if at < len(data):
                    data[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
                case 1:
                    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 20))))
                case 2:
                    del data[at : at + rng.choice((1, 2, 4, 50))]
                case 3:
                    data[at : at + 4] = pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), 65_536)))
                case _:
                    data[at:at] = data[at : at + 50] * rng.choice((1, 3, 100))
        return bytes(data)

    def _struct(self, struct: StructDefinition, version: int) -> Any:
        cls = getattr(self._module, struct.name)
        return cls(**{one.name: self._field(one, version) for one in struct.fields if version in one.versions})

    def _field(self, member: Field, version: int) -> Any:
        rng = self.random
        tagged = version in member.tagged and member.struct is not None and not member.is_array
        if (version in member.nullable or tagged) and rng.random() < 0.3:
            return None
        if member.is_array:
            return [self._element(member, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        return self._element(member, version)

    def _element(self, member: Field, version: int) -> Any:
        rng = self.random
        kind = member.element
        if member.struct is not None:
            return self._struct(member.struct, version)
        if kind == "string":
            return rng.choice(NAMES)
        if kind == "records":
            return bytes(build_batch([(1_700_000_000_000, b"k", b"v", [])]))
        if kind == "bytes":
            return rng.randbytes(rng.choice((0, 1, 20)))
        if kind == "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "uint16":
            return rng.randrange(1 << 16)
        number = rng.choice(EXTREMES) if rng.random() < 0.05 else rng.choice(NUMBERS)
        half = 1 << (_BITS[kind] - 1)
        return max(-half, min(half - 1, number))
