"""`muster doctor` on a folder: tables, JSON and a page; bad input gets a one-sentence error."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from itertools import pairwise
from pathlib import Path

import pytest

from muster.cli.main import main
from muster.history.sources.live import ReaderConfig
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC
from muster.protocol.records.record_batch import BatchBuilder

CORPUS = Path(__file__).parents[2] / "history" / "corpus"
GROUP = "crash-java-range.g"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with the output of a recorded scenario."""
    kept = json.loads(gzip.decompress((CORPUS / "crash-java-range.json.gz").read_bytes()))
    batches: dict[int, bytearray] = {}
    for partition, offset, timestamp, epoch, key, value, *_ in kept["records"]:
        builder = BatchBuilder()
        builder.append(timestamp, base64.b64decode(key), None if value is None else base64.b64decode(value))
        batches.setdefault(partition, bytearray()).extend(builder.build(base_offset=offset, leader_epoch=epoch))
    for partition, data in batches.items():
        place = tmp_path / f"{OFFSETS_TOPIC}-{partition}"
        place.mkdir()
        (place / "00000000000000000000.log").write_bytes(data)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["doctor", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_json_is_one_object_with_the_keys_that_are_promised(folder, capsys):
    code, out, _ = run(capsys, "--from", folder, "--json")
    report = json.loads(out)
    assert code == 0
    assert [group["group"] for group in report["groups"]] == [GROUP]
    causes = [row["cause"] for row in report["rebalances"] if row["phase"] == 1]
    assert [cause for cause in causes if cause != "joined"] == ["started", "session_expired"]
    row = report["rebalances"][-1]
    promised = ("group", "generation", "at_ms", "duration_ms", "cause", "confidence")
    assert set(promised) <= set(row)
    assert all(isinstance(row[key], int) for key in ("members_before", "members_after", "moved", "moved_needlessly"))
    assert row["moved"] == len(row["moved_partitions"])
    assert all(first["at_ms"] <= second["at_ms"] for first, second in pairwise(report["rebalances"]))
    assert {"source", "from_ms", "until_ms", "lag", "notes", "counts", "warnings"} <= set(report)


def test_tables_name_the_group_its_causes_and_what_is_not_known(folder, capsys):
    code, out, _ = run(capsys, "--from", folder)
    assert code == 0
    for word in ("Groups", "Rebalances", GROUP, "session_expired", "the lag is not known"):
        assert word in out
    first, second = out.index("session_expired"), out.index("started")
    assert first < second  # the newest comes first


def test_a_page_is_written(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    code, out, _ = run(capsys, "--from", folder, "--html", page)
    assert (code, out) == (0, f"wrote {page}\n")
    assert GROUP in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["page.html"]


@pytest.mark.interpreted
def test_a_page_that_cannot_be_written_whole_leaves_the_old_one(folder, tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("the old one")
    page.chmod(0o640)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", _interrupted)
        assert run(capsys, "--from", folder, "--html", page)[0] == 130
    assert page.read_text() == "the old one"
    assert run(capsys, "--from", folder, "--html", page)[0] == 0
    assert GROUP in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["page.html"]


def _interrupted(path, text, **_options):
    path.write_bytes(text.encode()[:1000])
    raise KeyboardInterrupt


def test_since_leaves_out_what_is_older_and_keeps_its_context(folder, capsys):
    whole = json.loads(run(capsys, "--from", folder, "--json")[1])
    last = whole["rebalances"][-1]
    since = f"{(whole['until_ms'] - last['at_ms']) + 1}ms"
    some = json.loads(run(capsys, "--from", folder, "--json", "--since", since)[1])
    assert some["rebalances"] == [last]
    assert (whole["since_ms"], some["since_ms"]) == (None, last["at_ms"] - 1)


def test_since_limits_what_findings_count(folder, capsys):
    whole = json.loads(run(capsys, "--from", folder, "--json")[1])
    (expired,) = [row for row in whole["rebalances"] if row["cause"] == "session_expired"]
    assert "session_expired" in [each["rule"] for each in whole["findings"]]
    for ms, there in ((0, True), (1, False)):
        since = f"{whole['until_ms'] - expired['at_ms'] - ms}ms"
        some = json.loads(run(capsys, "--from", folder, "--json", "--since", since)[1])
        assert ("session_expired" in [each["rule"] for each in some["findings"]]) is there


def test_settings_reach_what_is_fetched():
    config = ReaderConfig.of({"client.id": "me", "receive.buffer.bytes": "4096", "max.partition.fetch.bytes": "7"})
    fetching = config.fetching()
    assert (fetching.client.client_id, fetching.client.receive_buffer_bytes, fetching.max_bytes) == ("me", 4096, 7)


def test_only_the_groups_asked_for_are_reported(folder, capsys):
    assert json.loads(run(capsys, "--from", folder, "--json", "--group", GROUP)[1])["groups"]
    code, out, err = run(capsys, "--from", folder, "--group", "crash-java-range.q")
    assert (code, out) == (1, "")
    assert err == f"muster: {folder} has no group 'crash-java-range.q'; did you mean {GROUP!r}?\n"


def test_events_of_the_broker_are_its_word(folder, capsys):
    row = json.loads(run(capsys, "--from", folder, "--json")[1])["rebalances"][-1]
    common = {"v": 1, "group_id": GROUP, "member_id": "m", "client_id": "c", "generation_id": row["generation"]}
    started = common | {
        "event": "RebalanceStarted",
        "at_ms": row["at_ms"] - 70,
        "cause": "member joined",
        "state": "Stable",
    }
    completed = common | {"event": "RebalanceCompleted", "at_ms": row["at_ms"], "members": 3}
    place = folder / f"{EVENTS_TOPIC}-0"
    place.mkdir()
    builder = BatchBuilder()
    for event in (started, completed):
        builder.append(row["at_ms"], GROUP.encode(), json.dumps(event).encode())
    (place / "00000000000000000000.log").write_bytes(builder.build(base_offset=0))
    reported = json.loads(run(capsys, "--from", folder, "--json")[1])["rebalances"][-1]
    assert (reported["source"], reported["cause"], reported["confidence"], reported["duration_ms"]) == (
        "events",
        "joined",
        1.0,
        70,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "/not/there"], "/not/there: No such file or directory"),
        (["--from", "EMPTY"], "no log of __consumer_offsets in"),
        (["--from", "EMPTY", "--sample", "5s"], "a folder cannot be watched"),
        (["--from", "EMPTY", "--bootstrap", "elsewhere:1"], "cannot be combined"),
        (["--from", "EMPTY", "--html", "/not/there/page.html"], "folder /not/there does not exist"),
        (["--from", "EMPTY", "--html", "EMPTY"], "is a folder: name a file in it"),
        (["--from", "EMPTY", "--html", "/proc/page.html"], "folder /proc"),
        (["--bootstrap", "nonsense"], "nonsense"),
        (["--from", "EMPTY", "--group", "\udcff"], "the name is not valid UTF-8"),
        (["--from", "EMPTY", "--group", ""], "--group is empty"),
        (["--engine", "spark", "--sample", "5s"], "omit --engine"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says, tmp_path, capsys):
    (tmp_path / "notes.log").write_text("not a log")
    code, out, err = run(capsys, *[str(tmp_path) if word == "EMPTY" else word for word in arguments])
    assert (code, out) == (1, "")
    assert says in err
    assert err.startswith("muster: ")


@pytest.mark.parametrize(
    "words", [["--since", "2x"], ["--since", "0s"], ["--since", ""], ["--sample", "0s"], ["--json", "--html", "f"]]
)
def test_a_wrong_command_line_is_a_usage_error(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    assert ended.value.code == 2
    assert "muster doctor: error" in capsys.readouterr().err


def test_names_cannot_write_to_the_terminal(capsys):
    from muster.cli.observe.doctor_tables import print_report
    from muster.history.model import Finding, GroupKind
    from muster.history.report import Report

    name = "\x1b[31mred\n[bold]"
    print_report(
        Report("here", None, 0, kinds={name: GroupKind.CLASSIC}, findings=[Finding(name, "r", 0, "s", 0, None, "a")])
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("[31mred [bold]") == 2  # in the table and in the finding, on one line


def test_a_terminal_that_lacks_letters_has_them_as_escapes(monkeypatch, folder):
    written = TextIOWrapper(BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", written)
    log = next(folder.glob(f"{OFFSETS_TOPIC}-*")) / "00000000000000000000.log"
    builder = BatchBuilder()
    key = b"\0\1" + b"".join(len(text.encode()).to_bytes(2, "big") + text.encode() for text in ("größe-✓", "t"))
    builder.append(5, key + bytes(4), None)
    log.write_bytes(builder.build())
    assert main(["doctor", "--from", str(folder)]) == 0
    assert b"gr\\xf6\\xdfe-\\u2713" in written.buffer.getvalue()


def test_a_log_without_records_is_as_of_now(tmp_path, capsys):
    (tmp_path / f"{OFFSETS_TOPIC}-0").mkdir()
    assert json.loads(run(capsys, "--from", tmp_path, "--json")[1])["until_ms"] > 1_700_000_000_000


def test_a_small_folder_needs_no_spark(folder):
    code = (
        "import sys; from muster.cli.main import main; "
        f"assert main(['doctor', '--from', {str(folder)!r}, '--json']) == 0; "
        "sys.stderr.write(','.join(m for m in ('pyspark', 'numba') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
