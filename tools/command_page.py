"""Writes docs/reference/commands.md from the parsers of the commands. `python -m tools.command_page` updates it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from muster.cli.common import add_connection, add_timeout
from muster.cli.main import whole_parser
from tools.settings_pages import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"

HEAD = """\
# Commands

What `muster COMMAND --help` says, on one page. `python -m tools.command_page` writes it from the commands themselves; a
test checks that it is up to date. [admin.md](../admin.md) has examples, with what they print.

The exit code is 0 on success, 1 with a sentence on standard error on failure, 2 for a wrong command line,
and 130 after Ctrl-C.

Commands that connect to a cluster also have these options:

"""

COLUMNS = ("argument", "meaning")
WITH_A_CLUSTER = "\nAlso: the [options of commands that connect to a cluster](#commands).\n"


def page() -> str:
    """The text of docs/reference/commands.md."""
    common = _common()
    parts = [HEAD, *table(COLUMNS, common.items())]
    for name, about, parser in commands(whole_parser()):
        rows = dict(_rows(parser))
        own = [(option, text) for option, text in rows.items() if common.get(option) != text]
        parts.append(f"\n## `muster {name}`\n\n{about[0].upper()}{about[1:].rstrip('.')}.\n")
        if own:
            parts += ["\n", *table(COLUMNS, own)]
        if len(own) < len(rows):
            parts.append(WITH_A_CLUSTER)
    return "".join(parts)


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command that runs something: its name, its line in the help, its parser."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        told = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for word, sub in action.choices.items():
            below = list(commands(sub, f"{name} {word}".strip()))
            yield from below or [(f"{name} {word}".strip(), told[word], sub)]


def _common() -> dict[str, str]:
    parser = argparse.ArgumentParser(add_help=False)
    add_connection(parser)
    add_timeout(parser)
    return dict(_rows(parser))


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    formatter = parser._get_formatter()
    for action in sorted(parser._actions, key=lambda one: bool(one.option_strings)):
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        text = formatter._expand_help(action) if action.help else ""
        yield f"`{_written(action)}`".replace("|", "\\|"), text.replace("|", "\\|")


def _written(action: argparse.Action) -> str:
    """An argument as written on a command line."""
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    choices = ",".join(map(str, action.choices)) if action.choices else ""
    value = action.metavar or (f"{{{choices}}}" if choices else action.dest.upper())
    assert isinstance(value, str)
    if names:
        return f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"
    return {"?": f"[{value}]", "*": f"[{value} …]", "+": f"{value} …"}.get(str(action.nargs), value)


if __name__ == "__main__":
    PAGE.write_text(page())
