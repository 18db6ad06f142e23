"""What `tools/hygiene.py` reports."""

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


def test_files_that_need_each_other_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set[str](), "f": {"f", "a"}}
    assert set(hygiene.circle(arrows)) == {"b", "c"}
    assert hygiene.circle(arrows | {"c": {"d"}}) == []


def test_what_imports_what_is_seen_inside_functions_and_for_types_alone() -> None:
    found = hygiene.imports()
    assert "muster.errors" in found["muster.client.net.driver"] | found["muster.broker.broker"]
    assert len(found) > 100


@pytest.mark.parametrize(
    ("source", "page", "count"),
    [
        ('getLogger("muster.log")', "| `muster.log` | … |", 0),
        ('getLogger("muster.log")', "", 1),
        ("", "| `muster.log` | … |", 1),
        ('getLogger("muster.log")', "| `muster.log` | … |\n| `muster.log` | … |", 1),
        ("getLogger(__name__)", "", 1),
    ],
)
def test_loggers_are_those_of_the_page(source: str, page: str, count: int) -> None:
    assert len(hygiene.loggers([source], page)) == count
