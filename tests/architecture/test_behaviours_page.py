"""docs/reference/behaviours.md names files, code and tests: all of them exist, and no id is left out. So does the
table of Kafka's rules in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "behaviours.md").read_text()
MAP = (ROOT / "docs" / "architecture.md").read_text()
SIZES = {"Z": 6, "A": 7, "J": 9, "C": 8, "H": 7, "O": 4, "P": 1}
IDS = [f"{letter}{number}" for letter, size in SIZES.items() for number in range(1, size + 1)]
MISSING = re.compile(r"\b(?:not (?:\w+ )?yet|in part|is missing)\b", re.IGNORECASE)
ENTRY = re.compile(r"^\*\*([A-Z]\d)\. .*?(?=^\*\*[A-Z]\d\. |^## |\Z)", re.MULTILINE | re.DOTALL)
POINTER = re.compile(r"`((?:src|tests|tools|docs)/[\w/.-]+)(?:::(\w+))?`")
RULE = re.compile(r"`([\w/]+\.py)::(\w+)`")
ENTRIES = {found[1]: found[0] for found in ENTRY.finditer(PAGE)}


@cache
def names(path: Path) -> frozenset[str]:
    """What a file defines: functions, methods, classes, and the names it assigns to."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return frozenset(found)


def test_what_the_page_names_is_there() -> None:
    pointers = set(POINTER.findall(PAGE))
    assert len(pointers) > 100
    assert sorted(path for path, _ in pointers if not (ROOT / path).is_file()) == []
    assert sorted(f"{path}::{name}" for path, name in pointers if name and name not in names(ROOT / path)) == []


def test_the_rules_of_kafka_are_where_the_map_says() -> None:
    pointers = set(RULE.findall(MAP))
    assert len(pointers) > 20
    source = ROOT / "src" / "muster"
    assert sorted(f"{path}::{name}" for path, name in pointers if name not in names(source / path)) == []


@pytest.mark.parametrize("identifier", IDS)
def test_every_behaviour_is_on_the_page(identifier: str) -> None:
    pointers = [path for path, _ in POINTER.findall(ENTRIES[identifier])]
    assert any(path.startswith("src/") for path in pointers), f"{identifier} names no code"
    assert any(path.startswith("tests/") for path in pointers), f"{identifier} names no test"


def test_the_page_says_of_nothing_that_it_is_missing() -> None:
    """Every behaviour now has code and tests. A page that says otherwise about one is out of date."""
    assert [line for line in PAGE.splitlines() if MISSING.search(line)] == []
