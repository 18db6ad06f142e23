"""What the tests of logs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import logs
from tests.support.faulty_disk import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    """A disk that can be made to fail."""
    return FaultyDisk()


@pytest.fixture(autouse=True)
def _end_logs() -> Iterator[None]:
    """What a test has opened by `logs.held` ends with the test, as if killed."""
    yield
    logs.end_held()
