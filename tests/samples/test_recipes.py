"""The recipes of examples/testing_recipes, run by pytest as a stranger would run a copy of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "examples" / "testing_recipes" / "test_recipes.py"


def test_the_recipes_pass(tmp_path: Path) -> None:
    shutil.copy(RECIPES, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "12 passed" in done.stdout
