"""What users import from `muster` and `muster.testing`, each loaded when it is first used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import muster
import muster.testing

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


MODULES = [(muster, "__version__", ["muster.version"]), (muster.testing, "kafka", ["muster.testing", "muster.version"])]
"""The names that are not imported from elsewhere, and the modules that importing them loads."""


@pytest.mark.parametrize(("module", "own", "loaded"), MODULES)
def test_names_are_those_that_type_checkers_see_and_are_loaded_when_used(
    module: ModuleType, own: str, loaded: list[str]
) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    tree = ast.parse(Path(module.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and "muster" in (node.module or "")]
    assert {alias.name for node in imports for alias in node.names} | {own} == set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Kafak'"):
        _ = module.Kafak
    program = f"import sys, {module.__name__}; print(*(name for name in sys.modules if name.startswith('muster.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == loaded


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_import_public_modules_alone(page: Path) -> None:
    found = re.findall(r"^\s*(?:from|import) (muster[\w.]*)", page.read_text(), re.MULTILINE)
    assert set(found) <= PUBLIC_MODULES
