"""One logger a room: `docs/logging.md` names all of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_names_each_logger_and_no_other() -> None:
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    used = {argument for text in sources for argument in re.findall(r"getLogger\(([^)]*)\)", text)}
    assert [argument for argument in used if not re.fullmatch(r'"muster[\w.]*"|"py4j[\w.]*"|', argument)] == []
    page = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "logging.md").read_text(), re.MULTILINE)
    assert len(page) == len(set(page))
    assert set(page) == {argument.strip('"') for argument in used if argument.startswith('"muster')}
