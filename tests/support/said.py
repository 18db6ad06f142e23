"""What one part of muster has said in a test, whatever others say meanwhile.

A test's log is that of the whole process: brokers and clients of other tests that are still there speak in it, too. And
each broker says when the machine let nothing run for a while, which is no test's affair.
"""

from __future__ import annotations

import logging

import pytest

_STOOD_STILL = "this process was stopped for"


def said(caplog: pytest.LogCaptureFixture, logger: str, level: int = logging.NOTSET) -> list[str]:
    """The lines of a logger and of those beneath it, from a level on."""
    return [
        record.getMessage()
        for record in caplog.records
        if f"{record.name}.".startswith(f"{logger}.")
        and record.levelno >= level
        and not record.getMessage().startswith(_STOOD_STILL)
    ]
