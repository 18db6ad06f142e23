"""Whole numbers on the command line."""

from __future__ import annotations

_MOST_DIGITS = 100
"""Python refuses to parse thousands of digits, with an error of its own; no number here is that long."""


def natural_number(text: str) -> int | None:
    """The number, or None if the text is anything but ASCII digits."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None
