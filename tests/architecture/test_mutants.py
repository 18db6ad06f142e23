"""A mutant finds its code wherever its function has moved, and the tool reports the mutants that no test notices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.anchors import Tree
from tools.mutants import Mutant, check, load, report, try_one

CODE = "def double(n):\n    return 2 * n\n"
TEST = "from double import double\n\ndef test_double():\n    assert double(3) == 6\n"
GUARD = '''class Door:
    def enter(self, guest):
        """Let a guest in: if guest is None, nobody."""
        if guest is None:  # "if guest is None" in a comment
            return
        self.inside.append(guest)

    def leave(self, guest):
        if guest is None:
            return
        self.inside.remove(guest)
'''


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "double.py").write_text(CODE)
    (tmp_path / "tests" / "test_double.py").write_text(TEST)
    return Tree(tmp_path)


def mutant(before: str, after: str, *tests: str, where: str = "double", file: str = "") -> Mutant:
    return Mutant("a", before, after, "wrong", tests or ("tests/test_double.py",), where, file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "caught", "why"),
    [
        (mutant("    return 2 * n\n", "    return 3 * n\n"), True, "test_double"),
        (mutant("2", "3", where="", file="double.py"), True, "test_double"),
        (mutant("    return 2 * n\n", "    return n * 2\n"), False, "its tests pass"),
        (mutant("    return 2 * n\n", "    return 3 * n\n", "tests/test_double.py::test_none"), False, "did not run"),
        (mutant("    return 2 * n\n", "    return 3 * n\n", "tests/test_other.py"), False, "no tests/test_other.py"),
        (
            mutant("    return 4 * n\n", "    return 3 * n\n"),
            False,
            "0 times in double, not once; it occurs in no file",
        ),
        (mutant("n", "m"), False, "2 times in double, not once; it occurs in src/double.py"),
        (mutant("2 * n", "3 * n", where="triple"), False, "triple is not there; it occurs in src/double.py"),
        (mutant("2 * n", "3 * n", file="triple.py"), False, "double of triple.py is not there"),
        (mutant("2 * n", "2*n  # twice"), False, "changes nothing"),
        (mutant("    return 2 * n\n", "    return (2 * n\n"), False, "does not compile"),
    ],
    ids=[
        "bug",
        "by the file",
        "equivalent",
        "no such test",
        "no such file of tests",
        "changed",
        "twice",
        "renamed",
        "not in that file",
        "the same",
        "does not compile",
    ],
)
def test_the_tool_believes_only_tests_that_ran_and_failed(tree, planted, caught, why):
    outcome = try_one(planted, tree)
    assert outcome.caught is caught
    assert why in outcome.by
    assert (tree.root / "src" / "double.py").read_text() == CODE
    last = json.loads(report([outcome]).splitlines()[-1])
    assert last == {"planted": 1, "caught": int(caught), "survived": [] if caught else ["a"]}


@pytest.mark.parametrize(
    "code",
    [
        GUARD,
        GUARD.replace("guest is None:  #", "guest \\\n            is None:  #"),
        GUARD.replace(
            "            return\n        self.inside.a",
            "            # Such is life.\n            return\n\n        self.inside.a",
        ),
        f"import os\n\n{GUARD}",
    ],
    ids=["as it was", "another line", "another comment", "more above"],
)
@pytest.mark.parametrize("file", ["door.py", "far/away/gate.py"])
def test_a_place_is_found_though_files_move_and_lines_break_otherwise(tmp_path: Path, code: str, file: str) -> None:
    path = tmp_path / "src" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    planted = mutant("        if guest is None:\n            return\n", "", where="Door.enter")
    scope = planted.scope(Tree(tmp_path))
    assert scope.path == path
    said = scope.planted(planted.before, planted.after)
    assert said.count("if guest is None:") == 0
    assert "self.inside.append(guest)" in said
    assert "leave" not in said
    assert scope.parsed(said) != scope.parsed()


def test_lines_that_are_planted_are_indented_as_those_that_they_replace(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    lines = "".join(f"    {line}\n" if line else "\n" for line in GUARD.splitlines())
    (tmp_path / "src" / "door.py").write_text(f"if True:\n{lines}")
    before = "        if guest is None:\n            return\n        self"
    scope = Tree(tmp_path).find("Door.enter", "", before)
    said = scope.planted(before, "        if guest:\n            return\n        self")
    assert "            if guest:\n                return\n            self.inside.append(guest)\n" in said


def test_what_has_lost_its_place_fails_the_check(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([mutant("2 * n", "3 * n")], tree) == 0
    assert check([mutant("2 * n", "3 * n"), mutant("4 * n", "3 * n")], tree) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("a: its code occurs 0 times in double")


def test_a_file_says_where_each_mutant_is_planted_and_which_tests_those_have_that_name_none(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    entry = "[['{}']]\nname = '{}'\nharm = 'h'\nbefore = '1'\n"
    path.write_text(
        "tests = ['a']\n"
        + entry.format("f", "of-the-file")
        + entry.format("a.py::C.f", "its-own")
        + "after = '2'\ntests = ['b']\n"
        + entry.format("a.py", "outside")
    )
    found = [(each.file, each.where, each.after, each.tests) for each in load(tmp_path)]
    assert found == [("", "f", "", ("a",)), ("a.py", "C.f", "2", ("b",)), ("a.py", "", "", ("a",))]
    path.write_text(entry.format("f", "of-nothing"))
    with pytest.raises(ValueError, match="of-nothing: it names no tests"):
        load(tmp_path)
