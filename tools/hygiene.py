"""What no tracked file may hold: host names of package registries and paths of one person's machine.

Lock files and build files work with whatever index or mirror a reader has set up, and no page sends a reader to a
folder that only its author has.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Written in pieces, so that this file passes its own check.
REGISTRIES = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("maven", "org"),
    ("repo.maven.apache", "org"),
    ("npmjs", "org"),
    ("crates", "io"),
    ("proxy.golang", "org"),
    ("deb.debian", "org"),
)
HOST = re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES))
HOME = re.compile(r"(?<![\w.~$}])/(?:home|Users)/[A-Za-z]|(?<![\w.~$}])/ro" + r"ot/")


def tracked() -> list[Path]:
    """Every file under version control, or that is about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def complaints(path: Path, machine: re.Pattern[str]) -> list[str]:
    """The lines of one file that must not be there."""
    found = []
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        for what, pattern in (
            ("a registry's host name", HOST),
            ("a machine's path", HOME),
            ("this machine's path", machine),
        ):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {what}: {match.group()}")
    return found


def main() -> int:
    """Print every complaint; the exit code says whether there was one."""
    here = {str(ROOT.parent), str(Path.home())} - {"/", "/tmp", "/src"}
    machine = re.compile("|".join(rf"(?<![\w.~$}}]){re.escape(path)}/" for path in sorted(here)) or r"(?!)")
    found = [line for path in tracked() if path.is_file() for line in complaints(path, machine)]
    print("\n".join(found) if found else "hygiene: nothing that only this machine knows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
