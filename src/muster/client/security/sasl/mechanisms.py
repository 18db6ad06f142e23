"""What the SASL mechanisms say: PLAIN (RFC 4616), SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628), without I/O.

A mechanism makes the client's first message, then answers each challenge of the server until it is done. SCRAM proves
to both sides that the other knows the password, and sends it to neither: what travels is a proof over random numbers of
both sides. The client is done only when the server's own proof was right, so that a server that merely accepts
everything is found out. PLAIN and OAUTHBEARER send what is secret as it is, and belong on TLS.

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

_LEAST_ITERATIONS = 4096
"""Kafka's clients and brokers refuse fewer: a stolen proof would be too cheap to guess from."""
_MOST_ITERATIONS = 1_000_000
"""Kafka's brokers allow 16,384. A server that asks for billions would hold the client's event loop."""


class SaslError(Exception):
    """The exchange cannot succeed. The message is part of a sentence for people and has no secret in it."""


class Mechanism(Protocol):
    """One mechanism's side of one authentication."""

    def first(self) -> bytes:
        """The message that the client begins with."""

    def answer(self, challenge: bytes) -> bytes | None:
        """What to answer to the server; None: nothing is left to say.

        Raises:
            SaslError: the server said what it must not say, or proved not to know the password.
        """

    @property
    def done(self) -> bool:
        """Whether the server has proved what the mechanism wants it to."""


class Plain:
    """PLAIN: the name and the password, as they are."""

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
        # The server says in JSON why it refuses, and ends the exchange once this byte has come (RFC 7628, 3.2.3).
        self._refusal = _status(challenge)
        return b"\x01"

    @property
    def refusal(self) -> str | None:
        """Why the server refused the token, in its words."""
        return self._refusal


def _status(challenge: bytes) -> str:
    try:
        found = json.loads(challenge)
    except (ValueError, RecursionError):
        return "the broker gave no reason"
    status = found.get("status") if isinstance(found, dict) else None
    return status[:200] if isinstance(status, str) else "the broker gave no reason"


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512. `nonce` is fresh random text without a comma for each authentication."""

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
            raise SaslError(
                "the broker answered another client's exchange: its nonce does not begin with this client's"
            )
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
            raise SaslError("the broker's challenge is not as RFC 5802 says")
        found[name] = value
    if "m" in found:
        raise SaslError("the broker wants an extension of SCRAM that is not known")
    return found


def _decoded(name: str, fields: Mapping[str, str]) -> bytes:
    try:
        found = base64.b64decode(fields[name], validate=True)
    except (KeyError, binascii.Error, ValueError):
        raise SaslError("the broker's challenge is not as RFC 5802 says") from None
    if not found:
        raise SaslError("the broker's challenge is not as RFC 5802 says")
    return found


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise SaslError("the broker's challenge is not as RFC 5802 says")
    count = int(text)
    if not _LEAST_ITERATIONS <= count <= _MOST_ITERATIONS:
        raise SaslError(
            f"the broker asks for {count} iterations; {_LEAST_ITERATIONS} to {_MOST_ITERATIONS} are allowed"
        )
    return count
