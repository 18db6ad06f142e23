"""Reads settings files in the format of Kafka's own tools (`--command-config client.properties`).

The format is that of Java's `Properties.load`: ISO-8859-1, `key=value`, `key: value` or `key value`, `#` and `!` begin
comments, a backslash at the end of a line continues it, and `\\t \\n \\r \\f \\uXXXX` are escapes.

A file that works with Kafka's tools works here: settings of Kafka's clients that have no effect here are ignored.
Those that would change how a client authenticates are refused, since ignoring them would change the meaning of the
others.
"""

from __future__ import annotations

import codecs
import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from muster.client import other_names
from muster.errors import ConfigError

log = logging.getLogger("muster.client.settings")

_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

WITHOUT_EFFECT: Final = frozenset(
    {
        "bootstrap.controllers",
        "client.dns.lookup",
        "compression.lz4.level",
        "enable.metrics.push",
        "group.protocol",
        "group.remote.assignor",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.class",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.class",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "transaction.two.phase.commit.enable",
        "value.deserializer",
        "value.serializer",
    }
)
"""Settings of Kafka 4.2's clients that change nothing here."""

_ASSERTIONS: Final = "sasl.oauthbearer.assertion."

_DEFAULT_HANDLERS: Final = ("OAuthBearerLoginCallbackHandler", "OAuthBearerSaslClientCallbackHandler")
"""Kafka's own handlers that fetch tokens in the same way."""

UNSUPPORTED: Final = frozenset(
    {
        "config.providers",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "security.providers",
        "ssl.engine.factory.class",
    }
)
"""Settings that name Java classes; ignoring them would change the meaning of the others."""


def read(path: str) -> dict[str, str]:
    """The settings of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        text = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).decode("iso-8859-1")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    found: dict[str, str] = {}
    for number, line in _lines(text):
        if _was_utf_8(line):
            log.warning(
                "%s, line %d: it looks like UTF-8, but is read as ISO-8859-1, as Java does: write letters outside "
                "ASCII as \\uXXXX",
                path,
                number,
            )
        key, value = _pair(path, number, line)
        found[key] = value
    return found


def check(path: str, found: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse or log settings of a file that have no effect here.

    `known` are the settings of all clients with underscores. A name that no client knows is logged, with the
    most similar known name.

    Raises:
        ConfigError: a setting would change how the client authenticates in a way that is not supported here; or the
        file has no client settings: without them the client would reach another cluster.
    """
    names = set(known)
    if found and not any(_is_kafkas(key, names) for key in found):
        raise ConfigError(f"{path} has no setting of a Kafka client; is it the right file?")
    odd = 0
    for key, value in found.items():
        if _name(key) in names:
            continue
        if key in UNSUPPORTED or key.startswith(_ASSERTIONS):
            _refuse(path, key, value)
        elif not is_like_a_setting(key):
            odd += 1
        elif key not in WITHOUT_EFFECT:
            log.warning("%s: %s is not a setting of a Kafka client%s", path, key, _nearest(_name(key), names))
    if odd:
        lines = "a line in it begins" if odd == 1 else f"{odd} lines in it begin"
        log.warning("%s: %s without a setting's name; does the line before lack its backslash?", path, lines)


def is_like_a_setting(text: str) -> bool:
    """Whether text may be a setting's name. Anything else may be part of a secret, such as a key over several lines,
    and is not shown."""
    return re.fullmatch(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*", text) is not None


def choose(found: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The settings of a file that one client knows, by Kafka's names; `known` has them with underscores."""
    names = set(known)
    return {key: value for key, value in found.items() if _name(key) in names}


def _is_kafkas(key: str, names: set[str]) -> bool:
    return _name(key) in names or key in WITHOUT_EFFECT | UNSUPPORTED or key.startswith(_ASSERTIONS)


def _name(key: str) -> str:
    return key.replace(".", "_")


def _refuse(path: str, key: str, value: str) -> None:
    if value and not value.endswith(_DEFAULT_HANDLERS):
        raise ConfigError(f"{path}: {key} is not supported here: it needs Kafka's Java clients")


def _nearest(name: str, names: Iterable[str]) -> str:
    other = other_names.answer(name, names)
    if other is not None:
        return f": {other}"
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f"; did you mean {near[0].replace('_', '.')}?" if near else ""


def _was_utf_8(line: str) -> bool:
    """Whether a line looks like UTF-8 read as Latin-1: two Latin letters for each real one."""
    try:
        return not line.isascii() and bool(line.encode("iso-8859-1").decode())
    except UnicodeDecodeError:
        return False


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The logical lines with their numbers, without comments and empty ones."""
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    while number < len(natural):
        first, line = number + 1, natural[number].lstrip(_SPACE)
        number += 1
        if not line or line[0] in "#!":
            continue
        while _is_continued(line) and number < len(natural):
            line = line[:-1] + natural[number].lstrip(_SPACE)
            number += 1
        yield first, line[:-1] if _is_continued(line) else line


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _pair(path: str, number: int, line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _SPACE:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    try:
        return _unescaped(line[:end]), _unescaped(rest)
    except ValueError:
        raise ConfigError(f"{path}, line {number}: \\u must be followed by four hexadecimal digits") from None


def _unescaped(text: str) -> str:
    found: list[str] = []
    position = 0
    while position < len(text):
        sign = text[position]
        position += 1
        if sign == "\\" and position < len(text):
            sign = text[position]
            position += 1
            if sign == "u":
                sign = chr(_hexadecimal(text[position : position + 4]))
                position += 4
            else:
                sign = _ESCAPES.get(sign, sign)
        found.append(sign)
    # Java's text is UTF-16: two escapes may stand for one character.
    return "".join(found).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _hexadecimal(digits: str) -> int:
    if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise ValueError(digits)
    return int(digits, 16)
