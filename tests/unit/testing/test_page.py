"""docs/testing.md lists all existing fixtures, options, effects, fields and waits; test-broker.md the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import muster.testing
from muster import MusterError
from muster.testing import Kafka, control, pytest_plugin
from muster.testing.rules import conditions
from muster.testing.rules.faults import EFFECTS, Rule

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("testing.md", "reference/test-broker.md"))


def rows(head: str) -> list[list[str]]:
    """The cells of the table whose header row begins with this."""
    [found] = re.findall(rf"^\| {head} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in found.splitlines()]


def words(head: str) -> list[str]:
    """The code names in a table's first column."""
    return [name for row in rows(head) for name in re.findall(r"`([^`]+)`", row[0])]


def test_fixtures() -> None:
    fixtures = {name for name in vars(pytest_plugin) if re.fullmatch("muster_[a-z_]+", name)}
    assert sorted(words("fixture")) == sorted(fixtures)


class Parser:
    """The options that the plugin adds to pytest."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.options: list[str] = []

    def addini(self, name: str, help: str, **more: Any) -> None:
        self.settings[name] = more.get("default")

    def getgroup(self, *names: str) -> Parser:
        return self

    def addoption(self, name: str, **more: Any) -> None:
        self.options.append(name)


def test_options() -> None:
    parser = Parser()
    pytest_plugin.pytest_addoption(parser)  # type: ignore[arg-type]
    assert words("setting") == list(parser.settings)
    assert [row[1].strip("`") for row in rows("setting") if row[1]] == parser.options
    written = {"none": None, "false": False, "0": 0, "3": 3}
    assert [written[row[2]] for row in rows("setting")] == list(parser.settings.values())


def test_effects() -> None:
    assert {row[0].strip("`"): row[1] for row in rows("effect")} == EFFECTS


def test_fields() -> None:
    assert sorted(words("field")) == sorted({each.name for each in fields(Rule)} - {"do", "apis"})


def test_waits() -> None:
    shown = [word.partition("(")[0] for word in words("method of `Kafka`")]
    assert sorted(shown) == sorted(name for name in dir(Kafka) if name.startswith("until"))
    [wait] = [row[1] for row in rows("command") if row[0] == "`POST /wait`"]
    named, more = wait.split(")")
    assert set(re.findall(r"`(\w+)`", named)) - {"until"} == set(conditions._CONDITIONS)
    allowed = set().union(*(allowed for _, allowed in conditions._CONDITIONS.values()))
    assert set(re.findall(r"`(\w+)`", more)) == allowed | {"group", "timeout_ms"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with muster.testing.kafka(in_process=True) as kafka:
        yield kafka


@pytest.mark.parametrize("command", words("command"))
def test_each_command_is_one(kafka: Kafka, command: str) -> None:
    method, path = command.split(" ")
    refused = ""
    try:
        kafka.ask_all(method, path, {} if method == "POST" else None)
    except MusterError as error:  # it needs a body, or there is no such fault or group
        refused = str(error)
    assert not re.search(r"is not a command|is not an operation", refused)
    with pytest.raises(MusterError, match="is not a command"):
        kafka.ask_all(method, f"{path}s/x/y/z")


def test_no_command_is_left_out() -> None:
    source = Path(control.__file__).read_text()
    found = {(method, path) for method, path in re.findall(r'case "([A-Z]+)", "(\w+)"', source)}
    found |= {(method, path) for path in ("faults", "groups") for method in ("GET", "POST")}
    shown = {(method, path.split("/")[1]) for method, path in map(str.split, words("command"))}
    assert found <= shown
    acts = re.findall(r'case "(\w+)":', source)
    assert {path.rpartition("/")[2] for path in words("command") if "/groups/GROUP/" in path} == set(acts)
