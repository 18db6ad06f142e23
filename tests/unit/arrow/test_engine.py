"""Which engine decodes, and where numba keeps its compiled code."""

import subprocess
import sys

import pytest

from muster.arrow import engine
from muster.arrow.engine import Engine, kernel_for, packing_kernel_for, use_writable_cache, warm


@pytest.fixture
def fresh_process(monkeypatch):
    monkeypatch.setattr(engine, "_process", engine._Process())
    monkeypatch.setattr(engine, "_packing", engine._Process("muster.arrow.packing_kernel"))


@pytest.mark.usefixtures("fresh_process")
def test_the_kernel_is_loaded_when_enough_records_have_come():
    assert kernel_for(Engine.AUTO, engine.WORTH_LOADING - 1) is None
    assert kernel_for(Engine.PYTHON, 10**9) is None
    kernel = kernel_for(Engine.AUTO, 1)
    assert kernel is not None
    assert kernel_for(Engine.AUTO, 1) is kernel


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_process")
def test_a_loaded_kernel_is_used_for_any_number():
    assert warm()
    assert kernel_for(Engine.AUTO, 1) is not None
    assert packing_kernel_for(Engine.AUTO, 1) is None
    assert warm(packing=True)
    assert packing_kernel_for(Engine.AUTO, 1) is not None


@pytest.mark.usefixtures("fresh_process")
def test_without_numba_python_does_it_all(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(engine, "import_module", missing)
    assert kernel_for(Engine.AUTO, 10**9) is None
    assert not warm()
    with pytest.raises(ImportError):
        kernel_for(Engine.NUMBA, 1)


def test_the_cache_goes_where_it_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "sys", type("Fresh", (), {"modules": {}}))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert use_writable_cache() == str(tmp_path / "muster" / "numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/chosen/by/the/user")
    assert use_writable_cache() == "/chosen/by/the/user"


def test_where_home_cannot_be_written_a_temporary_folder_serves(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "sys", type("Fresh", (), {"modules": {}}))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = use_writable_cache()
    assert folder is not None
    assert folder.startswith(str(tmp_path / "muster-numba-"))


def test_decoding_little_imports_no_numba():
    script = (
        "import sys\n"
        "from muster.arrow import Decoder\n"
        "from tests.support.written import build_batch\n"
        "list(Decoder('t', 0).decode(build_batch([(0, None, b'v', [])])).batches)\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
