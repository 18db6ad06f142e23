"""What no tracked file may contain: host names of package registries, paths on one person's machine, nameless subjects,
modules that import each other, loggers that docs/reference/logging.md does not name.

Lock files and build files work with the index or mirror that a reader has set up, and no page refers to a folder that
only its author has.

Comments and docstrings under `src` name the thing that acts (the caller, the member, a request) instead of "who" or
"somebody", so that a newcomer needs to read them only once. Names in the code and messages to users are not checked.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

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

LOGGER = re.compile(r'"muster[\w.]*"|"py4j[\w.]*"|')

NAMELESS = re.compile(r"\b(?:who|whoever|whom|(?:some|no|any|every)(?:body|one))\b", re.IGNORECASE)


def tracked() -> list[Path]:
    """Every file that is, or is about to be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a Python file's comments and docstrings (including those of attributes), with their numbers."""
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
    """The lines of one file that must not be in it."""
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


def circle(needed: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one import cycle; empty if there is none."""
    try:
        TopologicalSorter({module: set(others) - {module} for module, others in needed.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports() -> dict[str, set[str]]:
    """What each module imports, including inside functions and only for types."""
    graph = grimp.build_graph("muster")
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def loggers(texts: Iterable[str], page: str) -> list[str]:
    """How the sources' loggers differ from those in docs/reference/logging.md: there must be one for each package, and
    no others."""
    used = {argument for text in texts for argument in re.findall(r"getLogger\(([^)]*)\)", text)}
    found = [f"getLogger({name}): name it after its package" for name in sorted(used) if not LOGGER.fullmatch(name)]
    named = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    written = {name.strip('"') for name in used if name.startswith('"muster')}
    found += [f"docs/reference/logging.md: {name} is missing" for name in sorted(written - set(named))]
    found += [f"docs/reference/logging.md: no source has {name}" for name in sorted(set(named) - written)]
    return found + [
        f"docs/reference/logging.md: {name} is listed twice" for name in sorted(set(named)) if named.count(name) > 1
    ]


def main() -> int:
    """Print every finding; the exit code says whether there was one."""
    here = {str(ROOT.parent), str(Path.home())} - {"/", "/tmp", "/src"}
    machine = re.compile("|".join(rf"(?<![\w.~$}}]){re.escape(path)}/" for path in sorted(here)) or r"(?!)")
    files = [path for path in tracked() if path.is_file()]
    found = [line for path in files for line in complaints(path, machine)]
    sources = [path for path in files if path.suffix == ".py" and path.is_relative_to(ROOT / "src")]
    found += [line for path in sources for line in nameless(path)]
    found += loggers((path.read_text() for path in sources), (ROOT / "docs" / "reference" / "logging.md").read_text())
    if modules := circle(imports()):
        found.append(f"these modules import each other: {', '.join(modules)}")
    print("\n".join(found) if found else "hygiene: no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
