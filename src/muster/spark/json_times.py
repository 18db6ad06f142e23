"""Dates and times in JSON's strings, as Spark casts them: days, and microseconds, since 1970. None for what is neither.

Spark takes more than ISO 8601: one digit for two, a year alone, a zone's name, spaces around.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?\Z", re.DOTALL)
_DAY = r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?"
_TIME = r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?"
_FULL = re.compile(rf"{_DAY}(?:[ T]{_TIME}(.*))?\Z", re.DOTALL)
_TODAY = re.compile(rf"T?{_TIME}(.*)\Z", re.DOTALL)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = 1_000_000
_DAY_US = 86_400 * _MICROSECONDS
_SHORT = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's short names (ZoneId.SHORT_IDS), of those that have a time zone's."""
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def date_of(text: str) -> int | None:
    """Days since 1970."""
    found = _DATE.match(text.strip())
    if found is None:
        return None
    sign, year, month, day = found.groups()
    days = _days(int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1))
    return days if days is not None and -(2**31) <= days < 2**31 else None


def timestamp_of(text: str, zone: str) -> int | None:
    """Microseconds since 1970. `zone` is for what names none."""
    parsed = _parse(text)
    if parsed is None:
        return None
    days, time_us, named = parsed
    try:
        place = _zone(named or zone)
        if days is None:
            days = datetime.now(place).toordinal() - _EPOCH.toordinal()
        return _to_utc(days * _DAY_US + time_us, place)
    except (KeyError, ValueError, OverflowError, OSError):
        return None


def local_timestamp_of(text: str) -> int | None:
    """Microseconds since 1970, of a time without a zone."""
    parsed = _parse(text)
    if parsed is None or parsed[0] is None or parsed[2]:
        return None
    return parsed[0] * _DAY_US + parsed[1]


def _parse(text: str) -> tuple[int | None, int, str] | None:
    """Days (None for today), microseconds of the day, the zone's name."""
    text = text.strip()
    found = _FULL.match(text)
    if found is not None:
        sign, year, month, day, *time = found.groups()
        days = _days(int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1))
        if days is None or (time[0] is not None and (month is None or day is None)):
            return None
        if time[0] is None:
            return days, 0, ""
        clock = _clock(time)
        return None if clock is None else (days, *clock)
    found = _TODAY.match(text)
    clock = None if found is None else _clock(list(found.groups()))
    return None if clock is None else (None, *clock)


def _clock(parts: list[str | None]) -> tuple[int, str] | None:
    hour, minute, second = (int(part or 0) for part in parts[:3])
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((parts[3] or "")[:6].ljust(6, "0"))
    return ((hour * 60 + minute) * 60 + second) * _MICROSECONDS + fraction, (parts[4] or "").strip()


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = _OFFSET.match(name)
    if found is None:
        return ZoneInfo(_SHORT.get(name, name))
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    if hours > 18 or minutes > 59 or seconds > 59:
        raise ValueError(name)
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if found[1] == "-" else offset)


def _to_utc(local_us: int, zone: tzinfo) -> int | None:
    """A local time as UTC. One that is skipped when clocks go forward moves forward, as in Java."""
    offset_us = 0
    if zone is not UTC:
        local = (_EPOCH + timedelta(microseconds=local_us)).replace(tzinfo=zone)
        offset = local.utcoffset()
        assert offset is not None
        offset_us = round(offset.total_seconds() * _MICROSECONDS)
    found = local_us - offset_us
    return found if -(2**63) <= found < 2**63 else None


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970 in the calendar of today, for years that Python's dates do not have as well."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _LENGTHS[month - 1] + (leap and month == 2):
        return None
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
