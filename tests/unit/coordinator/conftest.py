import pytest

from tests.support.group_harness import GroupHarness
from tests.support.runtime_broker import Broker


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()


@pytest.fixture
def broker() -> Broker:
    return Broker().loaded()
