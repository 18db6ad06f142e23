"""No file is too long to be read at once, and no two files in src need each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MOST_LINES = 600
WRITTEN_BY_A_PROGRAM = {f"src/muster/protocol/{name}.py" for name in ("messages", "admin_messages", "group_messages")}
FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("src", "tests", "benchmarks", "tools")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("file", [file for file in FILES if file not in WRITTEN_BY_A_PROGRAM])
def test_a_file_has_at_most_so_many_lines(file: str) -> None:
    count = len((ROOT / file).read_text().splitlines())
    assert count <= MOST_LINES, f"{file} has {count} lines: split it by idea"


def imported(module: str, path: Path, modules: set[str]) -> Iterator[str]:
    """The files that a file imports, inside its functions and for types alone too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            within = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in within]
        else:
            continue
        yield from (name for name in names if name in modules and name != module)


def circles(arrows: dict[str, set[str]]) -> list[frozenset[str]]:
    """The sets of modules from each of which every other of the set is reached (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in sorted(arrows[module]):
            if other not in order:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(frozenset(stack[at:]))
            del stack[at:]

    for module in sorted(arrows):
        if module not in order:
            visit(module)
    return found


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set[str](), "f": {"f", "a"}}
    assert circles(arrows) == [frozenset("bc")]


def test_no_two_files_need_each_other() -> None:
    paths = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    arrows = {module: set(imported(module, path, set(paths))) for module, path in paths.items()}
    assert len(arrows) > 100
    assert [sorted(circle) for circle in circles(arrows)] == []
