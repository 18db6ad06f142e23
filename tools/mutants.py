"""Plant known bugs one at a time, each in a copy of the tree, and see that the tests named with it notice.

python -m tools.mutants [-k WORDS] [-n WORKERS]
python -m tools.mutants --check    (part of `make check`: whether each can be planted; no test is run)

The mutants are in tests/mutants/*.toml (the README there describes the format). First the tests of all chosen mutants
run on the tree as it is: a test that fails anyway would seem to catch everything. A mutant is caught when at least one
of its tests fails; tests that cannot be collected, or do not exist, catch nothing: the entry is wrong.

The last line is one JSON object: how many were planted, how many caught, which survived. The exit code is 1 if one
survived.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from tools.anchors import Scope, Tree

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
COPIED = ("src", "tests", "tools", "benchmarks", "docs", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile")
TEST_TIMEOUT_S = 120
FAILED, PASSED = 1, 0
"""Exit codes of pytest; any other means that the tests did not run."""


@dataclass(frozen=True)
class Mutant:
    """One bug: code in a function, its replacement, and the tests that must then fail."""

    name: str
    before: str
    after: str
    """Empty if the code is only removed."""
    harm: str
    tests: tuple[str, ...]
    where: str = ""
    """The qualified name of the function or class; for code outside both, only `file` says where it is."""
    file: str = ""
    """The end of the file's path, if the name and the code do not suffice."""
    env: dict[str, str] = field(default_factory=dict)

    def complaint(self, tree: Tree) -> str | None:
        """Why it cannot be planted in the tree, or None."""
        try:
            scope = self.scope(tree)
            if scope.parsed(scope.planted(self.before, self.after)) == scope.parsed():
                return "it changes nothing"
        except LookupError as error:
            return str(error)
        except SyntaxError as error:
            return f"it does not compile: {error}"
        missing = [test for test in self.tests if not (tree.root / test.partition("::")[0]).exists()]
        return f"no {missing[0]}" if missing else None

    def scope(self, tree: Tree) -> Scope:
        """Where it is planted."""
        return tree.find(self.where, self.file, self.before)

    def place(self, tree: Tree) -> str:
        """Where it is planted, as path::Class.function."""
        try:
            return f"{self.scope(tree).path.relative_to(tree.root)}::{self.where}"
        except LookupError:
            return f"{self.file}::{self.where}"


@dataclass(frozen=True)
class Outcome:
    """What the tests said about one mutant."""

    mutant: Mutant
    caught: bool
    by: str
    """The kind of test that noticed (unit, simulation …), or why it counts as survived."""


def load(folder: Path = MUTANTS) -> list[Mutant]:
    """All mutants, in the order of their files.

    Raises:
        ValueError: an entry lacks something, or a name occurs twice.
    """
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        read = tomllib.loads(path.read_text())
        tests = read.pop("tests", ())
        for place, entries in read.items():
            file, _, where = (place, "", "") if place.endswith(".py") else place.rpartition("::")
            for entry in entries:
                given = {"after": "", "tests": tests} | entry
                try:
                    found.append(Mutant(**given | {"tests": tuple(given["tests"])}, where=where, file=file))
                except TypeError as error:
                    raise ValueError(f"{path.name}: {entry.get('name')}: {error}") from None
                if not (found[-1].tests and found[-1].before.strip()):
                    raise ValueError(f"{path.name}: {found[-1].name}: it names no tests or no code")
    twice = [name for name, count in Counter(mutant.name for mutant in found).items() if count > 1]
    if twice:
        raise ValueError(f"mutants with the same name: {', '.join(twice)}")
    return found


def copy_tree(folder: Path, root: Path = ROOT) -> Path:
    """A copy of what the tests need."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def run_tests(root: Path, tests: Iterable[str], env: dict[str, str]) -> tuple[int, str]:
    """pytest's exit code and output, in a process of its own on the copied tree."""
    options = ["-x", "-q", "-ra", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout", str(TEST_TIMEOUT_S)]
    # Without bytecode files: after a change within the same second that keeps the size, an old one would still be used.
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
        "PYTHONDONTWRITEBYTECODE": "1",
        **env,
    }
    command = [sys.executable, "-m", "pytest", *options, *tests]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        running = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = running.wait()
        finally:
            # A bug that makes a test hang leaves brokers and child processes behind.
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read()


