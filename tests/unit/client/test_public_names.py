"""What users import: everything public of the clients from `muster`, loaded when it is first used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import muster

ROOT = Path(__file__).resolve().parents[3]
PUBLIC_MODULES = {
    "muster",
    "muster.spark",
    "muster.spark.upsert",
    "muster.spark.history",
    "muster.testing",
    "muster.zookeeper",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]


@pytest.mark.parametrize("name", muster.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(muster, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(muster.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(muster.__all__)
    assert set(muster.__all__) <= set(dir(muster))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'muster' has no attribute 'Konsumer'"):
        muster.Konsumer  # type: ignore[attr-defined]  # noqa: B018


def test_importing_muster_loads_no_client() -> None:
    program = "import sys; import muster; print(*(name for name in sys.modules if name.startswith('muster.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["muster.version"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_import_public_modules_alone(page: Path) -> None:
    found = re.findall(r"^\s*(?:from|import) (muster[\w.]*)", page.read_text(), re.MULTILINE)
    assert set(found) <= PUBLIC_MODULES
