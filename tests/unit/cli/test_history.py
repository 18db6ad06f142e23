"""The one-sentence errors of `muster history` before it starts Spark."""

from __future__ import annotations

import pytest

from muster.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--every", "0s"], "--every '0s': expected a duration such as"),
        (["--since", "yesterday"], "--since 'yesterday': expected a duration such as"),
        (["--spark", "nonsense"], "--spark 'nonsense': expected KEY=VALUE"),
        (["--master", "nonsense"], "--master 'nonsense': expected a master such as local"),
        (["--master", "sc://localhost"], "this job does not run over Spark Connect"),
        (["--every", "99999999d"], "--every '99999999d': expected a duration such as"),
        (["--every=-1h"], "--every '-1h': expected a duration such as"),
        (["--since", "9" * 5_000 + "d"], "expected a duration such as"),
        (["--since", "99999999999999999999d"], "expected a duration such as"),
        (["--group", ""], "--group is empty"),
        (["--group", "a", "--group", "\udcff"], r"--group '\udcff': the name is not valid UTF-8"),
        (["--out", ""], "--out is empty"),
        (["-o", "nonsense.ms=1"], "kafka.nonsense.ms is not a setting of the consumer"),
    ],
)
def test_a_wrong_option_is_refused_before_spark_is_started(capsys, tmp_path, arguments, says):
    assert main(["history", "--out", str(tmp_path / "out"), *arguments]) == 1
    reported = capsys.readouterr()
    assert says in reported.err
    assert reported.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
