"""The command line: sentences instead of tracebacks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import main as command


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "muster.cli.main", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_is_there(name: str):
    module = importlib.import_module(command.COMMANDS[name].module)
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_help_and_version(capsys: pytest.CaptureFixture[str]):
    assert command.main([]) == 2
    assert "run a broker on a folder" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        command.main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith("muster ")


def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "platform", "win32")
    assert command.main(["serve"]) == 1
    assert "Linux and macOS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "num.partition=3"], "did you mean num.partitions?"),
        (["--port", "99999"], "--port is 0 to 65535, not 99999"),
        (["--config", "none.toml"], "cannot read none.toml"),
        (["--port", "0", "--data-dir", "file"], "cannot use file as the data folder"),
        (["--port", "0", "--host", "256.0.0.1", "--data-dir", "data"], "cannot listen on 256.0.0.1:0"),
    ],
)
def test_a_broker_that_cannot_start_says_why(tmp_path: Path, arguments: list[str], sentence: str):
    (tmp_path / "file").touch()
    done = run("serve", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("muster: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_other_commands_are_not_imported():
    code = "import sys; from muster.cli import main; main.main([]); sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
