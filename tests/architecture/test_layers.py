"""The layers and the purity of the rules, read from the sources alone (lint-imports checks the same by contract)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
HEIGHT = {
    **dict.fromkeys(("model", "errors"), 0),
    **dict.fromkeys(("protocol", "assignors"), 1),
    **dict.fromkeys(("log", "arrow", "metrics", "pages"), 2),
    **dict.fromkeys(("coordinator", "client"), 3),
    **dict.fromkeys(("zookeeper", "local"), 4),
    **dict.fromkeys(("history",), 5),
    **dict.fromkeys(("broker", "spark"), 6),
    **dict.fromkeys(("testing",), 7),
    **dict.fromkeys(("demo", "web"), 8),
    **dict.fromkeys(("compare",), 9),
    **dict.fromkeys(("cli",), 10),
}
PURE = ("model", "errors", "protocol.", "assignors.", "coordinator.", "client.core.")
NOT_PURE = ("coordinator.runtime", "coordinator.shards", "protocol.codegen")
IMPURE = {"asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "secrets"}
IMPURE |= {"selectors", "socket", "subprocess", "threading", "time", "uuid"}
KEEPS_SHARDS = {"clocks", "home", "loading", "log_store", "reply", "shards", "store"}
"""What keeps the shards of any coordinator. It may know these and what is no coordinator's."""
KNOWN_TO_ALL = {"errors", "protocol.primitives", "protocol.record_batch"}
MODULES = sorted(path.relative_to(SOURCE / "muster") for path in (SOURCE / "muster").rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside its functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (
                [f"muster.{alias.name}" for alias in node.names] if node.module == "muster" else [str(node.module)]
            )


@pytest.mark.parametrize("module", [path for path in MODULES if len(path.parts) > 1 or path.stem in HEIGHT], ids=str)
def test_a_module_looks_only_down_and_a_rule_does_no_io(module: Path) -> None:
    room, name = module.parts[0].removesuffix(".py"), ".".join(module.with_suffix("").parts)
    for imported in imports(SOURCE / "muster" / module):
        if imported.startswith("muster.") and (other := imported.split(".")[1]) in HEIGHT and other != room:
            assert HEIGHT[other] < HEIGHT[room] or {other, room} == {"model", "errors"}, f"{name} imports {imported}"
            assert (room, other) not in {
                ("broker", "client"),
                ("spark", "coordinator"),
                ("spark", "log"),
                ("client", "log"),
                ("history", "log"),
                ("history", "coordinator"),
            }
        if name.startswith(PURE) and name not in NOT_PURE:
            assert imported.partition(".")[0] not in IMPURE, f"{name} is a rule and imports {imported}"


@pytest.mark.parametrize("name", sorted(KEEPS_SHARDS))
def test_what_keeps_shards_knows_nothing_of_groups(name: str) -> None:
    """So that another coordinator than that of groups can be kept by the same files."""
    known = {f"coordinator.{other}" for other in KEEPS_SHARDS} | KNOWN_TO_ALL
    for imported in imports(SOURCE / "muster" / "coordinator" / f"{name}.py"):
        assert not imported.startswith("muster.") or imported.removeprefix("muster.") in known, imported
