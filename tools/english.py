"""Phrases that a native technical writer would not use: none in code, messages, comments or docs.

python tools/english.py [FOLDER…]
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".md"}
FOLDERS = ("src", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")

BANNED = {
    r"(?<!there )(?<!what )\b(?:is|are|was|were|be|being) no (?!longer|later|earlier|other|more|less)\w": (
        "is not a …, has no …"
    ),
    r"(?<!there )\b(?:is|are|was|were|be) (?-i:none)\b(?! of)": "there is none, is not one",
    r"\btold\b": "reported, said, notified, given",
    r"\b(?:go|goes|going|went|gone) on\b": "continue, happen, proceed",
    r"\b(?:have|has|had) \w+ done\b": "do it, or say who does it",
    r"\bwhat is given\b|\bwhat was given\b": "the value, the setting",
    r"\bis to be\b|\bare to be\b": "must be, should be, will be",
    r"\bin (?:its|their) stead\b|\bin the midst of\b|\bby its side\b": "instead, during, beside it",
    r"\bso many\b(?! that)": "this many, how many",
    r"\ba way to\b(?= a \w+ server)": "a proxy",
    r"\bcome to pass\b|\bcame to pass\b|\bcomes about\b": "happen",
    r"\bof its own accord\b|\bby and by\b|\bthereupon\b|\bwhereupon\b|\bhence\b": "plain words",
    r"\bfor ever\b(?!y)": "forever",
    r"\bnot to be had\b": "not available",
    r"\bback-offs?\b": "backoff",
    r"\bno more\b(?= [.,;:)])|\bis no more\b|\bare no more\b": "no longer exists",
    r"\bany more\b(?! than)": "no longer",
    r"\bso often\b(?! that)": "this many times",
    r"\bheard of (?:it|ZooKeeper|them)\b": "heard from",
    r"\btells? so\b": "says so",
    r", else (?!if\b|[:{])(?=[\w`])": "otherwise, or",
    r"\b(?:from|since) which on\b": "since",
    r"\b(?:its|their|the) present (?!day\b|perfect\b)[a-z]": "current",
    r"(?<!are )(?<!is )\ball the same(?=[.,;:)])": "anyway",
    r"\bif need be\b": "if needed",
    r"\bin one go\b": "without a break, in one call",
    r"\btaken for (?!granted\b)(?=[a-z])": "mistaken for",
    r"\bgood answer\b": "successful response",
    r"\bby its own belief\b|\bin one's stead\b": "as it believes",
    r"\btake note of\b|\btakes note of\b": "record, note",
    r"\bwhat became of\b": "the outcome of",
}
"""Patterns, each with what to write instead. `There is no leader` is English; `it is no leader` is not."""

_RULES = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in BANNED.items()]


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page; of a program those of its strings and comments, without its names."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def findings(path: Path) -> Iterator[str]:
    """The banned phrases of a file, each with its line."""
    for number, line in sentences(path):
        for rule, instead in _RULES:
            for match in rule.finditer(line):
                yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r} - {instead}"


def main(arguments: list[str]) -> int:
    """Print what was found; 1 if there is anything."""
    found = [
        finding
        for folder in arguments or FOLDERS
        for path in sorted((ROOT / folder).rglob("*") if (ROOT / folder).is_dir() else [ROOT / folder])
        if path.suffix in SUFFIXES and path.is_file()
        for finding in findings(path)
    ]
    print("\n".join(found) or "english: no banned phrase")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
