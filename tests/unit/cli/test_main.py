"""The command line: one-sentence errors instead of tracebacks."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster import __version__
from muster.cli import main as command
from tools import settings_pages


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "muster", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_is_there(name: str):
    module = importlib.import_module(command.COMMANDS[name].module)
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_help_and_version(capsys: pytest.CaptureFixture[str]):
    assert command.main([]) == 2
    assert "run a broker" in capsys.readouterr().out
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
        (["--port", "99999"], "--port 99999: must be 0 to 65535"),
        (["--log-level", "debug", "--config", "none.toml"], "cannot read none.toml"),
        (["--port", "0", "--data-dir", "file"], "cannot use file as the data folder"),
        (["--port", "0", "--host", "256.0.0.1", "--data-dir", "data"], "cannot listen on 256.0.0.1:0"),
        (["--port", "0", "--host", "0.0.0.0", "--data-dir", "data"], "to which clients cannot connect"),
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


def test_it_runs_as_a_module_too():
    done = subprocess.run([sys.executable, "-m", "muster", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"muster {__version__}\n"


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path: Path):
    """The interrupt comes while the command's modules are being imported: here one of them sends it."""
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "import runpy, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"sys.path.insert(0, {str(tmp_path)!r})\nrunpy.run_module('muster', run_name='__main__')"
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("redirection", ["<&-", ">&-"])
def test_a_closed_stream_is_reported_in_a_sentence(redirection: str):
    """As after a shell's `<&-` and `>&-`."""
    command = {"<&-": "produce t", ">&-": "consume t"}[redirection]
    shell = f"exec {sys.executable} -m muster {command} --bootstrap 127.0.0.1:1 {redirection}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("muster: standard ")
    assert "is closed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_closed_input_is_reported_before_anything_is_connected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The sequence: the producer's thread finds no broker and reports it; then standard input turns out to be
    closed."""
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("muster.cli.stream.produce.Producer.start", lambda _: pytest.fail("it has begun to connect"))
    assert command.main(["produce", "t", "--bootstrap", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "muster: standard input is closed: there is nothing to produce\n"


def test_other_commands_are_not_imported():
    code = "import sys; from muster.cli import main; main.main([]); sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_without_kazoo_the_error_says_what_is_missing(tmp_path: Path):
    code = "import sys; sys.modules['kazoo'] = None; from muster.cli import main; sys.exit(main.main(sys.argv[1:]))"
    where = ["serve", "--zookeeper", "127.0.0.1:1", "--broker-id", "1", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run([sys.executable, "-c", code, *where], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "muster: a cluster on ZooKeeper needs kazoo: pip install 'muster-kafka[zookeeper]'\n"


def test_a_consumer_that_watches_without_kazoo_says_what_to_install():
    code = "import sys; sys.modules['kazoo'] = None\n"
    for name in ("WatcherConsumer", "AsyncWatcherConsumer"):
        code += f"try: from muster.zookeeper import {name}\nexcept ModuleNotFoundError as error: print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    says = "needs kazoo, which is not installed: pip install 'muster-kafka[zookeeper]'"
    assert done.stdout == f"WatcherConsumer {says}\nAsyncWatcherConsumer {says}\n"


@pytest.mark.parametrize("name", ["serve", "test-broker"])
def test_a_broker_alone_imports_only_what_it_runs(name: str, tmp_path: Path):
    """Most of its startup time is spent on imports."""
    program = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "muster",
        name,
        "--port",
        "0",
        "--data-dir",
        str(tmp_path / "d"),
    ]
    broker = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    assert "ready on" in broker.stdout.readline()
    broker.terminate()
    imported = {line.split("|")[-1].strip() for line in broker.communicate()[1].splitlines()}
    assert "muster.broker.broker" in imported
    unused = ("muster.assignors", "muster.client", "muster.zookeeper", "kazoo", "numpy", "pyarrow", "pyspark", "rich")
    assert [each for each in sorted(imported) if each.startswith(unused)] == []


def test_a_shell_completes_commands_and_options():
    """As for a user: bash reads the script, and is asked for completions."""
    script = run("completion", "bash").stdout
    ask = f"""{script}
COMP_WORDS=(muster top); COMP_CWORD=1; COMP_LINE="muster top"; _shtab_muster; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(muster topics create --part); COMP_CWORD=3; _shtab_muster; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["topics", "--partitions"]


def test_the_page_of_settings_is_up_to_date():
    assert settings_pages.PAGE.read_text() == settings_pages.page(), "run: python -m tools.settings_pages"
