"""Finding Python and Java for a Spark session, without starting one."""

import os
import subprocess
import sys

import pytest

from muster.errors import ConfigError
from muster.spark import sessions


def fake_java(folder, version):
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\nfor word do echo "[$word]"; done\n')
    command.chmod(0o755)
    return command


def test_a_java_that_is_new_enough_is_used(monkeypatch, tmp_path):
    command = fake_java(tmp_path, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert sessions.use_java() == str(command)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_an_older_one_is_passed_over_for_the_packaged_one(monkeypatch, tmp_path, version):
    fake_java(tmp_path / "old", version)
    packaged = fake_java(tmp_path / "it's packaged", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sessions, "_packaged_java", lambda: packaged)
    command = sessions.use_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "cache" / "muster" / "jre")
    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", "*"]
    done = subprocess.run([command, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Da=b c]", "[*]"]
    assert sessions.java_version(command) == 25


def test_without_any_it_is_said_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sessions, "_packaged_java", lambda: None)
    with pytest.raises(ConfigError, match=r"Java 17 or newer, and none is found: .* muster-kafka\[jre\]"):
        sessions.use_java()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_the_extra_it_is_said_which_one_to_install(missing):
    script = f"import sys; sys.modules[{missing!r}] = None\nimport muster.spark"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    says = f"the Spark source needs {missing}, which is not installed: pip install 'muster-kafka[spark]'"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {says}"
