"""Which groups a setting means: a regular expression that must match a group's whole id.

The operator writes the pattern, but any client chooses the ids that are matched: matching has to take little time for
every id. Python's matcher goes back where a pattern can match in several ways, and takes exponential time for some. So
only patterns of a small bound are accepted: no part in parentheses is repeated, nothing refers back or looks
around, and at most three parts are repeated at all. An id is matched when its group comes into being.

(`zookeeper/watchers/topic_expression.py` is for the opposite case: any program may have written the expression, and it
cannot be refused; it is matched, however slowly, in the syntax that Java and Python share.)
"""

from __future__ import annotations

import re

from muster.errors import ConfigError

MAX_ID_LENGTH = 249
"""Longer ids are not matched: as long as the name of a topic may be."""
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
    """The groups whose ids match the pattern as a whole; none without a pattern.

    Raises:
        ConfigError: `text` is no regular expression, or one that could take long; `setting` begins the sentence.
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
            raise ConfigError(f"{setting} could take long to match: {text!r}: {why}")

    def __bool__(self) -> bool:
        """Whether any group is meant at all."""
        return self._compiled is not None

    def matches(self, group_id: str) -> bool:
        """Whether a group is meant."""
        compiled = self._compiled
        return compiled is not None and len(group_id) <= MAX_ID_LENGTH and compiled.fullmatch(group_id) is not None


def _unbounded(text: str) -> str | None:
    """Why the time to match has no small bound, None if it has one."""
    repeats = 0
    for token in _TOKEN.finditer(text):
        if token["repeated"]:
            return "a part in parentheses is repeated; write the alternatives one by one"
        if token["backreference"] or token["special"]:
            return "it refers back, looks around, or has options other than (?:…) and (?i)"
        repeats += bool(token["repeat"])
    return f"more than {MAX_REPEATS} parts are repeated" if repeats > MAX_REPEATS else None
