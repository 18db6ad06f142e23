"""Points in time and durations on the command line: the forms of Kafka's tools, and shorter ones for people."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from decimal import Decimal

from muster.errors import ConfigError

_DATETIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{3})?)?(Z|[+-]\d{2}(:?\d{2})?)?)?",
    re.ASCII,
)
_PERIOD = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?"
    r"(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SHORT = re.compile(r"(\d+(?:\.\d{1,3})?)(ms|[wdhms])", re.ASCII)
_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_MOST = 2**62
_LONGEST = 200
"""Maximum characters of a duration: Python refuses to parse numbers of thousands of digits."""


def datetime_ms(text: str, option: str) -> int:
    """A point in time as milliseconds since the epoch. Without a zone it is UTC, as in Kafka's tools. Their form
    `YYYY-MM-DDThh:mm:ss.sss` may also stop at the day, the minute or the second.

    Raises:
        ConfigError: the text is not in such a form.
    """
    try:
        if not _DATETIME.fullmatch(text):
            raise ValueError
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a point in time: write 2013-06-13T17:00:00.000, with Z or +02:00 for a zone"
        ) from None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def duration_ms(text: str, option: str) -> int:
    """A duration as milliseconds: `PnDTnHnMn.nS` as Java reads it, or `2d`, `1.5h`, `1h30m`, `500ms`.

    Raises:
        ConfigError: the text is not in such a form.
    """
    period = _PERIOD.fullmatch(text) if len(text) <= _LONGEST else None
    if period is not None and (found := _period_ms(period)) is not None:
        total = found
    elif 0 < len(text) <= _LONGEST and _SHORT.sub("", text) == "":
        total = int(sum(Decimal(number) * _MS[unit] for number, unit in _SHORT.findall(text)))
    else:
        raise ConfigError(f"{option} {text!r} is not a duration: write PT1H30M or 1h30m, P2D or 2d")
    if abs(total) > _MOST:
        raise ConfigError(f"{option} {text!r} is longer than any log")
    return total


def positive_ms(text: str) -> int:
    """The same for argparse; a duration of zero or less is an error."""
    try:
        found = duration_ms(text, "")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).lstrip()) from None
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive duration")
    return found


def _period_ms(found: re.Match[str]) -> int | None:
    """ISO-8601 as `java.time.Duration.parse` accepts it; None if nothing follows P or T."""
    sign, days, time, hours, minutes, seconds, fraction = found.groups()
    if not any((days, hours, minutes, seconds)) or (time is not None and len(time) == 1):
        return None
    total_ns = 0
    for number, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")):
        total_ns += int(number or 0) * _MS[unit] * 1_000_000
    nanoseconds = int((fraction or "").ljust(9, "0"))
    total_ns += -nanoseconds if (seconds or "").startswith("-") else nanoseconds
    total_ns = -total_ns if sign == "-" else total_ns
    return total_ns // 1_000_000
