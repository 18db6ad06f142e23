"""Plant known bugs one at a time, each in a copy of the tree, and see that the tests named beside it notice.

python tools/mutants.py [-k WORDS] [-n WORKERS]

The mutants stand in tests/mutants/*.toml (its README has the form). First the tests of all chosen mutants run on the
tree as it is: a test that fails anyway would seem to catch everything. A mutant is caught when at least one of its
tests fails; tests that cannot be collected, or of which there are none, are an error of the entry and catch nothing.

The last line is one JSON object: how many were planted, how many caught, which survived. Exit code 1 if one survived.
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

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
COPIED = ("src", "tests", "tools", "benchmarks", "docs", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile")
TEST_TIMEOUT_S = 120
FAILED, PASSED = 1, 0
"""Exit codes of pytest; every other one means that the tests did not run."""


@dataclass(frozen=True)
class Mutant:
    """One bug: the exact text of a file, what it becomes, and the tests that must fail then."""

    name: str
    file: str
    before: str
    after: str
    harm: str
    tests: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    @property
    def room(self) -> str:
        """The package of `muster` that it is planted in."""
        parts = Path(self.file).parts
        return parts[2].removesuffix(".py") if parts[:2] == ("src", "muster") else parts[0]

    def complaint(self, root: Path) -> str | None:
        """Why it cannot be planted in the tree, None where it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} is not there"
        found = path.read_text().count(self.before)
        if found != 1:
            return f"its text stands {found} times in {self.file}, not once"
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        return f"no {missing[0]}" if missing else None

    def plant(self, root: Path) -> str:
        """Change the file; returns what it was."""
        path = root / self.file
        text = path.read_text()
        path.write_text(text.replace(self.before, self.after, 1))
        return text


@dataclass(frozen=True)
class Outcome:
    """What the tests said of one mutant."""

    mutant: Mutant
    caught: bool
    by: str
    """The kind of test that noticed (unit, simulation …), or why it counts as survived."""


def load(folder: Path = MUTANTS) -> list[Mutant]:
    """All mutants, in the order of their files.

    Raises:
        ValueError: an entry lacks something, or a name is there twice.
    """
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            try:
                found.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
            except (TypeError, KeyError) as error:
                raise ValueError(f"{path.name}: {entry.get('name')}: {error}") from None
            if not found[-1].tests or found[-1].before.strip() == found[-1].after.strip():
                raise ValueError(f"{path.name}: {found[-1].name}: it names no tests, or changes nothing")
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
    # Without bytecode files: a change within the same second and of the same size would leave an old one standing.
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
            # A bug that hangs a test leaves brokers and children behind.
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read()


def try_one(mutant: Mutant, root: Path) -> Outcome:
    """Plant it, run its tests, take it back."""
    complaint = mutant.complaint(root)
    if complaint:
        return Outcome(mutant, False, complaint)
    original = mutant.plant(root)
    try:
        code, output = run_tests(root, mutant.tests, mutant.env)
    finally:
        (root / mutant.file).write_text(original)
    if code == PASSED:
        return Outcome(mutant, False, "its tests pass")
    if code != FAILED:
        return Outcome(mutant, False, f"its tests did not run (pytest ended with {code}): {output[-600:]}")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\w+)", output, re.MULTILINE)
    return Outcome(mutant, True, failed[1] if failed else Path(mutant.tests[0]).parts[1])


def failing_anyway(mutants: Sequence[Mutant], root: Path) -> str | None:
    """What the tests say on the tree as it is, None where all pass."""
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
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(workers):
            copies.put(copy_tree(Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))))

        def one(mutant: Mutant) -> Outcome:
            root = copies.get()
            try:
                outcome = try_one(mutant, root)
            finally:
                copies.put(root)
            verdict = f"caught ({outcome.by})" if outcome.caught else f"SURVIVED: {outcome.by}"
            print(f"{mutant.room:12} {mutant.name}: {verdict}", flush=True)
            return outcome

        root = copies.get()
        said = failing_anyway(mutants, root)
        copies.put(root)
        if said is not None:
            raise SystemExit(f"the tests fail without any mutant:\n{said[-3000:]}")
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, mutants))


def report(outcomes: Sequence[Outcome]) -> str:
    """A line for each room, and the JSON object."""
    lines = []
    for room in sorted({outcome.mutant.room for outcome in outcomes}):
        here = [outcome for outcome in outcomes if outcome.mutant.room == room]
        kinds = Counter(outcome.by for outcome in here if outcome.caught)
        by = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        lines.append(f"{room:12} {sum(kinds.values())} of {len(here)} caught ({by})")
    caught = sum(outcome.caught for outcome in outcomes)
    survived = [outcome.mutant.name for outcome in outcomes if not outcome.caught]
    return "\n".join([*lines, json.dumps({"planted": len(outcomes), "caught": caught, "survived": survived})])


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant them; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-k", dest="words", default="", help="only those whose name or file contains this")
    parser.add_argument(
        "-n", dest="workers", type=int, default=2, help="copies of the tree that are tried side by side"
    )
    chosen = parser.parse_args(arguments)
    mutants = [m for m in load() if chosen.words in m.name or chosen.words in m.file]
    if not mutants:
        raise SystemExit(f"no mutant has {chosen.words!r} in its name or file")
    outcomes = try_all(mutants, chosen.workers)
    print(report(outcomes))
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
