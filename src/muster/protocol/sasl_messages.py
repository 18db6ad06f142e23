# Made by `python -m muster.protocol.definitions.codegen` from sasl_definitions.py; do not edit.
"""The messages of Kafka's protocol: one class for all versions of each, fields as Kafka names them.

A field that a version does not carry has its default after decoding, and is left out when encoding.
"""

from __future__ import annotations

from typing import ClassVar

from muster.protocol.primitives import EMPTY, Request, Response


class SaslHandshakeResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 17
    __slots__ = ("error_code", "mechanisms",)

    def __init__(
        self,
        error_code: int = 0,
        mechanisms: list[str] = EMPTY,
    ) -> None:
        self.error_code = error_code
        self.mechanisms = [] if mechanisms is EMPTY else mechanisms


class SaslAuthenticateResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 36
    __slots__ = ("error_code", "error_message", "auth_bytes", "session_lifetime_ms",)

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = "",
        auth_bytes: bytes = b"",
        session_lifetime_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.auth_bytes = auth_bytes
        self.session_lifetime_ms = session_lifetime_ms


class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 17
    RESPONSE: ClassVar = SaslHandshakeResponse
    __slots__ = ("mechanism",)

    def __init__(
        self,
        mechanism: str = "",
    ) -> None:
        self.mechanism = mechanism


class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 36
    RESPONSE: ClassVar = SaslAuthenticateResponse
    __slots__ = ("auth_bytes",)

    def __init__(
        self,
        auth_bytes: bytes = b"",
    ) -> None:
        self.auth_bytes = auth_bytes
