"""A setting that selects groups: a regular expression that must match a group's whole id.

The operator writes the pattern, but any client chooses the ids, so matching must be fast for every id. Python's matcher
backtracks where a pattern can match in several ways, and takes exponential time for some patterns. So only patterns
with a small bound are accepted: no repeated parentheses, no backreferences or lookarounds, and at most three repeated
parts. An id is matched when its group is created.

(`zookeeper/watchers/topic_expression.py` is for the opposite case: any program may have written the expression, and it
cannot be rejected; it is matched, however slowly, in the syntax that Java and Python share.)
"""

from __future__ import annotations

import re

from muster.errors import ConfigError

MAX_ID_LENGTH = 249
"""Longer ids are not matched. This is the maximum length of a topic name."""
MAX_REPEATS = 3

_TOKEN = re.compile(
    r"""
    \\(?P<backreference>[1-9])
  | \\(?:.|$)
  | \[\^?\]?(?:\\.|[^]\\])*\]
  | \((?P<special>\?(?!:|i\)))
  | (?P<repeated>\)(?:[*+]|\{))
  | (?P<repeat>[*+]|\{\d*,?\d*\})
  | .
    """,
    re.VERBOSE | re.DOTALL,
)


class GroupPattern:
    """The groups whose whole ids match the pattern; none without a pattern.

    Raises:
        ConfigError: `text` is not a regular expression, or is one that could be slow to match; the message begins with
        `setting`.
    """

    def __init__(self, text: str | None, setting: str = "server.assigned.groups") -> None:
        self._compiled: re.Pattern[str] | None = None
        if not text:
            return
        try:
            self._compiled = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{setting} is not a regular expression: {text!r}: {error}") from None
        why = _unbounded(text)
        if why:
            raise ConfigError(f"{setting} could be slow to match: {text!r}: {why}")

    def __bool__(self) -> bool:
        """Whether there is a pattern."""
        return self._compiled is not None

    def matches(self, group_id: str) -> bool:
        """Whether the pattern selects a group."""
        compiled = self._compiled
        return compiled is not None and len(group_id) <= MAX_ID_LENGTH and compiled.fullmatch(group_id) is not None


def _unbounded(text: str) -> str | None:
    """Why the time to match has no small bound; None if it has one."""
    repeats = 0
    for token in _TOKEN.finditer(text):
        if token["repeated"]:
            return "parentheses must not be repeated; write the alternatives one by one"
        if token["backreference"] or token["special"]:
            return "backreferences, lookarounds and groups other than (?:…) and (?i) are not allowed"
        repeats += bool(token["repeat"])
    return f"at most {MAX_REPEATS} parts may be repeated" if repeats > MAX_REPEATS else None
