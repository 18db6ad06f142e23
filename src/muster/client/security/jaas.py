"""Reads `sasl.jaas.config`, the line in which Kafka's clients keep a user name and a password.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="a \\"quoted\\" one";

Only one login module is allowed, as in Kafka's clients. Errors say what is wrong and where, and never show a value: the
values are secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muster.client.security.secret import Secret
from muster.errors import ConfigError

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module: the last part of its class's name, and its options."""

    name: str
    options: dict[str, Secret]

    def get(self, option: str) -> str | None:
        """An option's value, None if it is missing."""
        found = self.options.get(option)
        return None if found is None else found.reveal()


def read(line: Secret) -> LoginModule:
    """The login module of a line.

    Raises:
        ConfigError: the line is not valid.
    """
    words = _words(line.reveal())
    if len(words) < 3 or words[-1] != (";", False):
        raise _wrong("it must be a module, its flag, options, and a semicolon at the end")
    (module, _), (flag, _), *options, _ = words
    if flag.lower() not in _FLAGS:
        raise _wrong(f"the module's name must be followed by one of {', '.join(_FLAGS)}")
    if (";", False) in options:
        raise _wrong("it has more than one module; only one is allowed")
    return LoginModule(module.rpartition(".")[2], _options(options))


def _options(words: list[tuple[str, bool]]) -> dict[str, Secret]:
    found: dict[str, Secret] = {}
    for index in range(0, len(words), 3):
        triple = words[index : index + 3]
        name = triple[0][0]
        if len(triple) < 3 or triple[1] != ("=", False) or triple[2] == ("=", False):
            raise _wrong(f'option {1 + index // 3} is not of the form name="value"')
        if name in found:
            raise _wrong(f"option {1 + index // 3} has the same name as another one")
        found[name] = Secret(triple[2][0])
    return found


def _words(text: str) -> list[tuple[str, bool]]:
    """Words, punctuation and quoted text, each with whether it was quoted."""
    found: list[tuple[str, bool]] = []
    position = 0
    while position < len(text):
        sign = text[position]
        if sign.isspace():
            position += 1
        elif sign in "=;":
            found.append((sign, False))
            position += 1
        elif sign in "\"'":
            word, position = _quoted(text, position)
            found.append((word, True))
        else:
            end = position
            while end < len(text) and not text[end].isspace() and text[end] not in "=;\"'":
                end += 1
            found.append((text[position:end], False))
            position = end
    return found


_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _quoted(text: str, start: int) -> tuple[str, int]:
    found: list[str] = []
    position = start + 1
    while position < len(text):
        sign = text[position]
        if sign == text[start]:
            return "".join(found), position + 1
        if sign == "\\" and position + 1 < len(text):
            position += 1
            sign = _ESCAPES.get(text[position], text[position])
        found.append(sign)
        position += 1
    raise _wrong("a quotation mark is not closed")


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"sasl_jaas_config cannot be read: {why}")
