"""The Python code of the pages, as a type checker sees it in a user's program."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def programs() -> dict[str, str]:
    found: dict[str, str] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = page.stem.replace("-", "_")
        for number, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        ):
            client = re.match(r"# ([a-z-]+(?: for asyncio)?(?:, secured)?)\n", block)
            if client is not None and not client[1].startswith("muster"):
                continue
            which = re.sub(r"\W+", "_", client[1]) if client is not None else "" if name == "spark" else str(number)
            found[f"{name}_{which}"] = found.get(f"{name}_{which}", "") + block
    return {name: in_a_coroutine(text) if "await " in text else text for name, text in found.items()}


def in_a_coroutine(text: str) -> str:
    return f"import asyncio\n\nasync def main() -> None:\n{textwrap.indent(text, '    ')}\nasyncio.run(main())\n"


def test_every_block_passes_mypy_in_strict_mode(tmp_path: Path) -> None:
    """Except for errors about other packages that have no types."""
    made = programs()
    assert {name for name in made if name.startswith("migrating")} >= {
        "migrating_muster",
        "migrating_muster_for_asyncio",
        "migrating_muster_secured",
        "migrating_muster_for_asyncio_secured",
    }
    for name, text in made.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", "cache", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # Values from fixtures need no annotation in a user's tests.
    of_others = r".*(\[import-untyped\]|\[import-not-found\])$|testing_.*\[no-untyped-def\]$"
    reported = [line for line in done.stdout.splitlines() if ": error: " in line and not re.match(of_others, line)]
    assert reported == [], done.stdout
    assert re.search(r"^(Found \d+ errors?|Success)", done.stdout, re.MULTILINE), done.stdout + done.stderr
