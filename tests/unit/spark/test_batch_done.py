"""The message that a batch is done: who receives it, and when it cannot be received."""

import asyncio
import json
import os
import tempfile
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from muster.spark.progress.batch_done import BatchDoneSocket, digest, notify, socket_path
from muster.spark.progress.listener import ProgressListener, end_offset

END = {"v": 1, "seq": 4, "gen": 2, "claims": {"t": {"0": [1, 2]}}, "topics": {"t": ["a1", 1]}, "query": "q"}


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path_factory):
    """A socket's path is limited to about a hundred characters, which `tmp_path` alone can reach."""
    # Now, because otherwise it would be created in the folder that is removed with the first test.
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="word-") as folder:
        monkeypatch.setattr("tempfile.gettempdir", lambda: folder)
        yield


async def _what_was_said():
    """Let the loop read its sockets, in which the message already is."""
    for _ in range(5):
        await asyncio.sleep(0)


def while_listening(say, query="q"):
    """The messages that a query with this name receives."""

    async def run():
        heard: list[tuple[str, bool]] = []
        ear = BatchDoneSocket(query, lambda *word: heard.append(word))
        say()
        await _what_was_said()
        ear.close()
        ear.close()
        return heard

    return asyncio.run(run())


def progress(end, states=()):
    sources = [SimpleNamespace(endOffset=text) for text in (None, "5", '{"t":{"0":7}}', json.dumps(end))]
    return SimpleNamespace(progress=SimpleNamespace(sources=sources, stateOperators=states, id="id1", name=None))


def test_a_query_hears_which_of_its_batches_is_done():
    heard = while_listening(lambda: ProgressListener().onQueryProgress(progress(END)))
    assert heard == [(digest(END), False)] == [(digest(json.loads(json.dumps(END, indent=1))), False)]
    keeps_state = while_listening(lambda: ProgressListener().onQueryProgress(progress(END, states=(1,))))
    assert keeps_state == [(digest(END), True)]
    assert digest(END) == digest(dict(reversed(END.items()))) != digest(END | {"seq": 5})


REPORT = {
    "id": "0b3a1f0e-58b1-4a0c-9a6c-2f1f6d0f7a11",
    "runId": "5f8f5c64-7a0f-4a0e-8f5e-0d8a6b0a4a22",
    "name": None,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 4,
    "batchDuration": 9,
    "durationMs": {"addBatch": 7},
    "stateOperators": [],
    "sources": [
        {
            "description": "PythonMicroBatchStream",
            "startOffset": None,
            "endOffset": END,
            "latestOffset": None,
            "numInputRows": 1,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
        }
    ],
    "sink": {"description": "noop", "numOutputRows": 1},
}


def test_the_jvm_is_asked_for_a_report_s_text_only(monkeypatch):
    """Each further call would cost the JVM a millisecond, for each batch of every query of the session."""
    monkeypatch.setattr(SparkContext, "_jvm", SimpleNamespace(PythonStreamingQueryListenerWrapper=lambda heard: heard))
    listener = ProgressListener()
    heard = listener._jlistener
    assert listener._jlistener is heard  # the JVM recognizes it when it is removed
    event = SimpleNamespace(progress=lambda: SimpleNamespace(json=lambda: json.dumps(REPORT)))
    calls = [heard.onQueryStarted, heard.onQueryProgress, heard.onQueryIdle, heard.onQueryTerminated]
    assert while_listening(lambda: [call(event) for call in calls]) == [(digest(END), False)]
    ended: list[str] = []
    listener.ends.append(ended.append)
    heard.onQueryTerminated(SimpleNamespace(id=lambda: SimpleNamespace(toString=lambda: "11-22")))
    assert ended == ["11-22"]


def test_where_nobody_listens_nothing_happens():
    assert not notify(END)
    assert not notify({name: value for name, value in END.items() if name != "query"})
    assert while_listening(lambda: notify(END), "another") == []
    assert while_listening(lambda: None) == []
    assert not notify(END)


def test_the_next_process_of_a_query_takes_the_place_of_one_that_was_killed():
    async def run():
        first: list[tuple[str, bool]] = []
        second: list[tuple[str, bool]] = []
        killed = BatchDoneSocket("q", lambda *word: first.append(word))
        alive = BatchDoneSocket("q", lambda *word: second.append(word))
        killed.close()
        assert notify(END)
        await _what_was_said()
        alive.close()
        return first, second

    assert asyncio.run(run()) == ([], [(digest(END), False)])


def test_a_folder_that_others_can_enter_is_not_used(tmp_path):
    found = socket_path("q")
    assert found is not None
    assert found.parent.stat().st_mode & 0o777 == 0o700
    found.parent.chmod(0o777)
    assert socket_path("q") is None
    assert while_listening(lambda: notify(END)) == []


def _private(tmp_path):
    made = tmp_path / "private"
    made.mkdir(mode=0o700)
    return made


def _link_of_another(tmp_path, folder):
    folder.symlink_to(_private(tmp_path))
    if os.getuid() == 0:
        os.lchown(folder, 65534, 65534)


def _folder_of_another(tmp_path, folder):
    if os.getuid() != 0:
        folder.symlink_to("/")  # only root can give a folder away; the file system's root is nobody else's
        return
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)


PLANTED = {
    "a link to a private folder": lambda tmp_path, folder: folder.symlink_to(_private(tmp_path)),
    "another user's link to a private folder": _link_of_another,
    "a link to nothing": lambda tmp_path, folder: folder.symlink_to(tmp_path / "nothing"),
    "a file": lambda tmp_path, folder: folder.touch(mode=0o700),
    "another user's folder": _folder_of_another,
    "a folder that the group may read": lambda tmp_path, folder: folder.mkdir(mode=0o750),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_what_another_user_has_put_in_the_folder_s_place_is_not_used(tmp_path, planted):
    """Everybody can write to the temporary folder: a link there would make sockets be created, and files removed, at
    its target."""
    usual = socket_path("q")
    assert usual is not None
    usual.parent.rmdir()
    planted(tmp_path, usual.parent)
    kept = tmp_path / "private" / usual.name
    if kept.parent.exists():
        kept.write_text("not a socket")
    assert socket_path("q") is None
    assert while_listening(lambda: notify(END)) == []
    assert not kept.parent.exists() or (list(kept.parent.iterdir()), kept.read_text()) == ([kept], "not a socket")
    assert not (tmp_path / "nothing").exists()


def test_a_path_that_is_too_long_for_a_socket_does_without(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    assert while_listening(lambda: notify(END)) == []


@pytest.mark.parametrize("text", [None, "", "7", "[1]", "{}", '{"v":1,"seq":1,"claims":{}}'])
def test_offsets_of_other_sources_are_left_alone(text):
    assert end_offset(text) is None
