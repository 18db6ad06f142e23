"""Where a mutant is planted: in a function or class that is found by its name, at a few tokens of its code.

Files may be moved, lines rewrapped and comments rewritten: the tokens are compared, not the text, in every function
of that name under `src`. `python -m tools.anchors` says which mutants no longer match the code.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDERS = ("src", "tests", "tools", "benchmarks")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
QUOTED = r'"""(?:[^\\]|\\.)*?"""|' + r"'''(?:[^\\]|\\.)*?'''|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
TOKEN = re.compile(rf"#[^\n]*|(?:\b[A-Za-z]{{1,2}})?(?:{QUOTED})|\w+|->|:=|[-+*/%&|^<>=!@]+|[^\s\\]", re.DOTALL)


def tokens(text: str) -> list[re.Match[str]]:
    """The tokens of code, or of a piece of it: neither comments, line ends nor indentation."""
    return [found for found in TOKEN.finditer(text) if not found.group().startswith("#")]


@dataclass(frozen=True)
class Scope:
    """A function, a class or a whole file (whose name is empty)."""

    path: Path
    name: str
    text: str
    """From the start of its first line."""
    start: int
    """The position of that line in the file."""

    @cached_property
    def _tokens(self) -> list[re.Match[str]]:
        return tokens(self.text)

    @cached_property
    def _joined(self) -> str:
        return _join(self._tokens)

    def count(self, wanted: str) -> int:
        """How often these tokens occur in it."""
        return self._joined.count(_join(tokens(wanted)))

    def planted(self, before: str, after: str) -> str:
        """Its text with `after` instead of `before`, which occurs in it once; whole lines are indented to match."""
        first, *_ = wanted = tokens(before)
        index = self._joined[: self._joined.index(_join(wanted))].count("\0")
        start, end = self._tokens[index].start(), self._tokens[index + len(wanted) - 1].end()
        line = self.text.rfind("\n", 0, start) + 1
        if self.text[line:start].strip():
            return self.text[:start] + after.strip() + self.text[end:]
        deeper = (start - line) - (first.start() - before.rfind("\n", 0, first.start()) - 1)
        return self.text[:line] + _indented(after.strip("\n"), deeper) + self.text[end:]

    def parsed(self, text: str | None = None) -> str:
        """The function's syntax tree, without its layout, or the tree of a text that would replace the function.

        Raises:
            SyntaxError: the text does not compile.
        """
        text = self.text if text is None else text
        return ast.dump(ast.parse(f"if True:\n{text}" if self.text[:1].isspace() else text))


def _join(found: list[re.Match[str]]) -> str:
    return "".join(f"\0{token.group()}" for token in found) + "\0"


def _indented(text: str, deeper: int) -> str:
    """The lines of a text some columns further to the right, or to the left."""
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        lines.append(" " * (len(line) - len(bare) + deeper) + bare if bare else "")
    return "\n".join(lines)


def scopes(path: Path) -> Iterator[Scope]:
    """A file, and all functions and classes in it."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    yield Scope(path, "", text, 0)

    def within(node: ast.AST, above: str) -> Iterator[Scope]:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, SCOPES):
                name = f"{above}.{child.name}".lstrip(".")
                start = starts[min([child.lineno, *(one.lineno for one in child.decorator_list)]) - 1]
                yield Scope(path, name, text[start : starts[child.end_lineno or 0]], start)
            if not isinstance(child, ast.expr):
                yield from within(child, name)

    yield from within(ast.parse(text), "")


class Tree:
    """A tree of sources, each read when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def _by_name(self) -> dict[str, list[Scope]]:
        found: dict[str, list[Scope]] = defaultdict(list)
        for folder in FOLDERS:
            for path in sorted((self.root / folder).rglob("*.py")):
                for scope in scopes(path):
                    found[scope.name].append(scope)
        return found

    def find(self, where: str, file: str, before: str) -> Scope:
        """The scope of this name, in a file whose path ends with `file`, that contains the tokens once.

        Raises:
            LookupError: there is none, or more than one.
        """
        named = [
            scope for scope in self._by_name.get(where, ()) if str(scope.path).endswith(f"/{file}" if file else "")
        ]
        within = " of ".join(name for name in (where, file) if name)
        if not named:
            raise LookupError(f"{within} is not there{self._elsewhere(before)}")
        counts = [scope.count(before) for scope in named]
        if sum(counts) != 1:
            raise LookupError(f"its code occurs {sum(counts)} times in {within}, not once{self._elsewhere(before)}")
        return named[counts.index(1)]

    def _elsewhere(self, before: str) -> str:
        files = [str(scope.path.relative_to(self.root)) for scope in self._by_name[""] if scope.count(before)]
        return f"; it occurs in {', '.join(files[:3]) or 'no file'}"
