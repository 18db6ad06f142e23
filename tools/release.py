"""What a release is: the sdist and both wheels in dist/, each installed and tried as a user would.

    make release

It publishes nothing; upload the files in `dist/`. The wheel with compiled modules is for this Python and this system;
pip uses it where it fits, and the wheel of sources everywhere else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TRY = """
import muster.testing
from muster import Consumer, Producer

with muster.testing.kafka() as broker:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("orders", value=b"42")
    with Consumer(bootstrap_servers=broker.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert next(consumer).value == b"42"
"""
COMPILED = "import muster.protocol.codec as codec; print(codec.__file__.endswith('.so'))"


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command to its end; its output."""
    return subprocess.run([*map(str, command)], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def tracked() -> set[str]:
    """The files of the repository."""
    return set(run("git", "ls-files").splitlines())


def wrong_in_sdist(sdist: Path) -> list[str]:
    """Files of an sdist that the repository does not have."""
    with tarfile.open(sdist) as found:
        names = {member.name.partition("/")[2] for member in found if member.isfile()}
    return sorted(names - tracked() - {"PKG-INFO"})


def try_out(package: Path, *, is_compiled: bool) -> None:
    """Install a package into an environment of its own, and consume a record in a group with it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(sys.executable, "-m", "venv", place / "venv")
        python = place / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
        run(python, "-m", "pip", "check")
        said = run(place / "venv" / "bin" / "muster", "--version", folder=place)
        version = re.escape(package.name.split("-")[1].removesuffix(".tar.gz"))
        if not re.search(rf"\b{version}\b", said):
            raise SystemExit(f"{package.name}: muster --version says {said.strip()!r}")
        if run(python, "-c", COMPILED, folder=place).strip() != str(is_compiled):
            raise SystemExit(f"{package.name}: its modules should be {'compiled' if is_compiled else 'sources'}")
        run(python, "-c", TRY, folder=place)
    print(f"{package.name}: installed, consumed a record in a group")


def main() -> int:
    """Build the sdist next to the wheels, and try all three."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST)
    [sdist], [sources], [compiled] = DIST.glob("*.tar.gz"), DIST.glob("*.whl"), (DIST / "compiled").glob("*.whl")
    version = sources.name.split("-")[1]
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        raise SystemExit(f"CHANGELOG.md has no section {version}")
    wrong = wrong_in_sdist(sdist)
    if wrong:
        raise SystemExit(f"{sdist.name} has files that are not in the repository: {', '.join(wrong)}")
    with zipfile.ZipFile(sources) as wheel:
        if not any(name.endswith("licenses/LICENSE") for name in wheel.namelist()):
            raise SystemExit(f"{sources.name} has no licence")
    for package in (sources, sdist, compiled):
        try_out(package, is_compiled=package is compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
