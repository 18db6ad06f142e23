"""What no tracked file may hold: host names of package registries, paths of one person's machine, nameless subjects.

Lock files and build files work with the index or mirror that a reader has set up, and no page sends a reader to a
folder that only its author has.

Comments and docstrings under `src` name the thing that acts (the caller, the member, a request) in place of "who" or
"somebody", so that a stranger reads them once. Names in the code and messages to users are not looked at.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Written in pieces, so that this file passes its own check.
REGISTRIES = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("maven", "org"),
    ("repo.maven.apache", "org"),
    ("npmjs", "org"),
    ("crates", "io"),
    ("proxy.golang", "org"),
    ("deb.debian", "org"),
)
HOST = re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES))
HOME = re.compile(r"(?<![\w.~$}])/(?:home|Users)/[A-Za-z]|(?<![\w.~$}])/ro" + r"ot/")

NAMELESS = re.compile(r"\b(?:who|whoever|whom|(?:some|no|any|every)(?:body|one))\b", re.IGNORECASE)


def tracked() -> list[Path]:
    """Every file under version control, or that is about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a Python file's comments and docstrings, those of attributes too, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)


def nameless(path: Path) -> list[str]:
    """The lines of a file's prose whose subject has no name."""
    return [
        f"{path.relative_to(ROOT)}:{number}: say which caller, member or request: {match.group()}"
        for number, line in sorted(prose(path.read_text()))
        if (match := NAMELESS.search(line))
    ]


def complaints(path: Path, machine: re.Pattern[str]) -> list[str]:
    """The lines of one file that must not be there."""
    found = []
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        for what, pattern in (
            ("a registry's host name", HOST),
            ("a machine's path", HOME),
            ("this machine's path", machine),
        ):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {what}: {match.group()}")
    return found


def main() -> int:
    """Print every complaint; the exit code says whether there was one."""
    here = {str(ROOT.parent), str(Path.home())} - {"/", "/tmp", "/src"}
    machine = re.compile("|".join(rf"(?<![\w.~$}}]){re.escape(path)}/" for path in sorted(here)) or r"(?!)")
    files = [path for path in tracked() if path.is_file()]
    found = [line for path in files for line in complaints(path, machine)]
    sources = [path for path in files if path.suffix == ".py" and path.is_relative_to(ROOT / "src")]
    found += [line for path in sources for line in nameless(path)]
    print("\n".join(found) if found else "hygiene: nothing that only this machine knows, and no subject without a name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
