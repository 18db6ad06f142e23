"""The recipes of examples/testing_recipes, run by pytest as a user would run a copy of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "examples" / "testing_recipes"


def test_the_recipes_pass(tmp_path: Path) -> None:
    shutil.copytree(RECIPES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    recipes = (tmp_path / "test_recipes.py").read_text().count("\ndef test_")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{recipes} passed" in done.stdout
