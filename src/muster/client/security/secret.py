"""Text that is never shown: a password, a token, a private key."""

from __future__ import annotations

from typing import Final

HIDDEN: Final = "[hidden]"
"""What is shown instead of a secret, as in Kafka."""


class Secret:
    """A secret value of a setting. `str`, `repr` and formatting give `[hidden]`; only `reveal` gives the text.

    It is equal to another Secret of the same text, and can be pickled, since settings travel to Spark's executors.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. The caller must not log it or put it into an error."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)


NOTHING: Final = Secret("")
