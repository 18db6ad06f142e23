"""The mutants can be planted, and the tool that plants them tells those that nobody notices."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from tools.mutants import ROOT, Mutant, load, report, try_one

MUTANTS = load()

CODE = "def double(n):\n    return 2 * n\n"
TEST = "from double import double\n\ndef test_double():\n    assert double(3) == 6\n"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_planted(mutant):
    assert mutant.complaint(ROOT) is None
    text = (ROOT / mutant.file).read_text()
    planted = text.replace(mutant.before, mutant.after, 1)
    assert planted != text
    assert ast.dump(ast.parse(planted)) != dump(text)


@cache
def dump(text: str) -> str:
    """What a file says but for its layout: many mutants are of the same few."""
    return ast.dump(ast.parse(text))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "double.py").write_text(CODE)
    (tmp_path / "tests" / "test_double.py").write_text(TEST)
    return tmp_path


def mutant(before: str, after: str, *tests: str) -> Mutant:
    return Mutant("a", "src/double.py", before, after, "wrong", tests or ("tests/test_double.py",))


@pytest.mark.parametrize(
    ("planted", "caught", "why"),
    [
        (mutant("    return 2 * n\n", "    return 3 * n\n"), True, "test_double"),
        (mutant("    return 2 * n\n", "    return n * 2\n"), False, "its tests pass"),
        (mutant("    return 2 * n\n", "    return 3 * n\n", "tests/test_double.py::test_none"), False, "did not run"),
        (mutant("    return 2 * n\n", "    return 3 * n\n", "tests/test_other.py"), False, "no tests/test_other.py"),
        (mutant("    return 4 * n\n", "    return 3 * n\n"), False, "0 times"),
        (mutant("    return 2 * n\n", "    return (2 * n\n"), False, "did not run"),
    ],
    ids=["bug", "equivalent", "no such test", "no such file", "moved", "does not compile"],
)
def test_the_tool_believes_only_tests_that_ran_and_failed(tree, planted, caught, why):
    outcome = try_one(planted, tree)
    assert outcome.caught is caught
    assert why in outcome.by
    assert (tree / "src" / "double.py").read_text() == CODE
    last = json.loads(report([outcome]).splitlines()[-1])
    assert last == {"planted": 1, "caught": int(caught), "survived": [] if caught else ["a"]}
