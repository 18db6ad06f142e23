"""What a reader could not do, in sentences for people: each once, and not without end."""

from __future__ import annotations

import threading

_MOST = 50


class Remarks:
    """Sentences in the order in which they were first said. Readers in several threads may share one."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}
        self._more = 0
        self._lock = threading.Lock()

    def add(self, sentence: str) -> None:
        """Say something, unless it has been said."""
        with self._lock:
            if sentence in self._said:
                return
            if len(self._said) < _MOST:
                self._said[sentence] = None
            else:
                self._more += 1

    def sentences(self) -> list[str]:
        """All of them; of very many the first, and how many more there were."""
        with self._lock:
            more = [f"and {self._more} more of this kind"] if self._more else []
            return [*self._said, *more]
