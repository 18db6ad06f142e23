"""Warnings of readers: each once, in order, and at most fifty of them."""

from __future__ import annotations

import pytest

from muster.history.sources.reader_warnings import ReaderWarnings


@pytest.mark.parametrize(
    ("added", "last"),
    [(49, "sentence 48"), (50, "sentence 49"), (51, "not shown: 1 more warning"), (53, "not shown: 3 more warnings")],
)
def test_the_first_fifty_and_how_many_more(added: int, last: str) -> None:
    warnings = ReaderWarnings()
    for number in (*range(added), 0, 1):
        warnings.add(f"sentence {number}")
    found = warnings.sentences()
    assert found[:49] == [f"sentence {number}" for number in range(49)]
    assert (len(found), found[-1]) == (min(added, 51), last)
