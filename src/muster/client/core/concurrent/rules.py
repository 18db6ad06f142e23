"""The user's options: the order, the concurrency, and how often a failed record is retried."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal, get_args

from muster.client.config import whole_number
from muster.client.core.concurrent.encoding import DEFAULT_LIMIT
from muster.errors import ConfigError
from muster.model import ConsumerRecord

Order = Literal["key", "partition", "unordered"] | Callable[[ConsumerRecord], Hashable]
"""`"key"`, `"partition"` or `"unordered"`; or a function: records of a partition with the same result are
handled in order, those with None in any order."""

ORDERS = get_args(get_args(Order)[0])

MAX_MS = 2**53
"""The longest time and the largest number: 285,000 years in milliseconds, which a float can still represent exactly."""


def check_whole(name: str, number: object, least: int) -> None:
    """Refuse a value that is not a whole number in its range. NaN and infinity would only be noticed during a run.

    Raises:
        ConfigError: the value is not valid.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"{name} is {number!r}; it must be {whole_number(name, number)}")
    if number < least:
        raise ConfigError(f"{name} is {number}; it must be at least {least}")
    if number > MAX_MS:
        raise ConfigError(f"{name} must be at most {MAX_MS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a record is tried, and the delay before a retry, which doubles with each failure."""

    max_attempts: int = 10
    delay_ms: int = 1_000
    max_delay_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("max_attempts", "delay_ms", "max_delay_ms"):
            check_whole(name, getattr(self, name), -MAX_MS)
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts is {self.max_attempts}; it must be at least 1: the first attempt counts")
        if not 0 <= self.delay_ms <= self.max_delay_ms:
            raise ConfigError(
                f"delay_ms ({self.delay_ms}) must be at least 0 and at most max_delay_ms ({self.max_delay_ms})"
            )

    def wait_ms(self, failures: int) -> int:
        """How long to wait after this many failures."""
        return min(self.max_delay_ms, self.delay_ms << min(failures - 1, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The options that the core needs."""

    order: Order = "key"
    concurrency: int = 100
    max_buffered: int = 1_000
    max_buffered_bytes: int = 64 << 20
    retry: Retry = field(default_factory=Retry)
    dead_letters: bool = False
    """Whether there is a dead letter topic; without one, the first record that fails for good ends the run."""
    metadata_limit: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        if not callable(self.order) and self.order not in ORDERS:
            raise ConfigError(f'order is {self.order!r}; it must be "key", "partition", "unordered" or a function')
        if not isinstance(self.retry, Retry):
            raise ConfigError(f"retry is {self.retry!r}; it must be a Retry(max_attempts=…, delay_ms=…)")
        for name in ("concurrency", "max_buffered", "max_buffered_bytes"):
            check_whole(name, getattr(self, name), 1)
        check_whole("metadata_limit", self.metadata_limit, 0)


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """Why a handler could not handle a record.

    `permanent`: a retry does not help. `delay_ms`: the delay that the handler asked for; None for the one of `Retry`.
    """

    exception: str
    message: str = ""
    stacktrace: str = ""
    permanent: bool = False
    delay_ms: int | None = None
