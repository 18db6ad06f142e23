import pytest

from tests.support.group_harness import GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()
