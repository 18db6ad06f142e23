"""What `muster history` says before it starts Spark, in a sentence each."""

from __future__ import annotations

import pytest

from muster.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--every", "0s"], "--every is '0s'; it should be a time such as"),
        (["--since", "yesterday"], "--since is 'yesterday'; it should be a time such as"),
        (["--spark", "nonsense"], "--spark 'nonsense': write it as KEY=VALUE"),
        (["--master", "nonsense"], "--master is 'nonsense'; it should be such as local"),
        (["--master", "sc://localhost"], "a client of Spark Connect cannot run this job"),
        (["--every", "99999999d"], "--every is '99999999d'; it should be a time such as"),
        (["--every=-1h"], "--every is '-1h'; it should be a time such as"),
        (["--since", "9" * 5_000 + "d"], "it should be a time such as"),
        (["--since", "99999999999999999999d"], "it should be a time such as"),
        (["--group", ""], "--group is empty"),
        (["--group", "a", "--group", "\udcff"], r"--group '\udcff': no group has such a name"),
        (["--out", ""], "--out is empty"),
        (["-o", "nonsense.ms=1"], "kafka.nonsense.ms is not a setting of the consumer"),
    ],
)
def test_a_wrong_option_is_refused_before_spark_is_started(capsys, tmp_path, arguments, says):
    assert main(["history", "--out", str(tmp_path / "out"), *arguments]) == 1
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
