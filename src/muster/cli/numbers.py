"""Whole numbers in what commands are given."""

from __future__ import annotations

_MOST_DIGITS = 100
"""Python refuses to read thousands of digits, with an error of its own; nothing here means a number as long."""


def natural_number(text: str) -> int | None:
    """The number, or None if the text is not of plain digits alone."""
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None
