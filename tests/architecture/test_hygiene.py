"""The check of words in `tools/hygiene.py`: comments and docstrings name their subjects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import hygiene

NAMED = '''"""The caller asks."""

def wait(who: str = "nobody") -> None:
    """Wait for the member, whose answer comes later."""
    raise ValueError(f"{who} is known to everybody")
'''


def complaints(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> list[str]:
    monkeypatch.setattr(hygiene, "ROOT", folder)
    path = folder / "file.py"
    path.write_text(source)
    return hygiene.nameless(path)


def test_names_in_the_code_and_messages_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complaints(tmp_path, monkeypatch, NAMED) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Whoever asks."""\n',
        'def f() -> None:\n    """One line.\n\n    And somebody.\n    """\n',
        'LIMIT = 1\n"""For everyone."""\n',
        "x = 1  # nobody reads it\n",
    ],
)
def test_a_subject_without_a_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    [found] = complaints(tmp_path, monkeypatch, NAMED + source)
    lines = (NAMED + source).splitlines()
    number = int(found.split(":")[1])
    assert hygiene.NAMELESS.search(lines[number - 1])
