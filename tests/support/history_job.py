"""`muster history` with a window of patterns other than ten minutes: `python -m tests.support.history_job MS …`.

With it, rows of rebalances become final during a test. Nothing else differs from `python -m muster`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from muster.cli.main import main
from muster.history.sources.cluster_limits import limits_of
from muster.spark.history import job


def with_window(pattern_ms: int) -> None:
    """Make jobs of this process use this window."""

    def asked(*given: Any) -> Any:
        return replace(limits_of(*given), pattern_ms=pattern_ms)

    vars(job)["limits_of"] = asked


if __name__ == "__main__":
    with_window(int(sys.argv.pop(1)))
    sys.exit(main(sys.argv[1:]))
