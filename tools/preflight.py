"""What the Makefile asks of the machine before anything is installed. Runs on any Python 3, even one that is too old.

python tools/preflight.py python   exits 0 if this interpreter can run muster; otherwise says in a sentence why not
python tools/preflight.py java     exits 0 if a Java runtime of 17 or newer is found (JAVA_HOME first, then PATH)
python tools/preflight.py compiler exits 0 if modules in C can be built for this interpreter; otherwise says what is
missing
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

OLDEST, NEWEST = (3, 11), (3, 13)
OLDEST_JAVA = 17


def python_complaint() -> str:
    """Say what is wrong with this interpreter, or nothing."""
    if os.name == "nt" or sys.platform in ("win32", "cygwin", "msys"):
        return "muster runs on Linux and macOS; on Windows use it inside WSL 2."
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        known = "{}.{} to {}.{}".format(*OLDEST + NEWEST)
        this = "{}.{}".format(*sys.version_info[:2])
        return f"muster needs Python {known}; {sys.executable} is {this}. Run `make PYTHON=/path/to/python3.x`."
    try:
        __import__("venv")
        __import__("ensurepip")
    except ImportError:
        return f"{sys.executable} has no venv module: install it (on Debian and Ubuntu the package python3-venv)."
    return ""


def java_version(command: str) -> int:
    """Return the feature version of one java command, or 0 if it does not run."""
    try:
        text = subprocess.run([command, "-version"], capture_output=True, check=False).stderr.decode()
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def compiler_complaint() -> str:
    """Say what is missing to build a module in C for this interpreter, or nothing."""
    headers = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(headers, "Python.h")):
        return f"There is no Python.h in {headers}: install it (on Debian and Ubuntu the package python3-dev)."
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return "" if shutil.which(command) else f"There is no C compiler ({command} was not found): install one."


def main() -> int:
    """Answer the one question asked."""
    if sys.argv[1:] == ["java"]:
        home = os.environ.get("JAVA_HOME")
        return 0 if java_version(os.path.join(home, "bin", "java") if home else "java") >= OLDEST_JAVA else 1
    complaint = compiler_complaint() if sys.argv[1:] == ["compiler"] else python_complaint()
    if complaint:
        print(complaint)
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
