"""Parses options as Spark passes them: names in lower case, values as text. Errors use the names as documented."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import NamedTuple, TypeVar

from muster.client.config import ClientConfig
from muster.errors import ConfigError

E = TypeVar("E", bound=Enum)


class KnownOptions(NamedTuple):
    """The options of a reader or a writer, apart from client settings, which begin with `kafka.`."""

    owner: str
    """Whose options they are, for messages."""
    names: tuple[str, ...]
    """Spelled as documented; the last one is omitted when all are listed."""
    refused: Mapping[str, str]
    """Options that are refused, in lower case, with the reason."""


def with_option_names(message: str, config: type[ClientConfig], more: set[str], named_here: Mapping[str, str]) -> str:
    """A client's message about its settings, with their names as options: with `kafka.` and dots, or as in
    `named_here`. `more` has names of settings in addition to those of `config`."""
    among = {name for name in more if "_" in name} | {field.name for field in fields(config) if "_" in field.name}
    for name in sorted(sorted(among), key=len, reverse=True):
        here = named_here.get(name, f"kafka.{name.replace('_', '.')}")
        message = re.sub(rf"(?<![\w.]){name}(?!\w)", here, message)
    plain = "|".join(field.name for field in fields(config) if "_" not in field.name)
    if plain:
        message = re.sub(rf"(^|did you mean )({plain})( is |\?)", r"\1kafka.\2\3", message)
    message = re.sub(r"^(?!kafka\.)(\S+ is not a setting of this client)", r"kafka.\1", message)
    client = config.__name__.removesuffix("Config").lower()
    return message.replace("is not a setting of this client", f"is not a setting of the {client}")


class OptionValues:
    """The values of the options of one reader or writer."""

    def __init__(self, options: Mapping[str, str], known: KnownOptions) -> None:
        self.all = {name.lower(): str(value) for name, value in options.items()}
        self.known = {name.lower(): name for name in known.names}
        self._known = known

    def check_names(self) -> None:
        """Refuse unknown options, and suggest the nearest known one."""
        for name in self.all:
            if name in self._known.refused:
                raise ConfigError(f"{name} cannot be set: {self._known.refused[name]}")
            if name in self.known or name.startswith("kafka."):
                continue
            near = difflib.get_close_matches(name, self.known, 1, 0.5)
            hint = (
                f"; did you mean {self.known[near[0]]}?"
                if near
                else f"; the options are {', '.join(self._known.names[:-1])}"
            )
            raise ConfigError(f"{name} is not an option of the muster {self._known.owner}{hint}")

    def get(self, name: str) -> str | None:
        """The text of an option; None if it is not set."""
        return self.all.get(name.lower())

    def one_of(self, *names: str) -> str | None:
        """The value of an option that has several names."""
        found = {name: value for name in names if (value := self.get(name)) is not None}
        if len(set(found.values())) > 1:
            raise ConfigError(f"{' and '.join(found)} are the same option and have different values")
        return next(iter(found.values()), None)

    def choice(self, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of some words, in upper or lower case."""
        value = self.get(name)
        if value is None:
            return allowed[0] if default is None else default
        for word in allowed:
            if value.strip().lower() == word.lower():
                return word
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")

    def member(self, name: str, kind: type[E], default: E) -> E:
        """One of an enum's values."""
        return kind(self.choice(name, tuple(item.value for item in kind), default.value))

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def number(self, name: str, default: int | None, least: int) -> int | None:
        """A whole number."""
        return self._parsed(name, default, lambda text: _at_least(int(text), least), f"a number of at least {least}")

    def duration(self, name: str, default_ms: int) -> int:
        """Milliseconds, or a number followed by ms, s, m, h or d."""
        found = self._parsed(name, default_ms, _milliseconds, "a time such as 500ms, 30s or 2m")
        assert found is not None
        return found

    def bootstrap(self) -> tuple[str, ...]:
        """The bootstrap servers."""
        value = self.one_of("kafka.bootstrap.servers", "bootstrap")
        if not value:
            raise ConfigError("kafka.bootstrap.servers is not set: name a broker, for example localhost:9092")
        return tuple(part.strip() for part in value.split(",") if part.strip())

    def _parsed(self, name: str, default: int | None, parse: Callable[[str], int], expected: str) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}; it must be {expected}") from None


def _at_least(number: int, least: int) -> int:
    if number < least:
        raise ValueError(number)
    return number


def _milliseconds(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*", text)
    if found is None:
        raise ValueError(text)
    units = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(found[1]) * units[found[2]]
