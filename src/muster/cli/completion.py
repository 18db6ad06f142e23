"""`muster completion`: a script that makes a shell complete commands and options."""

from __future__ import annotations

import argparse

from muster.errors import ConfigError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `muster completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script, which the shell evaluates when it starts: `eval "$(muster completion bash)"`."""
    try:
        import shtab
    except ImportError:
        raise ConfigError("muster completion needs shtab: pip install 'muster-kafka[completion]'") from None
    from muster.cli.main import whole_parser

    print(shtab.complete(whole_parser(), arguments.shell))
    return 0
