"""The hashed requirement files under requirements/: written by `make lock`, checked by `make check`.

Each file pins every package that one step of an installation needs, with the hashes of all its files for Linux and
macOS on Python 3.11 to 3.13, and names no package index: pip asks the one that it is configured with. Writing them
needs uv and the network. Checking needs neither: the head of a file carries a digest of what it was made from, the
dependency tables of pyproject.toml and this list of files, and the check compares that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
DIGEST_MARK = "# made from: sha256:"


@dataclass(frozen=True)
class Lock:
    """One requirement file: which parts of pyproject.toml it resolves, and the files it must agree with."""

    name: str
    purpose: str
    project: bool = False
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    agrees_with: tuple[str, ...] = ()


LOCKS = (
    Lock("build", "what builds the source distributions and muster itself", groups=("build",)),
    Lock("demo", "muster and what `make demo` runs", project=True, extras=("arrow", "spark", "demo")),
    Lock("jre", "a Java runtime, for machines without one", extras=("jre",), agrees_with=("demo",)),
    Lock(
        "dev",
        "what `make check` and `make test` run, besides demo.txt",
        extras=("zookeeper", "metrics"),
        groups=("dev",),
        agrees_with=("demo",),
    ),
    Lock("lock", "what `make lock` runs", groups=("lock",)),
)


def digest(lock: Lock) -> str:
    """The digest of everything in the repository that decides what a lock file holds."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    source = {
        "lock": asdict(lock),
        "requires-python": project["requires-python"],
        "dependencies": project["dependencies"],
        "optional-dependencies": project["optional-dependencies"],
        "groups": {name: pyproject["dependency-groups"][name] for name in lock.groups},
    }
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def requirements(lock: Lock) -> list[str]:
    """The requirements as written in pyproject.toml, with muster's own extras resolved into what they require."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    wanted: list[str] = list(project["dependencies"]) if lock.project else []
    for extra in lock.extras:
        wanted += [line for line in project["optional-dependencies"][extra] if not line.startswith(project["name"])]
    for group in lock.groups:
        wanted += pyproject["dependency-groups"][group]
    return sorted(set(wanted))


def compile_lock(lock: Lock) -> str:
    """Resolve one lock with uv and return the file's text."""
    command = ["uv", "pip", "compile", "-", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--no-header", "--annotation-style=line", "--quiet"]
    for other in lock.agrees_with:
        command += ["--constraints", str(FOLDER / f"{other}.txt")]
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in requirements(lock)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"uv could not resolve requirements/{lock.name}.txt:\n{done.stderr}")
    pins = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    head = f"# {lock.purpose}. Written by `make lock` (tools/lock.py).\n{DIGEST_MARK}{digest(lock)}\n"
    return head + pins


def stale(lock: Lock) -> str | None:
    """Say why a lock file is stale, or None when it is fresh."""
    path = FOLDER / f"{lock.name}.txt"
    if not path.exists():
        return f"requirements/{lock.name}.txt is missing"
    if f"{DIGEST_MARK}{digest(lock)}" not in path.read_text().splitlines()[:2]:
        return f"requirements/{lock.name}.txt was made from dependencies other than those that pyproject.toml lists now"
    return None


def main() -> int:
    """Write the lock files, or with --check say which of them are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check that the files are fresh (offline)")
    if parser.parse_args().check:
        complaints = [complaint for lock in LOCKS if (complaint := stale(lock))]
        print("\n".join([*complaints, "run `make lock`"]) if complaints else "locks are fresh")
        return 1 if complaints else 0
    FOLDER.mkdir(exist_ok=True)
    for lock in LOCKS:
        text = compile_lock(lock)
        (FOLDER / f"{lock.name}.txt").write_text(text)
        print(f"requirements/{lock.name}.txt: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
