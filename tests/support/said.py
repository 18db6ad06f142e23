"""What one part of muster has logged in a test, whatever others log meanwhile.

A test's log is that of the whole process: brokers and clients of other tests that still run write to it, too. And each
broker reports when the machine suspended everything for a while, which no test is about.
"""

from __future__ import annotations

import logging

import pytest

_STOOD_STILL = "this process was stopped for"


def said(caplog: pytest.LogCaptureFixture, logger: str, level: int = logging.NOTSET) -> list[str]:
    """The lines of a logger and its children, from a level on."""
    return [
        record.getMessage()
        for record in caplog.records
        if f"{record.name}.".startswith(f"{logger}.")
        and record.levelno >= level
        and not record.getMessage().startswith(_STOOD_STILL)
    ]
