"""What is imported: the Arrow packages import only what `muster-kafka[arrow]` installs; a consumer imports nothing of
producers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = ("arrow", "client", "history", "pages")
LAZY = {"numba"}
"""Used if it is installed."""


def installed() -> set[str]:
    named = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["arrow"]]
    return {re.split(r"[<>=\[;]", line)[0] for line in named}


def imported(node: ast.AST) -> Iterator[str]:
    """The packages that running this imports, except those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module.partition(".")[0]
        yield from imported(child)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_all_that_is_imported_is_installed(room: str) -> None:
    found = {
        name
        for path in (ROOT / "src" / "muster" / room).rglob("*.py")
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - set(sys.stdlib_module_names) - {"muster"} - LAZY <= installed()


def test_a_consumer_imports_nothing_of_producers_and_admins() -> None:
    """Programs that only consume import less."""
    program = "import sys; from muster import Consumer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "muster.client.consumer.async_consumer" in modules
    others = (
        "muster.client.producer",
        "muster.client.core.produce",
        "muster.client.admin.admin",
        "muster.client.core.admin.admin",
    )
    assert [name for name in modules if name.startswith(others)] == []
