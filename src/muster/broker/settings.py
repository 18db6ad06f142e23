"""A setting: its name, type, default and range, and how its text is parsed.

Names, types and error messages are those of Apache Kafka, whose tools and clients show them.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from muster.errors import ConfigError

Value = bool | int | float | str | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class SettingType(IntEnum):
    """Types of settings, as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """The source of a value, as DescribeConfigs numbers it; the smaller number takes precedence."""

    TOPIC = 1
    BROKER = 2
    """Set for this broker at run time."""
    ALL_BROKERS = 3
    """Set for all brokers at run time."""
    START = 4
    """Set for this broker at start."""
    DEFAULT = 5


_LIMITS = {SettingType.INT: INT_MAX, SettingType.SHORT: 2**15 - 1, SettingType.LONG: LONG_MAX}


class Setting(NamedTuple):
    """One setting. `minimum` and `maximum` bound a number, `choices` lists the allowed strings.

    A default of None means "not set". `synonym` is the broker's setting that a topic's setting falls back to.
    """

    name: str
    kind: SettingType
    default: Value
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    synonym: str | None = None
    apart: int | None = None
    """A number that is allowed in addition to the range."""

    def parse(self, text: str) -> Value:
        """Parse `text`.

        Raises:
            ConfigError: wrong type or out of range, in Kafka's words.
        """
        value = self._typed(text.strip())
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_number(value)
        elif self.choices and isinstance(value, str):
            self._check_words(text if self.kind is SettingType.LIST else value)
        return value

    def _check_number(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        too_low, too_high = low is not None and value < low, high is not None and value > high
        if low is not None and high is not None and self.apart is not None:
            if (too_low or too_high) and value != self.apart:
                between = f"between {_plain(low)} and {_plain(high)} or equal to {self.apart}"
                raise self._invalid(value, f"Value must be {between}")
        elif low is not None and too_low:
            raise self._invalid(value, f"Value must be at least {_plain(low)}")
        elif high is not None and too_high:
            raise self._invalid(value, f"Value must be no more than {_plain(high)}")

    def _check_words(self, text: str) -> None:
        words = [text]
        if self.kind is SettingType.LIST:
            words = [word.strip() for word in text.split(",")] if text.strip() else []
            if "" in words:
                raise ConfigError(f"Configuration '{self.name}' values must not be empty.")
        for word in words:
            if word not in self.choices:
                raise self._invalid(word, f"String must be one of: {', '.join(self.choices)}")

    def _typed(self, text: str) -> Value:
        if self.kind is SettingType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.kind is SettingType.STRING:
            return text
        if self.kind is SettingType.LIST:
            return ",".join(dict.fromkeys(split_list(text)))
        try:
            if self.kind is SettingType.DOUBLE:
                return java_double(text)
            number = java_whole(text)
            if not -_LIMITS[self.kind] - 1 <= number <= _LIMITS[self.kind]:
                raise ValueError
        except ValueError:
            raise self._invalid(text, f"Not a number of type {self.kind.name}") from None
        return number

    def _invalid(self, value: Value, why: str) -> ConfigError:
        return ConfigError(f"Invalid value {value} for configuration {self.name}: {why}")


_DOUBLE = re.compile(r"[+-]?(\d+\.?(\d+)?|\.\d+)([eE][+-]?\d+)?[fFdD]?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}")


def java_double(text: str) -> float:
    """Parse a number as `Double.parseDouble` does, except for hexadecimal, NaN and infinity, which no setting uses.

    Raises:
        ValueError: it is not a number.
    """
    if not _DOUBLE.fullmatch(text):
        raise ValueError(text)
    return float(text.rstrip("fFdD"))


def java_whole(text: str) -> int:
    """Parse a number as `Long.parseLong` does: without the underscores that Python accepts.

    Raises:
        ValueError: it is not a number.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def split_list(text: str) -> list[str]:
    """The items of a list such as `compact,delete`."""
    return [word.strip() for word in text.split(",") if word.strip()]


def show(value: Value) -> str | None:
    """A value as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
