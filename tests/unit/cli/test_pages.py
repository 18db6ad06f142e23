"""The pages name only commands and options that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.cli.main import COMMANDS, whole_parser
from tools import command_page

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
OPTIONS = {
    tuple(name.split()): {word for action in parser._actions for word in action.option_strings}
    for name, _, parser in command_page.commands(whole_parser())
}
SPLIT = {name[:1] for name in OPTIONS if len(name) > 1}
"""Commands that require an action after them."""


def test_the_page_of_commands_is_up_to_date() -> None:
    assert command_page.PAGE.read_text() == command_page.page(), "run: python -m tools.command_page"


def command_lines(text: str) -> Iterator[str]:
    """The commands in a page's code: after `muster`, or a command with arguments without it."""
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            yield from re.findall(r"(?:^|[$|] )muster ([a-z][^|>&#]*)", line)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        words = code.split()
        if words[0] == "muster" and len(words) > 1:
            yield " ".join(words[1:])
        elif words[0] in COMMANDS and len(words) > 1:
            yield " ".join(words)


def faults(line: str) -> list[str]:
    """The parts of a command line that no command accepts."""
    words = line.split()
    if words[0].startswith(("-", "COMMAND")):
        return []
    name = tuple(words[:2]) if tuple(words[:1]) in SPLIT else tuple(words[:1])
    if name not in OPTIONS:
        # `muster topics`, or several at once: `groups list|describe`.
        return [] if name in SPLIT or "|" in line else [f"no command {' '.join(name)}"]
    return [f"{' '.join(name)} has no {one}" for one in OPTION.findall(line) if one not in OPTIONS[name]]


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("topics create flights --partitions 8", []),
        ("topics create flights --partition 8", ["topics create has no --partition"]),
        ("topics make flights", ["no command topics make"]),
        ("groups --bootstrap localhost:9192", ["no command groups --bootstrap"]),
        ("serv", ["no command serv"]),
        ("lag -z", ["lag has no -z"]),
        ("groups reset-offsets g --shift-by -1", []),
        ("topics", []),
    ],
)
def test_faults_are_found(line: str, reported: list[str]) -> None:
    assert faults(line) == reported


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    assert [fault for line in command_lines(page.read_text()) for fault in faults(line)] == []


def test_commands_are_looked_for_on_the_pages() -> None:
    assert sum(len(list(command_lines(page.read_text()))) for page in PAGES) > 100


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for a page's headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = (
        re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    nowhere = []
    for link in re.findall(r"]\(([^)\s]+)\)", prose):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not link.startswith("https://") and (not target.exists() or (anchor and anchor not in anchors(target))):
            nowhere.append(link)
    assert nowhere == []
