"""Confirmation before an operation that cannot be undone: asked of people, not of scripts."""

from __future__ import annotations

import argparse
import io

import pytest

from muster.cli.administer.confirmation import confirm, some
from muster.errors import MusterError


class Terminal(io.StringIO):
    """A terminal at which a person types."""

    def isatty(self) -> bool:
        return True


def ask(yes: bool = False) -> None:
    confirm(argparse.Namespace(yes=yes), "Delete t?")


@pytest.mark.parametrize("answer", ["y\n", "Y\n", "yes\n", " YES \n"])
def test_yes_continues(monkeypatch, capsys, answer):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ask()
    reported = capsys.readouterr()
    assert (reported.out, reported.err) == ("", "Delete t? [y/N] ")


@pytest.mark.parametrize("answer", ["\n", "n\n", "no\n", "yeah\n", "", "jy\n"])
def test_anything_else_changes_nothing(monkeypatch, capsys, answer):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(MusterError, match="nothing was changed: the answer was not yes"):
        ask()
    assert capsys.readouterr().err == "Delete t? [y/N] " + "\n" * (answer == "")


@pytest.mark.parametrize("stdin", [io.StringIO("n\n"), None])
def test_scripts_are_not_asked(monkeypatch, capsys, stdin):
    monkeypatch.setattr("sys.stdin", stdin)
    ask()
    assert capsys.readouterr().err == ""


def test_yes_beforehand(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ask(yes=True)
    assert capsys.readouterr().err == ""


def test_not_all_of_many_names_are_shown():
    assert some(["a", "b"]) == "a, b"
    assert some(list("abcdefg")) == "a, b, c, d, e and 2 more"
