"""Writes the settings in the form that type checkers read, from the classes that the clients read.

    python -m tools.typed_settings            # updates the files
    python -m tools.typed_settings --check    # says which are not up to date

A client takes its settings as keywords, `**more: Unpack[ConsumerKeywords]`, so a type checker knows each name and its
type. Nothing reads these files at run time.
"""

from __future__ import annotations

import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from muster.client.config import CHOICES, AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.client.security.settings import ENDPOINT_IDENTIFICATIONS, MECHANISMS, PROTOCOLS
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.consumers.watcher_config import WatcherConfig

SOURCE = Path(__file__).resolve().parents[1] / "src" / "muster"

FILES = {
    "client/typed_settings.py": (ClientConfig, ConsumerConfig, ProducerConfig, AdminConfig),
    "zookeeper/consumers/typed_settings.py": (WatcherConfig, ServerAssignedConfig),
}

HEAD = '''"""The settings of {}, as keywords for type checkers.

`python -m tools.typed_settings` writes this file.
"""

from __future__ import annotations

{}
'''

IMPORTS = {
    "client/typed_settings.py": """\
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from muster.assignors.base import Assignor
from muster.client.security.secret import Secret
""",
    "zookeeper/consumers/typed_settings.py": """\
from collections.abc import Iterable

from muster.client.typed_settings import ConsumerKeywords
""",
}

_CHOICES = CHOICES | {
    "security_protocol": PROTOCOLS,
    "sasl_mechanism": MECHANISMS,
    "ssl_endpoint_identification_algorithm": ENDPOINT_IDENTIFICATIONS,
}


def accepted(setting: Field[Any]) -> str:
    """What a keyword takes: more than the setting holds, such as one name instead of a tuple of names."""
    kind = str(setting.type)
    optional = " | None" if "None" in kind else ""
    if setting.name == "partition_assignment_strategy":
        return "str | Assignor | Iterable[str | Assignor]"
    if setting.name in _CHOICES:
        words: list[str | int] = list(_CHOICES[setting.name])
        if kind.startswith("int"):
            words += [int(word) for word in words if str(word).lstrip("-").isdecimal()]
        return f"Literal[{', '.join(map(quoted, words))}]{optional}"
    if kind.startswith("tuple[str"):
        return "str | Iterable[str]"
    if kind.startswith("Secret"):
        return f"str | {kind}"
    return kind


def quoted(word: str | int) -> str:
    return f'"{word}"' if isinstance(word, str) else str(word)


def typed(config: type[ClientConfig]) -> str:
    """One class of the file."""
    base = config.__mro__[1]
    known = {setting.name for setting in fields(base)} if base in sum(FILES.values(), ()) else set()
    name = config.__name__.replace("Config", "Keywords")
    parent = base.__name__.replace("Config", "Keywords") if known else "TypedDict"
    lines = [f"    {s.name}: {accepted(s)}" for s in fields(config) if s.name not in known]
    return "\n".join(
        [f"class {name}({parent}, total=False):", f'    """The settings of `{config.__name__}`."""', "", *lines]
    )


def text(file: str) -> str:
    """The text that a file must have."""
    whose = "consumers, producers and admin clients" if file.startswith("client") else "consumers of ZooKeeper's groups"
    return "\n\n\n".join([HEAD.format(whose, IMPORTS[file]).rstrip("\n"), *map(typed, FILES[file])]) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files, or only say which of them are not up to date."""
    old = [file for file in FILES if not (SOURCE / file).exists() or (SOURCE / file).read_text() != text(file)]
    if "--check" in arguments:
        for file in old:
            print(f"src/muster/{file} is not up to date: python -m tools.typed_settings", file=sys.stderr)
        return 1 if old else 0
    for file in old:
        (SOURCE / file).write_text(text(file))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
