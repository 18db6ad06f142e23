"""The codecs of a compiled build have the same source as the interpreted ones, with types: both behave the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.protocol import codec, messages
from tests.support.message_strategies import message
from tests.support.scale import examples
from tools import compiled
from tools.typed_codecs import chosen, module_source

_each = pytest.mark.parametrize(("name", "version"), chosen(), ids=[f"{n}-v{v}" for n, v in chosen()])
_settings = settings(max_examples=examples(15, quick=3), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module run by Python, without a compiler."""
    path = tmp_path_factory.mktemp("typed") / "typed_codecs_of_a_test.py"
    path.write_text(module_source())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(function: Any, *arguments: Any) -> Any:
    """The result of a codec, or the type of its error."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


@_each
@_settings
@given(data=st.data())
def test_it_writes_and_reads_as_the_codec_of_every_process(
    typed: ModuleType, name: str, version: int, data: Any
) -> None:
    cls = getattr(messages, name)
    encode, decode = typed.CODECS[cls, version]
    plain_encode, plain_decode = codec._compiled(cls, version, sliced=False, of_bytes=True)
    sent = data.draw(message(name, version))
    parts: list[Any] = []
    plain_parts: list[Any] = []
    encode(sent, parts.append)
    plain_encode(sent, plain_parts.append)
    assert parts == plain_parts
    encoded = b"".join(parts)
    assert decode(encoded, 0) == plain_decode(encoded, 0)
    few = data.draw(st.integers(0, 3))
    assert outcome(encode, sent, parts.append, few) == outcome(plain_encode, sent, plain_parts.append, few)
    assert outcome(decode, encoded, 0, few) == outcome(plain_decode, encoded, 0, few)
    broken = bytearray(encoded[: data.draw(st.integers(0, len(encoded)))])
    if broken:
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(decode, bytes(broken), 0) == outcome(plain_decode, bytes(broken), 0)


def test_every_module_that_is_compiled_is_there() -> None:
    ready = "muster/protocol/ready_codecs.py"
    found = [path for path in compiled.paths() if path != ready]
    assert [path for path in found if not (Path(compiled.ROOT) / "src" / path).is_file()] == []
    assert ready in compiled.paths()