def try_one(mutant: Mutant, tree: Tree) -> Outcome:
    """Plant it, run its tests, remove it."""
    complaint = mutant.complaint(tree)
    if complaint:
        return Outcome(mutant, False, complaint)
    scope = mutant.scope(tree)
    original = scope.path.read_text()
    end = scope.start + len(scope.text)
    try:
        scope.path.write_text(original[: scope.start] + scope.planted(mutant.before, mutant.after) + original[end:])
        code, output = run_tests(tree.root, mutant.tests, mutant.env)
    finally:
        scope.path.write_text(original)
    if code == PASSED:
        return Outcome(mutant, False, "its tests pass")
    if code != FAILED:
        return Outcome(mutant, False, f"its tests did not run (pytest ended with {code}): {output[-600:]}")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\w+)", output, re.MULTILINE)
    return Outcome(mutant, True, failed[1] if failed else Path(mutant.tests[0]).parts[1])


def failing_anyway(mutants: Sequence[Mutant], root: Path) -> str | None:
    """What the tests print on the unchanged tree, None if all pass."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for mutant in mutants:
        groups.setdefault(tuple(sorted(mutant.env.items())), {}).update(dict.fromkeys(mutant.tests))
    for env, tests in groups.items():
        code, output = run_tests(root, tests, dict(env))
        if code != PASSED:
            return output
    return None


def try_all(mutants: Sequence[Mutant], workers: int) -> list[Outcome]:
    """Try every mutant, each worker in a copy of its own."""
    with ExitStack() as held:
        copies: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(workers):
            copies.put(Tree(copy_tree(Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))))))

        def one(mutant: Mutant) -> Outcome:
            tree = copies.get()
            try:
                outcome = try_one(mutant, tree)
            finally:
                copies.put(tree)
            verdict = f"caught ({outcome.by})" if outcome.caught else f"SURVIVED: {outcome.by}"
            print(f"{mutant.name}: {verdict}", flush=True)
            return outcome

        tree = copies.get()
        said = failing_anyway(mutants, tree.root)
        copies.put(tree)
        if said is not None:
            raise SystemExit(f"the tests fail without any mutant:\n{said[-3000:]}")
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, mutants))


def report(outcomes: Sequence[Outcome]) -> str:
    """The kinds of tests that noticed, and the JSON object."""
    kinds = Counter(outcome.by for outcome in outcomes if outcome.caught)
    by = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    survived = [outcome.mutant.name for outcome in outcomes if not outcome.caught]
    counted = {"planted": len(outcomes), "caught": sum(kinds.values()), "survived": survived}
    return f"noticed by: {by}\n{json.dumps(counted)}"


def check(mutants: Sequence[Mutant], tree: Tree) -> int:
    """Print which cannot be planted; 1 if there is one."""
    found = [f"{mutant.name}: {complaint}" for mutant in mutants if (complaint := mutant.complaint(tree))]
    print("\n".join(found) if found else f"mutants: each of the {len(mutants)} can be planted")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant them; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-k", dest="words", default="", help="only those whose name or location (path::Class.function) contains this"
    )
    parser.add_argument(
        "-n", dest="workers", type=int, default=2, help="how many copies of the tree are used in parallel"
    )
    parser.add_argument("--check", action="store_true", help="only check that each can be planted")
    chosen = parser.parse_args(arguments)
    here = Tree(ROOT)
    if chosen.check:
        return check(load(), here)
    mutants = [mutant for mutant in load() if chosen.words in mutant.name or chosen.words in mutant.place(here)]
    if not mutants:
        raise SystemExit(f"no mutant has {chosen.words!r} in its name or its location")
    outcomes = try_all(mutants, chosen.workers)
    print(report(outcomes))
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
