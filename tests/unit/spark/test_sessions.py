"""Finding Python and Java for a Spark session, without starting one."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from muster.errors import ConfigError, MusterError
from muster.local import java
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
def test_the_packaged_one_is_preferred_to_an_older_one(monkeypatch, tmp_path, version):
    fake_java(tmp_path / "old", version)
    packaged = fake_java(tmp_path / "it's packaged", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "packaged_java", lambda: packaged)
    command = sessions.use_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "cache" / "muster" / "jre")
    given = ["-Da=b c", "--add-modules=jdk.incubator.vector", "*"]
    done = subprocess.run([command, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Da=b c]", "[*]"]
    assert java.java_version(command) == 25


def test_without_any_it_is_said_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    with pytest.raises(ConfigError, match=r"Java 17 or newer, and none is found: .* 'muster-kafka\[jre\]'"):
        sessions.use_java()


def test_a_wrong_java_home_is_named(monkeypatch, tmp_path):
    fake_java(tmp_path, "21")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    with pytest.raises(ConfigError, match=r"and .*/gone/bin/java \(from JAVA_HOME\) does not run: "):
        sessions.use_java()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_the_extra_it_is_said_which_one_to_install(missing):
    script = f"import sys; sys.modules[{missing!r}] = None\nimport muster.spark"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    says = f"muster.spark needs {missing}, which is not installed: pip install 'muster-kafka[spark]'"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {says}"


@pytest.fixture
def _chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("PYSPARK_PYTHON", "SPARK_HOME", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def as_spark_starts_it(code, path):
    done = subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", code, "an argument"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.stdout.splitlines()


@pytest.mark.usefixtures("_chosen")
def test_on_this_machine_workers_import_the_installed_pyspark():
    sessions.use_python(True)
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    code = "import pyspark, sys; print(pyspark.__file__, sys.executable, *sys.argv[1:], *sys.path[1:3], sep='\\n')"
    expected = [pyspark.__file__, sys.executable, "an argument", "/first", "/se cond"]
    assert archive.is_file()
    assert as_spark_starts_it(code, f"{archive}:/first:/se cond") == expected
    assert as_spark_starts_it(code, "/first:/se cond") == expected


@pytest.mark.usefixtures("_chosen")
def test_a_cluster_s_workers_are_given_no_command_of_this_machine(monkeypatch):
    sessions.use_python(True)
    sessions.use_python(False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    sessions.use_python(True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.usefixtures("_chosen")
def test_the_user_s_python_is_left_alone(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/the/user's")
    for local in (True, False):
        sessions.use_python(local)
        assert os.environ["PYSPARK_PYTHON"] == "/the/user's"


@pytest.mark.usefixtures("_chosen")
def test_where_no_wrapper_can_be_kept_or_run_workers_are_this_python(monkeypatch, tmp_path):
    sessions.use_python(True)
    wrapper = Path(os.environ["PYSPARK_PYTHON"])
    assert wrapper.is_relative_to(tmp_path)
    wrapper.chmod(0o644)  # as in a folder that is mounted noexec
    sessions.use_python(True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    sessions.use_python(True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_wrapper_for_names_with_spaces(monkeypatch, tmp_path):
    fake = tmp_path / "my {zip} python"
    fake.write_text('#!/bin/sh\necho "$PYTHONPATH"; for word do echo "[$word]"; done\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    wrapper = tmp_path / "wrapper"
    sessions._write_command(wrapper, sessions.wrap_python(Path("/a *'s/x.zip")))
    for path, rest in (("/a *'s/x.zip:/b", "/b"), ("/a b's/x.zip:/b", "/a b's/x.zip:/b")):
        done = subprocess.run(
            [wrapper, "-m", "a b"], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
        )
        assert done.stdout.splitlines() == [rest, "[-m]", "[a b]"]


@pytest.mark.slow
def test_a_session_whose_workers_lack_muster_is_refused(tmp_path):
    """Otherwise the first query ends with pages of output that say: No module named 'muster'."""
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    other.chmod(0o755)
    script = (
        "from pyspark.sql import SparkSession\nfrom muster.spark import register\n"
        "register(SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate())"
    )
    sessions.use_java()
    environment = os.environ | {"PYSPARK_PYTHON": str(other), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        f"muster.errors.ConfigError: {other}, which Spark starts for its workers, does not have muster: set "
        f"PYSPARK_PYTHON to {sys.executable} before creating the session, or create it with muster.spark.session()"
    )


def test_what_has_muster(tmp_path):
    assert sessions._has_muster(sys.executable)
    assert not sessions._has_muster(str(tmp_path / "gone"))


def test_an_invalid_port_for_metrics_is_refused_in_the_callers_words():
    with pytest.raises(MusterError, match=r"^port must be 0 to 65535, not 99999"):
        sessions.serve_metrics(None, 99_999)
