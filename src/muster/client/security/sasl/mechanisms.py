"""The SASL mechanisms: PLAIN (RFC 4616), SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628), without I/O.

A mechanism makes the client's first message, then answers each challenge of the server until it is done. SCRAM proves
to each side that the other knows the password, without sending it: what travels is a proof over random numbers of
both sides. The client is done only when it has verified the server's proof, so that a server that merely accepts
everything is detected. PLAIN and OAUTHBEARER send the secret itself, and need TLS.

Random numbers come in, as into every core. As in Kafka, names and passwords are UTF-8 without SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Final, Protocol

SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_MIN_ITERATIONS = 4096
"""Kafka's clients and brokers refuse fewer iterations: guessing the password from a stolen proof would be too cheap."""
_MAX_ITERATIONS = 1_000_000
"""Kafka's brokers allow up to 16,384. A server that asks for billions would block the client's event loop."""


class SaslError(Exception):
    """The exchange cannot succeed. The message is part of a readable sentence and contains no secret."""


class Mechanism(Protocol):
    """One mechanism's side of one authentication."""

    def first(self) -> bytes:
        """The client's first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The response to the server's challenge; None if none is left to send.

        Raises:
            SaslError: the server violated the protocol, or does not know the password.
        """

    @property
    def done(self) -> bool:
        """Whether the exchange is complete, with the server's proof if the mechanism has one."""


class Plain:
    """PLAIN: the user name and the password in clear text."""

    done = True

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise SaslError("the broker answered PLAIN with a challenge, which PLAIN does not have")
        return None


class OAuthBearer:
    """OAUTHBEARER: a token, with Kafka's SASL extensions (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        pairs = "".join(f"{name}={value}\x01" for name, value in extensions.items())
        self._message = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
        self._refusal: str | None = None

    @property
    def done(self) -> bool:
        return self._refusal is None

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        if self._refusal is not None:
            raise SaslError(f"the token was refused: {self._refusal}")
        # The server sends its reason as JSON, and ends the exchange when it receives this byte (RFC 7628, 3.2.3).
        self._refusal = _status(challenge)
        return b"\x01"

    @property
    def refusal(self) -> str | None:
        """Why the server refused the token, in the server's words."""
        return self._refusal


def _status(challenge: bytes) -> str:
    try:
        found = json.loads(challenge)
    except (ValueError, RecursionError):
        return "the broker gave no reason"
    status = found.get("status") if isinstance(found, dict) else None
    return status[:200] if isinstance(status, str) else "the broker gave no reason"


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512. `nonce` is new random text without a comma for each authentication."""

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str, extensions: Mapping[str, str] | None = None
    ) -> None:
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        more = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
        self._client_first = f"n={name},r={nonce}{more}"
        self._signature: bytes | None = None
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    def first(self) -> bytes:
        return f"n,,{self._client_first}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        fields = _fields(challenge)
        if "e" in fields:
            raise SaslError(f"the broker refused it: {fields['e'][:200]}")
        if self._signature is None:
            return self._prove(challenge.decode(), fields)
        if not hmac.compare_digest(_decoded("v", fields), self._signature):
            raise SaslError("the broker does not know the password: its proof is wrong")
        self._done = True
        return None

    def _prove(self, server_first: str, fields: Mapping[str, str]) -> bytes:
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the broker's nonce does not begin with this client's: it answers another exchange")
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password.encode(), _decoded("s", fields), _iterations(fields.get("i", ""))
        )
        without_proof = f"c=biws,r={nonce}"  # base64 of "n,,": no channel binding
        message = f"{self._client_first},{server_first},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        client_signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslError("the broker's challenge is not text") from None
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name in found:
            raise SaslError("the broker's challenge violates RFC 5802")
        found[name] = value
    if "m" in found:
        raise SaslError("the broker requires an unknown SCRAM extension")
    return found


def _decoded(name: str, fields: Mapping[str, str]) -> bytes:
    try:
        found = base64.b64decode(fields[name], validate=True)
    except (KeyError, binascii.Error, ValueError):
        raise SaslError("the broker's challenge violates RFC 5802") from None
    if not found:
        raise SaslError("the broker's challenge violates RFC 5802")
    return found


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise SaslError("the broker's challenge violates RFC 5802")
    count = int(text)
    if not _MIN_ITERATIONS <= count <= _MAX_ITERATIONS:
        raise SaslError(f"the broker asks for {count} iterations; {_MIN_ITERATIONS} to {_MAX_ITERATIONS} are allowed")
    return count
