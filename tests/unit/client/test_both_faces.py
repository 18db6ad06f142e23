"""What the blocking and the asyncio face of every client have in common."""

from __future__ import annotations

import inspect

import pytest

from muster.client.admin.admin import Admin
from muster.client.admin.async_admin import AsyncAdmin
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.consumer.consumer import Consumer
from muster.client.producer.async_producer import AsyncProducer
from muster.client.producer.producer import Producer
from muster.errors import ConfigError
from muster.zookeeper import AsyncServerAssignedConsumer, AsyncWatcherConsumer, ServerAssignedConsumer, WatcherConsumer
from tests.support.faces import public

FACES = [
    (Admin, AsyncAdmin),
    (Consumer, AsyncConsumer),
    (Producer, AsyncProducer),
    (ServerAssignedConsumer, AsyncServerAssignedConsumer),
    (WatcherConsumer, AsyncWatcherConsumer),
]


@pytest.mark.parametrize(("blocking", "waiting"), FACES)
def test_the_faces_have_the_same_methods_with_the_same_parameters(blocking, waiting):
    ours, theirs = public(blocking), public(waiting)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        mine, other = inspect.signature(method), inspect.signature(theirs[name])
        assert list(mine.parameters.values()) == list(other.parameters.values()), name
        if blocking is not Producer or name not in ("send", "transaction"):  # the two kinds of future, and of `with`
            assert mine.return_annotation == other.return_annotation, name


@pytest.mark.parametrize("cls", [cls for pair in FACES for cls in pair])
def test_every_method_says_what_it_is_for(cls):
    for name, method in public(cls).items():
        assert name == "__init__" or method.__doc__, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("cls", [face for pair in FACES[:3] for face in pair])
def test_unknown_settings_are_refused(cls):
    with pytest.raises(ConfigError, match="did you mean request_timeout_ms"):
        cls({"request.timeoutms": 1})
