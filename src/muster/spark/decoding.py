"""How values are to be decoded, as the options say it. Imports nothing that only tasks need."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Mode(Enum):
    """What becomes of a document that does not fit the schema."""

    PERMISSIVE = "PERMISSIVE"
    """What does not fit is null; the text goes into the column for corrupt records, if the schema has it."""
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class Decoding:
    """How documents are read."""

    mode: Mode
    corrupt: str
    """The name of the column for the text of documents that do not fit."""
    zone: str
    ddl: str | None = None
    """The schema, if it is given as an option."""


def local_zone() -> str:
    """The name of this machine's time zone, which is Java's default here as well; UTC if it has none."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named:
        return named
    try:
        return str(Path("/etc/localtime").resolve(strict=True)).partition("zoneinfo/")[2] or "UTC"
    except OSError:
        return "UTC"
