import pytest

from muster.testing import Kafka


@pytest.fixture(scope="session")
def muster_broker():
    with Kafka() as k:
        yield k
