"""muster's codecs compared with those of kio, an independent implementation that is itself tested against Java.

kio reads muster's bytes and writes them again: they must be the same, and so must the message that muster then reads.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from muster.protocol import codec
from muster.protocol.api import REQUESTS
from muster.protocol.primitives import Message, Request, Response
from tests.support.message_strategies import message
from tests.support.scale import examples

_PAIRS = [
    (cls, kind, version)
    for request in REQUESTS.values()
    for cls, kind in ((request, EntityType.request), (request.RESPONSE, EntityType.response))
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
]


def _kio_class(cls: type[Message], kind: EntityType, version: int) -> Any:
    key = cls.API_KEY if issubclass(cls, Request | Response) else -1
    module = load_payload_module(key, version, kind)
    return getattr(module, cls.__name__)


def _known_to_kio() -> list[Any]:
    found = []
    for cls, kind, version in _PAIRS:
        try:
            theirs = _kio_class(cls, kind, version)
        except (UnknownAPIKey, UnknownEntity):
            continue
        found.append(pytest.param(cls, theirs, version, id=f"{cls.__name__}-v{version}"))
    return found


@pytest.mark.parametrize(("cls", "theirs", "version"), _known_to_kio())
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kio_reads_and_writes_the_same_bytes(cls: type[Message], theirs: Any, version: int, data: Any) -> None:
    sent = data.draw(message(cls.__name__, version, modest=True))
    encoded = codec.encode(sent, version)
    read, size = entity_reader(theirs)(encoded, 0)
    assert size == len(encoded)
    written = BytesIO()
    entity_writer(theirs)(written, read)
    assert written.getvalue() == encoded
    assert codec.encode(codec.decode(cls, version, encoded), version) == encoded


def test_kio_knows_nearly_all_of_them() -> None:
    assert len(_PAIRS) - len(_known_to_kio()) <= 4  # the newest versions of 4.2 may be missing
