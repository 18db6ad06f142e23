"""The service in examples/billing_service: its suite passes with each client, and notices each planted bug."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow(120)

SERVICE = Path(__file__).parents[2] / "examples" / "billing_service"
BUGS = tomllib.loads((Path(__file__).parent / "billing_bugs.toml").read_text())["bug"]
CLIENTS = ("muster", "confluent", "aiokafka", "kafka_python")


def copied(folder: Path) -> Path:
    shutil.copytree(SERVICE, folder, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    return folder


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the suite as a user would run a copy of it: without the other plugins and the settings of this repository."""
    plugins = ["-p", "muster.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-rf", *plugins, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def plant(folder: Path, bug: dict[str, Any]) -> None:
    path = folder / bug["file"]
    text, before = path.read_text(), bug["before"].lstrip("\n")
    assert text.count(before) == 1, f"{bug['name']}: its code occurs {text.count(before)} times in {bug['file']}"
    planted = text.replace(before, bug["after"].lstrip("\n"))
    ast.parse(planted)
    path.write_text(planted)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_suite_passes(tmp_path: Path, client: str) -> None:
    done = run_suite(copied(tmp_path / "service"), "--client", client)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["name"])
def test_the_suite_notices_a_bug(tmp_path: Path, bug: dict[str, Any]) -> None:
    folder = copied(tmp_path / "service")
    plant(folder, bug)
    done = run_suite(folder, "--client", bug["client"], f"tests/test_billing.py::{bug['test']}")
    assert done.returncode == 1, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(rf"^FAILED tests/test_billing\.py::{bug['test']}\[", done.stdout, re.MULTILINE), done.stdout
    assert " error" not in done.stdout.splitlines()[-1], done.stdout
