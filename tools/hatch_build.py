"""Our own step in the build of a wheel: puts compiled libraries next to the sources, if there are any.

`MUSTER_COMPILED` names a folder that `tools.compiled` has made. Without it the wheel is for every Python and system.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledHook(BuildHookInterface[Any]):
    """Adds the libraries of MUSTER_COMPILED to a wheel, and names the wheel after the Python that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("MUSTER_COMPILED")
        if not folder or version == "editable":
            return
        libraries = list(Path(folder).rglob("*.so"))
        if not libraries:
            raise FileNotFoundError(f"MUSTER_COMPILED={folder} has no libraries: see tools/compiled.py")
        for library in libraries:
            build_data["force_include"][str(library.resolve())] = str(library.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
