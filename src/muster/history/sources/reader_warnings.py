"""What a reader could not read or determine, in sentences for people: without repetition, and limited in number."""

from __future__ import annotations

import threading

from muster.history.rules.wording import count

_MOST = 50


class ReaderWarnings:
    """Sentences in the order in which they were first added. Readers in several threads may share one."""

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        self._more = 0
        self._lock = threading.Lock()

    def add(self, sentence: str) -> None:
        """Add a sentence unless it is already there."""
        with self._lock:
            if sentence in self._sentences:
                return
            if len(self._sentences) < _MOST:
                self._sentences[sentence] = None
            else:
                self._more += 1

    def sentences(self) -> list[str]:
        """All of them; if there are very many, the first and how many more there were."""
        with self._lock:
            more = [f"not shown: {count(self._more, 'more warning')}"] if self._more else []
            return [*self._sentences, *more]
